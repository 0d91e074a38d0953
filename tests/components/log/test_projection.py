"""A projection subscribes before it replays, and replays again whenever live records may have been lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from app.deliberation.ports import Journal
from app.log.projection import Projection
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story

PATTERN = "deliberations.>"


@asynccontextmanager
async def projected(
    journal: InMemoryJournal, replay: Callable[[set[int]], None] = lambda seen: None
) -> AsyncIterator[tuple[set[int], list[int]]]:
    """A running projection: the sequences that it holds, and how many it held after each replay."""
    seen, replays = set[int](), list[int]()

    async def read(log: Journal) -> None:
        seen.update([record.sequence async for record in log.read(PATTERN, 0)])
        replays.append(len(seen))
        replay(seen)

    projection = Projection(
        journal,
        [PATTERN],
        lambda record: seen.add(record.sequence),
        read,
        lambda running: running.stale_within(60),
        retry_s=0,
    )
    running = asyncio.create_task(projection.run())
    yield seen, replays
    running.cancel()
    await asyncio.wait([running])
    assert journal.listeners == 0, "a projection that ends closes its subscription"


async def test_stored_and_live_records_are_applied() -> None:
    journal, story = InMemoryJournal(), Story("a")
    await journal.append("default", story.accepted())
    async with projected(journal) as (seen, replays):
        await until(lambda: replays == [1])
        await journal.append("default", story.opened())
        assert seen == {1, 2} and replays == [1]


async def test_a_reconnect_replays_the_records_that_were_lost() -> None:
    journal, story = InMemoryJournal(), Story("a")
    async with projected(journal) as (seen, replays):
        await until(lambda: replays == [0])
        await journal.append("default", story.accepted())
        seen.clear()
        journal.reconnect()
        await until(lambda: replays == [0, 1])


async def test_a_reconnect_during_a_replay_repeats_it() -> None:
    journal = InMemoryJournal()
    reconnects = iter([True, False])

    def reconnect(seen: set[int]) -> None:
        if next(reconnects):
            journal.reconnect()

    async with projected(journal, reconnect) as (_, replays):
        await until(lambda: replays == [0, 0])


async def test_an_unavailable_log_is_waited_for() -> None:
    journal = InMemoryJournal(available=False)
    async with projected(journal) as (_, replays):
        for _ in range(20):
            await asyncio.sleep(0)
        assert replays == []
        journal.available = True
        await until(lambda: replays == [0])
