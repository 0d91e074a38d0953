import asyncio

from app.deliberation.ports import Record
from app.streaming.snapshots import READS_AT_ONCE, SnapshotCache, SnapshotKey
from tests.components.routes.listening import TENANT
from tests.fakes import InMemoryJournal
from tests.story import Story


class SlowJournal(InMemoryJournal):
    reading, most = 0, 0

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await asyncio.sleep(0.001)
        self.reading -= 1
        return await super().facts(tenant, deliberation_id)


async def test_snapshots_of_many_deliberations_are_read_a_few_at_a_time() -> None:
    journal = SlowJournal()
    ids = [f"many{number}" for number in range(3 * READS_AT_ONCE)]
    for id in ids:
        await journal.append(TENANT, Story(id).accepted())
    cache = SnapshotCache(journal, lambda *_: None)
    keys = [SnapshotKey(TENANT, frozenset({id}), frozenset(), strict=False) for id in ids]
    sets = await asyncio.gather(*(cache.get(key, 0) for key in keys))
    assert [found.snapshots[0].deliberation_id for found in sets] == ids
    assert journal.most == READS_AT_ONCE
