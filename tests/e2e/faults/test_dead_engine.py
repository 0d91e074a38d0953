import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import DELIBERATE, ONE_ROLE, TASK, start_up, stop_up

pytestmark = pytest.mark.e2e

TOLD_WITHIN_S = 5.0
# Long enough to start the simulator again on a busy machine.
WRITE_TIMEOUT_S = 12.0
CAUSE = "connection refused"


@dataclass
class Engine:
    port: int
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, duration_ms: int) -> None:
        command = ["-m", "serve_deployments.simulator", "--port", str(self.port)]
        self.process = await asyncio.create_subprocess_exec(sys.executable, *command)
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=self.url) as client:
            while True:
                try:
                    (await client.post("/simulator/script", json={"duration_ms": duration_ms})).raise_for_status()
                    return
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    async def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@dataclass
class Command:
    process: asyncio.subprocess.Process
    lines: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    async def read(self) -> int:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.decode()))
        return await self.process.wait()

    def longest_silence_s(self, since_s: float) -> float:
        moments = [since_s, *(at_s for at_s, _ in self.lines if at_s >= since_s)]
        return max(later - sooner for sooner, later in pairwise(moments))


@asynccontextmanager
async def command(*arguments: str) -> AsyncGenerator[tuple[Command, asyncio.Task[int]]]:
    process = await asyncio.create_subprocess_exec(
        str(DELIBERATE),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Wide enough that no line is wrapped.
        env={**os.environ, "COLUMNS": "250"},
    )
    running = Command(process)
    task = asyncio.create_task(running.read())
    try:
        yield running, task
    finally:
        if process.returncode is None:
            process.kill()
        await task


async def first_moment(found: Callable[[], Awaitable[bool]]) -> float:
    async with asyncio.timeout(30):
        while not await found():
            await asyncio.sleep(0.05)
    return time.monotonic()


@pytest.fixture
async def engine() -> AsyncGenerator[Engine]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        one = Engine(free.getsockname()[1])
    # Longer than the test: a call ends only because its engine dies.
    await one.start(duration_ms=120_000)
    yield one
    if one.process is not None and one.process.returncode is None:
        await one.kill()


async def test_a_dead_engine_is_named_everywhere_and_ends_or_resumes_the_work(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_AWAY_TIMEOUT", str(WRITE_TIMEOUT_S))
    options = ("--agents", "local", "--roles", str(ONE_ROLE), "--engine-url", engine.url)
    process, ready = await asyncio.to_thread(start_up, tmp_path / "data", *options)
    try:
        async with httpx.AsyncClient(base_url=ready["url"], timeout=70) as client:
            await told_everywhere_and_failed(engine, client)
            await never_silent_and_completed_after_its_return(engine, client, tmp_path)
        await seen_by_a_replica_that_nobody_asks(engine, tmp_path / "data" / "logs" / "coordinator.log")
    finally:
        await asyncio.to_thread(stop_up, process)


async def told_everywhere_and_failed(engine: Engine, client: httpx.AsyncClient) -> None:
    url = str(client.base_url).rstrip("/")
    asked = (await client.post("/deliberations", json={"task": TASK})).raise_for_status().json()

    async def read(path: str) -> Any:
        return (await client.get(path)).raise_for_status().json()

    async def degraded() -> bool:
        return any(
            each["pointer"] == "engines" and engine.url in each["detail"]
            for each in (await read("/readyz"))["degraded"]
        )

    async def in_roles() -> bool:
        (role,) = (await read("/roles"))["items"]
        (found,) = role["live"]["engines"]
        return found["url"] == engine.url and CAUSE in (found["trouble"] or {}).get("detail", "")

    async def in_status() -> bool:
        installation = await read("/status")
        told = [fault["detail"] for fault in installation["findings"] if fault["code"] == "engine_unreachable"]
        return [CAUSE in detail and engine.url in detail for detail in told] == [True]

    assert not await degraded() and not await in_status()
    async with command("watch", asked["id"], "--url", url) as (watch, watched):

        async def watch_shows(text: str) -> bool:
            return any(text in line for _, line in watch.lines)

        await first_moment(lambda: watch_shows("starts on"))
        await engine.kill()
        killed_s = time.monotonic()
        sentence = f"engine {engine.url} cannot be connected to since"
        places = {
            "watch": first_moment(lambda: watch_shows(sentence)),
            "/readyz": first_moment(degraded),
            "/roles": first_moment(in_roles),
            "/status": first_moment(in_status),
        }
        moments = dict(zip(places, await asyncio.gather(*places.values()), strict=True))
        late = {place: at_s - killed_s for place, at_s in moments.items() if at_s - killed_s > TOLD_WITHIN_S}
        assert late == {}
        async with command("status", "--url", url) as (shown, told):
            assert await told == 0
        assert sum(f"Engine {engine.url}" in line and CAUSE in line for _, line in shown.lines) == 1
        assert await watched != 0
        ended_s = time.monotonic()
        assert watch.longest_silence_s(killed_s) <= TOLD_WITHIN_S
    assert ended_s - killed_s <= WRITE_TIMEOUT_S + TOLD_WITHIN_S
    found = await read(f"/deliberations/{asked['id']}")
    assert found["status"] == "failed"
    detail = found["problem"]["detail"]
    assert sentence in detail and CAUSE in detail and "start it, or correct its URL" in detail


async def never_silent_and_completed_after_its_return(
    engine: Engine, client: httpx.AsyncClient, directory: Path
) -> None:
    url = str(client.base_url).rstrip("/")
    dataset = directory / "one.jsonl"
    dataset.write_text(json.dumps({"question": "What is 17 times 23?", "answer": 391, "normaliser": "number"}) + "\n")
    bench = ("bench", "quality", "--dataset", str(dataset), "--url", url, "--strategy", "single", "--no-baseline")
    async with command("ask", TASK, "--url", url) as (ask, answered), command(*bench) as (measured, ended):

        async def both_told() -> bool:
            return all(any(engine.url in line for _, line in each.lines) for each in (ask, measured))

        begun_s = await first_moment(both_told)
        await engine.start(duration_ms=0)
        assert (await answered, await ended) == (0, 0), (ask.lines, measured.lines)
        assert max(ask.longest_silence_s(begun_s), measured.longest_silence_s(begun_s)) <= TOLD_WITHIN_S
    assert any("completed" in line for _, line in ask.lines)


async def seen_by_a_replica_that_nobody_asks(engine: Engine, log: Path) -> None:
    def outages() -> int:
        return log.read_bytes().count(b"engine_unreachable")

    async def seen() -> bool:
        return outages() > before

    before = outages()
    assert before, "the outage of the engine's first death is there"
    await engine.kill()
    killed_s = time.monotonic()
    assert await first_moment(seen) - killed_s <= TOLD_WITHIN_S
