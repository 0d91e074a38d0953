"""Waiting for conditions instead of sleeping, and holding reads back."""

import asyncio
from collections.abc import AsyncIterator, Callable

from app.deliberation.ports import Record
from tests.fakes import InMemoryJournal


async def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    """Return as soon as `condition` holds; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def held_back(journal: InMemoryJournal) -> asyncio.Event:
    """Have every read from the log's beginning wait until the event that this returns is set."""
    read, going_on = journal.read, asyncio.Event()

    async def waiting(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        if after == 0:
            await going_on.wait()
        async for record in read(pattern, after, limit=limit):
            yield record

    journal.read = waiting
    return going_on
