import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.stack.supervisor import marked
from app.deliberation.facts import CallFinished, Resumed, decode
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import declared_streams
from tests.conditions import until
from tests.conftest import NatsServer
from tests.e2e.conftest import DELIBERATE, ONE_ROLE, TASK, Stack, start_up, stop_up
from tests.integration.cli.children import alive

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


Said = dict[str, Any]
Line = Callable[[Callable[[Said], bool]], Awaitable[Said]]


@asynccontextmanager
async def printing(command: list[str], **environment: str) -> AsyncGenerator[tuple[asyncio.subprocess.Process, Line]]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    async def line(wanted: Callable[[Said], bool]) -> Said:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while written := await process.stdout.readline():
                if wanted(said := json.loads(written)):
                    return said
        raise AssertionError(f"it ended with {await process.wait()}")

    try:
        yield process, line
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def up_on(url: str, data_dir: Path) -> list[str]:
    return [str(DELIBERATE), "up", "--json", "--port", "0", "--nats-url", url, "--data-dir", str(data_dir)]


async def test_up_waits_for_a_log_that_is_not_there_yet(own_nats_server: NatsServer, tmp_path: Path) -> None:
    own_nats_server.kill()
    async with printing(up_on(own_nats_server.url, tmp_path / "data")) as (process, line):
        given = await line(lambda said: said["event"] == "part_given")
        assert given == {"event": "part_given", "name": "nats", "url": own_nats_server.url, "answers": False}
        own_nats_server.start()
        assert (await line(lambda said: said["event"] == "part_given"))["answers"] is True
        await line(lambda said: said["event"] == "child_started")
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.communicate(), 30)


async def test_up_refuses_streams_that_differ_and_names_the_difference(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = await JetStreamJournal.connect(own_nats_server.url)
    [declared] = [stream for stream in declared_streams(StreamSettings()) if stream["name"] == "DELIBERATIONS"]
    other = json.dumps({**declared, "max_age": 3_600_000_000_000}).encode()
    async with asyncio.timeout(10):
        while "config" not in await journal.request("$JS.API.STREAM.CREATE.DELIBERATIONS", other):
            pass
    async with printing(up_on(own_nats_server.url, tmp_path / "data")) as (process, _):
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 1
        error = json.loads(err)
    assert error["code"] == "streams_differ"
    assert "DELIBERATIONS.max_age: declared 86400000000000, found 3600000000000" in error["detail"]
    found = await journal.request("$JS.API.STREAM.INFO.DELIBERATIONS")
    assert found["config"]["max_age"] == 3_600_000_000_000, "nothing was changed"
    await journal.close()


async def until_status(client: httpx.AsyncClient, path: str, status: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.get(path)).status_code == status:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def viewed(client: httpx.AsyncClient, deliberation_id: str, watching: asyncio.Event) -> list[str]:
    async with client.stream("GET", f"/deliberations/{deliberation_id}/events") as response:
        lines = list[str]()
        async for line in response.aiter_lines():
            watching.set()
            lines.append(line)
        return lines


async def test_a_draining_gateway_refuses_new_work_and_answers_waiting_clients(stack: Stack) -> None:
    await stack.script(duration_ms=60_000, faults=[], behaviour="normal")
    environment = {**stack.of_log(), "PORT": "0", "DRAIN_DELAY": "4", "HOST": "127.0.0.1"}
    body, watching = {"task": TASK, "strategy": "single"}, asyncio.Event()
    async with printing([sys.executable, "-m", "app.main"], **environment) as (process, line):
        listening = await line(lambda said: said["event"] == "gateway_listening")
        url = f"http://127.0.0.1:{listening['port']}"
        async with httpx.AsyncClient(base_url=url, timeout=70) as client, asyncio.TaskGroup() as group:
            await until_status(client, "/readyz", 200)
            key = {"Idempotency-Key": f"drain-{process.pid}"}
            id = (await client.post("/deliberations", json=body, headers=key)).json()["id"]
            viewer = group.create_task(viewed(client, id, watching))
            posted = group.create_task(client.post("/deliberations", json=body, headers={"Prefer": "wait=60"}))
            polled = group.create_task(client.get(f"/deliberations/{id}", headers={"Prefer": "wait=60"}))
            await watching.wait()
            async with asyncio.timeout(10):
                # What was posted second is in, so that what waits for it is not new work.
                while (await client.get("/deliberations?after=now")).json()["items"][0]["id"] == id:
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)

            await until_status(client, "/readyz", 503)
            refused = await client.post("/deliberations", json=body)
            refusal = (refused.status_code, refused.json()["code"], refused.headers["retry-after"])
            assert refusal == (503, "not_ready", "2")
            again = await client.post("/deliberations", json=body, headers=key)
            assert (again.status_code, again.json()["id"]) == (202, id), "an accepted request is still answered"
            assert (await client.get("/healthz")).status_code == 200
            assert (await posted).status_code == 202
            assert (await polled).status_code == 200
            frames = [line for line in await viewer if line.startswith(("event: ", "data: "))]
            assert frames[-2] == "event: stream.reconnect" and '"reason":"draining"' in frames[-1]
        assert await asyncio.wait_for(process.wait(), 15) == 0
    for each in (id, posted.result().json()["id"]):
        (await stack.client.post(f"/deliberations/{each}/cancel", headers={"Prefer": "wait=10"})).raise_for_status()


async def asked_until_ended(client: httpx.AsyncClient, key: str) -> dict[str, Any]:
    async with asyncio.timeout(90):
        while True:
            try:
                response = await client.post(
                    "/deliberations",
                    json={"task": f"{TASK} {key}", "strategy": "single"},
                    headers={"Idempotency-Key": key, "Prefer": "wait=20"},
                )
            except httpx.TransportError:
                await asyncio.sleep(random.uniform(0.05, 0.2))
                continue
            if response.status_code == 200:
                return response.json()
            assert response.status_code in (202, 503), response.text
            if response.status_code == 503:
                await asyncio.sleep(0.1)


async def test_restarts_of_the_gateway_under_load_lose_and_double_nothing(stack: Stack) -> None:
    await stack.script(duration_ms=300, faults=[], behaviour="normal")
    ended = dict[str, dict[str, Any]]()

    async def load(client_number: int) -> None:
        for turn in range(6):
            key = f"roll-{os.getpid()}-{client_number}-{turn}"
            ended[key] = await asked_until_ended(stack.client, key)

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(load(number))
        for restarts in range(2):
            await until(lambda at_least=10 * restarts + 4: len(ended) >= at_least, 60)
            was = stack.child("gateway")
            os.kill(was["pid"], signal.SIGTERM)
            await until(lambda was=was: stack.child("gateway")["attempt"] > was["attempt"], 30)
    assert {found["status"] for found in ended.values()} == {"completed"}
    assert len({found["id"] for found in ended.values()}) == len(ended) == 48
    asked = (await stack.engine_calls())["calls"]
    assert sum(call["started"] for call in asked.values()) == 48, "no work began without an accepted request"
    await stack.until_ready()


async def recorded(stack: Stack, deliberation_id: str) -> set[str]:
    facts = [decode(record.data) for record in await stack.journal.facts("default", deliberation_id)]
    return {fact.call_id for fact in facts if isinstance(fact, CallFinished)}


async def test_a_rolling_restart_of_the_application_hands_running_work_over(stack: Stack) -> None:
    """Every replica is replaced in the middle of councils: none fails, and what was recorded is not paid for twice."""
    await stack.script(duration_ms=2_000, faults=[], behaviour="normal")
    replicas = {await stack.replica_pid("control.coordinator"), await stack.replica_pid("control.role.DEV")}
    ids = [await stack.submit(seed=number) for number in range(4)]
    for id in ids:
        async with asyncio.timeout(60):
            while len(await recorded(stack, id)) < 3:
                await asyncio.sleep(0.05)
    # Stages that begin from now on outlast the restart, also on a busy machine: no council may end before it.
    await stack.script(duration_ms=10_000)
    deployer = stack.child("deployer")
    os.kill(deployer["pid"], signal.SIGHUP)
    await until(lambda: not any(alive(pid) for pid in replicas), 60)
    await stack.script(duration_ms=300)
    before = {id: await recorded(stack, id) for id in ids}
    asked_before = (await stack.engine_calls())["calls"]
    for id in ids:
        found = await stack.until(id, status="completed", timeout_s=120)
        assert found["degraded"] is None and len(found["verdict"]["ranking"]) == 3
    asked = (await stack.engine_calls())["calls"]
    for id in ids:
        for call in before[id]:
            name = f"{id}.{call}"
            assert asked[name]["started"] == asked_before[name]["started"], f"{name} was recorded and asked for again"
        facts = [decode(record.data) for record in await stack.journal.facts("default", id)]
        assert any(isinstance(fact, Resumed) and fact.given_back for fact in facts), "it was handed over in order"
    assert max(call["started"] for call in asked.values()) <= 2, "what was in flight is asked for once more at most"
    # The line comes once every role is ready, which may be after the councils have ended.
    await until(lambda: "deployed anew" in Path(deployer["log"]).read_text(), 60)
    assert stack.child("deployer")["pid"] == deployer["pid"]
    await stack.until_ready()


async def test_hanging_processes_are_restarted_and_the_council_ends(stack: Stack) -> None:
    """NATS, engine and gateway are stopped at once, and no process ever wakes them."""
    await stack.script(duration_ms=700, faults=[], behaviour="normal")
    id = await stack.submit(seed=5)
    await stack.until(id, status="in_progress")
    hung = {name: stack.child(name) for name in ("nats", "simulator", "gateway")}
    for child in hung.values():
        os.kill(child["pid"], signal.SIGSTOP)
    await until(lambda: all(stack.child(name)["attempt"] > was["attempt"] for name, was in hung.items()), 60)
    found = await stack.until(id, status="completed", timeout_s=120)
    assert len(found["verdict"]["ranking"]) == 3
    await stack.until_ready()


async def test_a_hung_controller_is_started_again_and_replaces_replicas_that_die(stack: Stack) -> None:
    await stack.script(duration_ms=0, faults=[], behaviour="normal")
    [controller] = [each.pid for each in marked(stack.mark) if each.command.startswith("ray::ServeController")]
    replica = await stack.replica_pid("control.role.DEV")
    os.kill(controller, signal.SIGSTOP)
    os.kill(replica, signal.SIGKILL)
    await until(lambda: controller not in {each.pid for each in marked(stack.mark)}, 60)
    found = await stack.until(await stack.submit(role="DEV", strategy="single"), status="completed", timeout_s=60)
    assert found["verdict"] is not None
    assert await stack.replica_pid("control.role.DEV") != replica


async def test_a_role_without_replicas_starts_at_its_first_use(tmp_path: Path) -> None:
    roles = tmp_path / "roles.yaml"
    roles.write_text("roles: {DEV: {persona: You develop., replicas: {min: 0}}}")
    process, ready = start_up(tmp_path / "data", "--roles", str(roles), "--simulate", "--duration-ms 0")
    try:
        async with httpx.AsyncClient(base_url=ready["url"], timeout=70) as client:
            assert (await client.get("/roles/DEV")).json()["live"] is None
            findings = (await client.get("/status")).json()["findings"]
            # `up` gives the archive CPU last, so that it may answer late.
            assert {fault["part"] for fault in findings if fault["severity"] == "error"} <= {"archive"}
            found = (await client.post("/deliberations", json={"task": TASK}, headers={"Prefer": "wait=60"})).json()
            assert (found["status"], found["degraded"]) == ("completed", None)
            assert (await client.get("/roles/DEV")).json()["live"]["replicas"] == 1
    finally:
        assert stop_up(process) == 0


async def test_a_killed_up_goes_on_with_the_same_log_when_it_is_started_again(tmp_path: Path) -> None:
    slow = ("--simulate", "--duration-ms 1500", "--roles", str(ONE_ROLE))
    process, ready = start_up(tmp_path, *slow)
    async with httpx.AsyncClient(base_url=ready["url"], timeout=30) as client:
        body = {"task": TASK, "strategy": "best_of_n"}
        ended = (await client.post("/deliberations", json=body, headers={"Prefer": "wait=30"})).json()
        assert ended["status"] == "completed"
        running = (await client.post("/deliberations", json=body, headers={"Idempotency-Key": "k"})).json()
        async with asyncio.timeout(30):
            while not (await client.get(f"/deliberations/{running['id']}")).json()["progress"]:
                await asyncio.sleep(0.05)
    process.kill()
    process.communicate()

    process, ready = start_up(tmp_path, *slow)
    try:
        async with httpx.AsyncClient(base_url=ready["url"], timeout=70) as client:
            assert (await client.get(f"/deliberations/{ended['id']}")).json() == ended
            again = await client.post(
                "/deliberations", json=body, headers={"Idempotency-Key": "k", "Prefer": "wait=60"}
            )
            assert (again.json()["id"], again.json()["status"]) == (running["id"], "completed")
    finally:
        assert stop_up(process) == 0
