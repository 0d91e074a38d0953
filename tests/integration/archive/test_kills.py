"""Whatever is killed, and in whatever order, the archive becomes the fold of all facts.

`KILLED_UNDER=5000 pytest tests/integration/archive/test_kills.py` plays the full number, with every order of kills.
"""

import asyncio
import os
from itertools import permutations

import pytest
from sqlalchemy import select

from app.archive.database.connection import Database
from app.archive.database.rows import DELETED, Written, labels_of, row_of
from app.archive.database.tables import deliberations, labels, texts
from app.deliberation.fold import state_of
from app.log.journal import JetStreamJournal
from tests.conftest import NatsServer
from tests.integration.archive.conftest import opened
from tests.integration.archive.killed_processes import ROUND_S, Installation, Threaded, running
from tests.integration.archive.projecting import until_copied

DELIBERATIONS = int(os.environ.get("KILLED_UNDER", "200"))
EVERY_ORDER = DELIBERATIONS > 1_000
AT_ONCE = 16


async def test_after_kills_in_every_order_the_archive_is_the_fold_of_all_facts(
    journal: JetStreamJournal, own_nats_server: NatsServer, database_url: str, request: pytest.FixtureRequest
) -> None:
    installation = Installation(journal, own_nats_server, database_url)
    if database_url.startswith("postgresql"):
        installation.victims.append(Threaded(request.getfixturevalue("postgres")))
    orders = list(permutations(installation.victims))
    # A smaller run has an order that begins with each of them.
    orders = orders if EVERY_ORDER else orders[:: len(orders) // len(installation.victims)]
    size, turn, ids = -(-DELIBERATIONS // len(orders)), asyncio.Semaphore(AT_ONCE), dict[str, bool]()

    async def play(number: int) -> None:
        async with turn:
            deleted = number % 10 == 0
            ids[await installation.play(number, deleted=deleted)] = deleted

    async with running(installation):
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
        listed = await installation.listed()
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
