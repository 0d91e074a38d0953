"""A gateway, an archive process and a nats-server that a test kills and starts again."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Accepted, Fact, decode
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.routes.dependencies import SystemClock
from tests.components.routes.served import played
from tests.conftest import NatsServer, free_port
from tests.integration.archive.postgres import PostgresServer

# Each round waits for processes that start on a busy machine.
ROUND_S = 90


class Process:
    def __init__(self, module: str, environment: dict[str, str]) -> None:
        self._command = [sys.executable, "-m", module]
        self._environment = {**environment, "PATH": ""}

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stdout=asyncio.subprocess.DEVNULL
        )

    async def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


class Threaded:
    def __init__(self, server: NatsServer | PostgresServer) -> None:
        self._server = server

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)


class Installation:
    def __init__(self, journal: JetStreamJournal, server: NatsServer, database_url: str) -> None:
        port = free_port()
        environment = {"NATS_URL": server.url, "DATABASE_URL": database_url, "PORT": str(port), "ARCHIVE_PORT": "0"}
        self.journal = journal
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)
        self.processes = [Process("app.archive", environment), Process("app.main", environment)]
        self.victims: list[Process | Threaded] = [*self.processes, Threaded(server)]

    async def answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        async with asyncio.timeout(ROUND_S):
            while True:
                with suppress(httpx.TransportError):
                    response = await self.client.request(method, path, **request)
                    if response.status_code not in (429, 503):
                        return response
                await asyncio.sleep(0.05)

    async def append(self, fact: Fact) -> None:
        async with asyncio.timeout(ROUND_S):
            while True:
                with suppress(JournalUnavailable):
                    await self.journal.append("default", fact)
                    return
                await asyncio.sleep(0.05)

    async def play(self, number: int, *, deleted: bool) -> str:
        body = {"task": f"Task {number}", "num_agents": 1, "strategy": "single", "metadata": {"number": str(number)}}
        submitted = await self.answer("POST", "/deliberations", json=body, headers={"Idempotency-Key": f"k{number}"})
        assert submitted.status_code in (200, 202), submitted.text
        id = submitted.json()["id"]
        accepted = decode((await facts_of(self.journal, id))[0].data)
        assert isinstance(accepted, Accepted)
        for fact in played(accepted, now=SystemClock().now):
            await self.append(fact)
        if deleted:
            gone = await self.answer("DELETE", f"/deliberations/{id}")
            assert gone.status_code in (204, 410), gone.text
        return id

    async def listed(self) -> list[str]:
        path, ids = "/deliberations?limit=200", list[str]()
        while path:
            response = await self.answer("GET", path)
            ids += [item["id"] for item in response.json()["items"]]
            path = response.headers.get("link", "").partition("<")[2].partition(">")[0]
        return ids


async def facts_of(journal: JetStreamJournal, id: str) -> Sequence[Record]:
    async with asyncio.timeout(ROUND_S):
        while True:
            with suppress(JournalUnavailable):
                return await journal.facts("default", id)
            # A read without a connection fails at once; without a pause the client never reconnects.
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running(installation: Installation) -> AsyncGenerator[None]:
    for process in installation.processes:
        await process.start()
    try:
        yield
    finally:
        for process in installation.processes:
            await process.kill()
        await installation.client.aclose()
