"""A projector that copies a real journal to a store, and stories to copy."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from app.archive.database.store import Archived, Store
from app.archive.projector import Projector
from app.deliberation.errors import Gone
from app.deliberation.facts import Fact
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ARCHIVE_CONSUMER
from tests.conditions import until_empty
from tests.story import Story

KEPT_S = 10**9


@asynccontextmanager
async def projecting(journal: JetStreamJournal, store: Store) -> AsyncGenerator[Projector]:
    projector = Projector(journal, store, retention_s=KEPT_S)
    task = asyncio.create_task(projector.run())
    try:
        yield projector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rest(story: Story) -> list[Fact]:
    return [story.opened(), *(story.finished(agent) for agent in story.agents), story.closed(), story.completed()]


async def append(journal: JetStreamJournal, facts: Sequence[Fact]) -> None:
    for fact in facts:
        await journal.append("acme", fact)


async def tell(journal: JetStreamJournal, story: Story) -> None:
    await append(journal, [story.accepted(), *rest(story)])


async def until_copied(journal: JetStreamJournal, timeout_s: float = 30) -> None:
    await until_empty(journal, "DELIBERATIONS", ARCHIVE_CONSUMER, timeout_s)


async def read(store: Store, deliberation_id: str) -> Archived | Gone | None:
    try:
        return await store.read("acme", deliberation_id)
    except Gone as gone:
        return gone


def stories(count: int) -> list[Story]:
    return [Story(f"{number:026d}") for number in range(count)]
