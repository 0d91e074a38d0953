import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.conditions import until
from tests.e2e.conftest import DELIBERATE, ONE_ROLE, TASK

SIZE = "96m"
PAGE_BYTES = 4_096
# A user's own name space of mounts: what is mounted in it goes with its last process.
APART = ("unshare", "--map-root-user", "--mount")


def may_mount(place: Path) -> bool:
    command = [*APART, "mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


@dataclass
class Cramped:
    process: subprocess.Popen[str]
    disk: Path
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def url(self) -> str:
        return next(said["url"] for said in self.events if said["event"] == "ready")

    def fill(self, *, pages_left: int) -> None:
        with (self.disk / "ballast").open("ab", buffering=0) as ballast:
            with suppress(OSError):
                while True:
                    ballast.write(bytes(PAGE_BYTES))
            ballast.truncate(ballast.tell() - pages_left * PAGE_BYTES)

    def make_room(self) -> None:
        (self.disk / "ballast").unlink()

    @property
    def faults_of_nats(self) -> int:
        return sum(said.get("text", "").startswith("nats: ") for said in self.events)

    def nats_pid(self) -> int:
        return json.loads((self.disk / "data" / "stack.json").read_text())["children"]["nats"]["pid"]


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Cramped]:
    place = tmp_path / "disk"
    place.mkdir()
    if not may_mount(place):
        pytest.skip("no tmpfs may be mounted here, not even in a name space of its own")
    up = f"{DELIBERATE} up --json --port 0 --data-dir {place}/data --roles {ONE_ROLE}"
    script = f"mount -t tmpfs -o size={SIZE} tmpfs {place} && exec {up}"
    process = subprocess.Popen([*APART, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    stack = Cramped(process, Path(f"/proc/{process.pid}/root{place}"))
    assert process.stdout is not None
    lines = iter(process.stdout)
    for line in lines:
        stack.events.append(json.loads(line))
        if stack.events[-1]["event"] == "ready":
            break
    reader = Thread(target=lambda: stack.events.extend(map(json.loads, lines)), daemon=True)
    reader.start()
    yield stack
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    reader.join(timeout=10)
    process.stdout.close()


@pytest.fixture
async def client(cramped: Cramped) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cramped.url, timeout=70) as client:
        yield client


async def post(client: httpx.AsyncClient, key: str, **headers: str) -> httpx.Response:
    body = {"task": f"{TASK} {key}", "strategy": "independent"}
    return await client.post("/deliberations", json=body, headers={"Idempotency-Key": key, **headers})


async def faults(client: httpx.AsyncClient) -> dict[str, str]:
    response = await client.get("/readyz")
    return {fault["pointer"]: fault["detail"] for fault in response.json().get("errors", [])}


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while await faults(client):
            await asyncio.sleep(0.1)


@pytest.mark.e2e
async def test_a_full_disk_loses_no_promise_and_is_over_when_there_is_room(
    cramped: Cramped, client: httpx.AsyncClient
) -> None:
    before = (await post(client, "before", Prefer="wait=30")).json()
    assert before["status"] == "completed"
    cramped.fill(pages_left=4)
    promised: dict[str, str] = {}
    number = 0
    while (response := await post(client, f"full-{number}")).status_code == 202:
        promised[f"full-{number}"] = response.json()["id"]
        number += 1
        assert number < 1_000, "the disk never gets full"
    assert (response.status_code, response.json()["code"], response.headers["retry-after"]) == (
        503,
        "journal_unavailable",
        "2",
    )
    assert "the log" in response.json()["detail"]
    assert "journal" in await faults(client)
    # On some failed writes nats-server switches JetStream off and answers no read either; it never answers wrongly.
    read = await client.get(f"/deliberations/{before['id']}")
    assert read.json() == before or (read.status_code, read.json()["code"]) == (503, "journal_unavailable"), read.text
    await until(lambda: cramped.faults_of_nats == 1)

    os.kill(cramped.nats_pid(), signal.SIGKILL)
    await until(lambda: any(said["event"] == "child_ready" and said["attempt"] == 2 for said in cramped.events), 30)
    # Until the gateway is connected again it refuses without a write; then a write fails in the new server too.
    async with asyncio.timeout(30):
        while cramped.faults_of_nats == 1:
            response = await post(client, f"full-{number}")
            if response.status_code == 202:
                # The start freed some pages. What is accepted now is a promise as well.
                promised[f"full-{number}"] = response.json()["id"]
                number += 1
                cramped.fill(pages_left=0)
            else:
                assert response.status_code == 503, response.text

    cramped.make_room()
    assert shutil.disk_usage(cramped.disk).free > 50_000_000
    async with asyncio.timeout(60):
        while (again := await post(client, f"full-{number}")).status_code not in (200, 202):
            assert again.json()["code"] == "journal_unavailable"
    promised[f"full-{number}"] = again.json()["id"]
    await until_ready(client)
    for key, id in promised.items():
        ended = await post(client, key, Prefer="wait=60")
        assert (ended.json()["id"], ended.json()["status"]) == (id, "completed"), ended.text
    reasons = [said["reason"] for said in cramped.events if said["event"] == "child_died"]
    assert reasons[-1].startswith("broken: "), "the server that had failed to write was started again unasked"
