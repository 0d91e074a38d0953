import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.options import nats_url_file
from app.client import quote
from app.deliberation.facts import CallFinished, decode
from app.deliberation.quote import Quote
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from tests.components.docs.blocks import blocks

DELIBERATE = Path(sys.executable).with_name("deliberate")
SLOW = {"duration_ms": 700, "faults": [], "behaviour": "normal"}
FAST = {"duration_ms": 0, "faults": [], "behaviour": "normal"}
# Fewer replicas start sooner: for tests that start a stack of their own and need no second role.
ONE_ROLE = Path(__file__).parents[1] / "fixtures" / "one_role.yaml"
TASK = "Write a function that merges two sorted lists."


@dataclass
class Stack:
    process: subprocess.Popen[str]
    data_dir: Path
    ready: dict[str, Any]
    client: httpx.AsyncClient
    engine: httpx.AsyncClient
    journal: JetStreamJournal

    @property
    def url(self) -> str:
        return self.ready["url"]

    def nats_url(self, user: str) -> str:
        return nats_url_file(self.data_dir, user)

    def of_log(self, user: str = "gateway") -> dict[str, str]:
        archive = {"DATABASE_URL": f"sqlite:///{self.data_dir / 'archive.db'}"} if user == "gateway" else {}
        return {"NATS_URL": self.nats_url(user), "LOG_KEY_FILE": str(self.data_dir / "log_key"), **archive}

    @property
    def mark(self) -> str:
        return json.loads((self.data_dir / "stack.json").read_text())["mark"]

    def child(self, name: str) -> dict[str, Any]:
        return json.loads((self.data_dir / "stack.json").read_text())["children"][name]

    @property
    def worker(self) -> dict[str, Any] | None:
        children = json.loads((self.data_dir / "stack.json").read_text())["children"]
        return {name: children["worker"][name] for name in ("pid", "attempt")} if "worker" in children else None

    async def replica_pid(self, subject: str) -> int:
        async with asyncio.timeout(60):
            while True:
                replies = await self.journal.inquire(subject, timeout_s=2)
                if replies:
                    return int(replies[0]["replica"].rpartition("-")[2])

    async def script(self, **script: Any) -> None:
        (await self.engine.post("/simulator/script", json=script)).raise_for_status()

    async def engine_calls(self) -> dict[str, Any]:
        return (await self.engine.get("/simulator/calls")).raise_for_status().json()

    async def submit(self, **body: Any) -> str:
        response = await self.client.post("/deliberations", json={"task": TASK, **body})
        assert response.status_code == 202, response.text
        return response.json()["id"]

    async def quoted(self, **body: Any) -> Quote:
        return await quote(self.client, {"task": TASK, **body})

    async def read(self, deliberation_id: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                try:
                    response = await self.client.get(f"/deliberations/{deliberation_id}")
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                    continue
                if response.status_code == 200:
                    return response.json()
                assert response.status_code == 503, response.text
                await asyncio.sleep(0.1)

    async def recorded(self, deliberation_id: str) -> dict[str, CallFinished]:
        events = [decode(record.data) for record in await self.journal.facts("default", deliberation_id)]
        return {event.call_id: event for event in events if isinstance(event, CallFinished)}

    async def until(self, deliberation_id: str, timeout_s: float = 90, **wanted: Any) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            while True:
                found = await self.read(deliberation_id)
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                assert found["status"] in ("pending", "in_progress", "cancelling"), found
                await asyncio.sleep(0.05)

    async def cancel_all(self) -> None:
        for status in ("pending", "in_progress", "cancelling"):
            listed = await self.client.get("/deliberations", params={"status": status, "limit": 200, "after": "now"})
            for each in listed.raise_for_status().json()["items"]:
                path = f"/deliberations/{each['id']}/cancel"
                assert (await self.client.post(path, headers={"Prefer": "wait=10"})).status_code == 200

    async def until_ready(self) -> None:
        async with asyncio.timeout(90):
            while True:
                try:
                    if (await self.client.get("/readyz")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)


def start_up(data_dir: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """Start a stack. Its simulator answers at once, unless `options` name a pace or an engine."""
    command = [str(DELIBERATE), "up", "--json", "--port", "0", "--data-dir", str(data_dir), *options]
    if not {"--simulate", "--engine-url"} & set(options):
        command += ["--simulate", ""]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if said["event"] == "ready":
            return process, said
    raise AssertionError(f"up ended with {process.wait()} before it was ready")


def stop_up(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path, dict[str, Any]]]:
    data_dir = tmp_path_factory.mktemp("up")
    with pytest.MonkeyPatch.context() as patched:
        # Work of a story asks a context service; only its own tests run one.
        patched.setenv("CONTEXT", "true")
        process, ready = start_up(data_dir)
    yield process, data_dir, ready
    if process.poll() is None:
        stop_up(process)


async def stored(journal: JetStreamJournal, stream: str, subjects: str) -> dict[str, int]:
    """The number of messages on each subject."""
    asked = f'{{"subjects_filter": "{subjects}"}}'.encode()
    found = await journal.request(f"$JS.API.STREAM.INFO.{stream}", asked)
    return found["state"].get("subjects", {})


async def announcements_of(journal: JetStreamJournal, deliberation_id: str) -> list[str]:
    """The statuses of the announcements of a deliberation."""
    statuses, sequence = list[str](), 0
    while True:
        query = json.dumps({"seq": sequence + 1, "next_by_subj": "orchestration.>"}).encode()
        reply = await journal.request("$JS.API.STREAM.MSG.GET.ORCHESTRATOR_EVENTS", query)
        if "error" in reply:
            return statuses
        sequence = reply["message"]["seq"]
        announced = json.loads(base64.b64decode(reply["message"]["data"]))
        if announced["deliberation_id"] == deliberation_id:
            statuses.append(announced["status"])


async def printed_by(page: str, stack: Stack, place: Path) -> str:
    """What the only Python program of a page prints when a reader runs it against the stack."""
    (program,) = [block.text for block in blocks() if block.page == page and block.language == "python"]
    path = place / "ask.py"
    path.write_text(program.replace("http://127.0.0.1:8080", stack.url))
    process = await asyncio.create_subprocess_exec(DELIBERATE.with_name("python"), path, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


@asynccontextmanager
async def connected(process: subprocess.Popen[str], data_dir: Path, ready: dict[str, Any]) -> AsyncGenerator[Stack]:
    journal = await JetStreamJournal.connect(
        nats_url_file(data_dir, "gateway"), name=f"e2e-{os.getpid()}", signer=LogSigner.of_file(data_dir / "log_key")
    )
    async with (
        httpx.AsyncClient(base_url=ready["url"], timeout=70) as client,
        httpx.AsyncClient(base_url=ready["engine_urls"][0], timeout=10) as engine,
    ):
        yield Stack(process, data_dir, ready, client, engine, journal)
    await journal.close()


@asynccontextmanager
async def own_stack(data_dir: Path, *options: str) -> AsyncGenerator[Stack]:
    process, ready = start_up(data_dir, *options)
    async with connected(process, data_dir, ready) as stack:
        yield stack
    assert stop_up(process) == 0


@pytest.fixture(scope="session")
async def running(up: tuple[subprocess.Popen[str], Path, dict[str, Any]]) -> AsyncIterator[Stack]:
    async with connected(*up) as stack:
        yield stack


async def prepared(stack: Stack) -> Stack:
    await stack.until_ready()
    await stack.script(**FAST)
    await stack.cancel_all()
    (await stack.engine.delete("/simulator/calls")).raise_for_status()
    return stack


@pytest.fixture
async def stack(running: Stack) -> Stack:
    return await prepared(running)
