import asyncio

from app.deliberation.ports import Record
from app.streaming.snapshots import READS_AT_ONCE, SnapshotCache, SnapshotKey, SnapshotSet
from tests.components.routes.listening import TENANT
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.story import Story

MANY, OTHER = tuple(f"many{number}" for number in range(3 * READS_AT_ONCE)), "other"


class HeldJournal(InMemoryJournal):
    """A journal that answers one read at each `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.reading: list[str] = []
        self.release = asyncio.Semaphore(0)

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        self.reading.append(deliberation_id)
        await self.release.acquire()
        return await super().facts(tenant, deliberation_id)


async def test_snapshots_are_read_a_few_at_a_time_and_tenants_take_turns() -> None:
    journal = HeldJournal()
    cache = SnapshotCache(journal, lambda *_: None)

    async def read(tenant: str, id: str) -> SnapshotSet:
        await journal.append(tenant, Story(id).accepted())
        return await cache.get(SnapshotKey(tenant, frozenset({id}), frozenset(), strict=False), 0)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(TENANT, id)) for id in MANY] + [group.create_task(read("acme", OTHER))]
        await until(lambda: len(journal.reading) == READS_AT_ONCE)
        journal.release.release()
        await until(lambda: len(journal.reading) > READS_AT_ONCE)
        assert journal.reading == [*MANY[:READS_AT_ONCE], OTHER]
        for _ in tasks:
            journal.release.release()
    assert [task.result().snapshots[0].deliberation_id for task in tasks] == [*MANY, OTHER]
