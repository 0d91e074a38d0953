"""What the store holds is the newest that was written, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from app.archive.database.store import Store, Written
from app.catalog.projection import state_of
from app.deliberation.errors import Gone
from app.deliberation.facts import Fact, encode, prefix, suffix
from app.deliberation.ports import Record
from tests.story import NOW, Story

EPOCH = "0a1b2c3d"


def records_of(story: Story, facts: Sequence[Fact], first: int = 1) -> list[Record]:
    stem = prefix("acme", story.id)
    return [Record(f"{stem}.{suffix(fact)}", number, encode(fact)) for number, fact in enumerate(facts, first)]


def told(story: Story, text: str = "{}") -> list[Fact]:
    """The facts of a deliberation from acceptance to end."""
    answers = [story.finished(agent, text) for agent in story.agents]
    return [story.accepted(), story.opened(), *answers, story.closed(), story.completed()]


def written(records: Sequence[Record]) -> Written:
    state = state_of(records)
    assert state is not None
    return Written("acme", state.deliberation_id, at=state.accepted.ts, state=state, records=records)


async def test_an_ended_deliberation_is_read_as_it_was_written(store: Store, fresh_id: str) -> None:
    records = records_of(Story(fresh_id), told(Story(fresh_id), '{"answer":"\\u0000 \\ud83d\\ude00 \' -- %s \\n"}'))
    await store.write(EPOCH, [written(records)])

    found = await store.read("acme", fresh_id)

    assert found is not None and found.records == records and found.epoch == EPOCH
    assert await store.read("umbrella", fresh_id) is None


async def test_a_deliberation_without_an_end_is_not_read(store: Store, fresh_id: str) -> None:
    await store.write(EPOCH, [written(records_of(Story(fresh_id), told(Story(fresh_id))[:2]))])

    assert await store.read("acme", fresh_id) is None


async def test_an_older_write_changes_nothing(store: Store, fresh_id: str) -> None:
    records = records_of(Story(fresh_id), told(Story(fresh_id)))
    for part in (records, records[:1], records[:2], records):
        await store.write(EPOCH, [written(part)])

    found = await store.read("acme", fresh_id)

    assert found is not None and found.records == records


async def test_a_fact_of_a_later_log_is_newer_whatever_its_sequence(store: Store, fresh_id: str) -> None:
    story = Story(fresh_id)
    earlier, later = records_of(story, told(story), first=1_000), records_of(story, told(story))
    await store.write(EPOCH, [written(earlier)])
    await store.write("ffffffff", [written(later)])
    await store.write(EPOCH, [written(earlier)])

    found = await store.read("acme", fresh_id)

    assert found is not None and found.records == later and found.epoch == "ffffffff"


async def test_no_write_brings_a_deleted_deliberation_back(store: Store, fresh_id: str) -> None:
    records = records_of(Story(fresh_id), told(Story(fresh_id)))
    await store.write(EPOCH, [written(records)])
    await store.delete("acme", fresh_id, NOW)
    await store.write(EPOCH, [written(records)])

    with pytest.raises(Gone, match="has been deleted"):
        await store.read("acme", fresh_id)


async def test_projectors_that_write_the_same_at_once_keep_the_newest(store: Store) -> None:
    stories = [Story(f"{number:026d}") for number in range(40)]
    parts = [[written(records_of(story, told(story))[:end]) for story in stories] for end in (1, 2, 6)]
    writes = [store.write(EPOCH, batch) for batch in (*parts, *reversed(parts))]
    await asyncio.gather(*writes)

    found = [await store.read("acme", story.id) for story in stories]

    assert all(each is not None and len(each.records) == 6 for each in found)


async def test_rows_past_their_retention_are_removed_in_parts(
    store: Store, fresh_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.database.store.EXPIRED_AT_ONCE", 2)
    stories = [Story(f"{fresh_id[:20]}{number:06d}") for number in range(5)]
    await store.write(EPOCH, [written(records_of(story, told(story))) for story in stories])
    await store.delete("acme", fresh_id, datetime.now(UTC))

    removed = [await store.expire(NOW + timedelta(seconds=1)) for _ in range(4)]

    assert removed == [2, 2, 1, 0]
    with pytest.raises(Gone):
        await store.read("acme", fresh_id)
