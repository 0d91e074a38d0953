"""Whatever is killed, and in whatever order, the archive becomes the fold of all facts.

`KILLED_UNDER=5000 pytest tests/integration/archive/test_kills.py` plays the full number, with every order of kills.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import permutations
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.archive.database.connection import Database
from app.archive.database.rows import DELETED, Written, labels_of, row_of
from app.archive.database.tables import deliberations, labels, texts
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Accepted, Fact, decode
from app.deliberation.fold import state_of
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.routes.dependencies import SystemClock
from tests.components.routes.served import played
from tests.conftest import NatsServer, free_port
from tests.integration.archive.conftest import opened
from tests.integration.archive.postgres import PostgresServer
from tests.integration.archive.test_projector import until_copied

DELIBERATIONS = int(os.environ.get("KILLED_UNDER", "200"))
EVERY_ORDER = DELIBERATIONS > 1_000
AT_ONCE = 16
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


class World:
    def __init__(self, journal: JetStreamJournal, server: NatsServer, database_url: str) -> None:
        port = free_port()
        environment = {"NATS_URL": server.url, "DATABASE_URL": database_url, "PORT": str(port), "ARCHIVE_PORT": "0"}
        self.journal = journal
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)
        self.processes = [Process("app.archive", environment), Process("app.main", environment)]
        self.victims: list[Process | Threaded] = [*self.processes, Threaded(server)]

    async def answer(self, method: str, path: str, **given: Any) -> httpx.Response:
        async with asyncio.timeout(ROUND_S):
            while True:
                with suppress(httpx.TransportError):
                    response = await self.client.request(method, path, **given)
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
        path, found = "/deliberations?limit=200", list[str]()
        while path:
            response = await self.answer("GET", path)
            found += [item["id"] for item in response.json()["items"]]
            path = response.headers.get("link", "").partition("<")[2].partition(">")[0]
        return found


async def facts_of(journal: JetStreamJournal, id: str) -> Sequence[Record]:
    async with asyncio.timeout(ROUND_S):
        while True:
            with suppress(JournalUnavailable):
                return await journal.facts("default", id)
            # A read without a connection fails at once; without a pause the client never reconnects.
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running(world: World) -> AsyncGenerator[None]:
    for each in world.processes:
        await each.start()
    try:
        yield
    finally:
        for each in world.processes:
            await each.kill()
        await world.client.aclose()


async def test_after_kills_in_every_order_the_archive_is_the_fold_of_all_facts(
    journal: JetStreamJournal, own_nats_server: NatsServer, database_url: str, request: pytest.FixtureRequest
) -> None:
    world = World(journal, own_nats_server, database_url)
    if database_url.startswith("postgresql"):
        world.victims.append(Threaded(request.getfixturevalue("postgres")))
    orders = list(permutations(world.victims))
    # A smaller run has an order that begins with each of them.
    orders = orders if EVERY_ORDER else orders[:: len(orders) // len(world.victims)]
    size, turn, ids = -(-DELIBERATIONS // len(orders)), asyncio.Semaphore(AT_ONCE), dict[str, bool]()

    async def play(number: int) -> None:
        async with turn:
            deleted = number % 10 == 0
            ids[await world.play(number, deleted=deleted)] = deleted

    async with running(world):
        for place, order in enumerate(orders):
            playing = [asyncio.create_task(play(number)) for number in range(place * size, (place + 1) * size)]
            for victim in order:
                # Something ends between two kills, unless what is dead already prevents it.
                await asyncio.wait([each for each in playing if not each.done()] or playing, timeout=0.2,
                                   return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
                await victim.kill()
            for victim in order:
                await victim.start()
            await asyncio.gather(*playing)
        await until_copied(journal, ROUND_S)
        kept = [id for id, deleted in ids.items() if not deleted]
        listed = await world.listed()
    assert len(ids) == size * len(orders) and sorted(listed) == sorted(kept)
    async with opened(database_url) as database:
        await check(database, journal, ids)


async def check(database: Database, journal: JetStreamJournal, ids: dict[str, bool]) -> None:
    """Compare all tables with the facts in the log; `ids` says of each whether it was deleted."""
    async with database.begin() as connection:
        rows = {row["id"]: dict(row) for row in (await connection.execute(select(deliberations))).mappings()}
        marks = {tuple(row) for row in await connection.execute(select(labels))}
        places = list((await connection.execute(select(texts.c.rowid))).scalars())
    assert rows.keys() == ids.keys()
    expected_marks, expected_places = set[tuple[int, object]](), set[object]()
    for id, deleted in ids.items():
        records = await journal.facts("default", id)
        if deleted:
            assert [record.tokens[-1] for record in records] == ["deleted"]
            assert (rows[id]["status"], rows[id]["facts"], rows[id]["summary"]) == (DELETED, None, None)
            continue
        state = state_of(records)
        assert state is not None and state.ended
        expected = row_of(Written("default", id, state.accepted.ts, state, records), log=1)
        assert rows[id] == expected
        expected_places.add(expected["accepted"])
        expected_marks |= {(mark, expected["accepted"]) for mark in labels_of("default", state)}
    assert marks == expected_marks
    assert len(places) == len(expected_places) and set(places) == expected_places
