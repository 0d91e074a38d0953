"""What the store holds is the newest that was written, on SQLite and on PostgreSQL."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from app.archive.database.rows import Written, instant, label, progress_of
from app.archive.database.search_query import parse
from app.archive.database.statistics import StatsFilter
from app.archive.database.store import Copied, Store
from app.archive.database.tables import VERSION_MAX, deliberations, labels, position
from app.archive.database.writing import Opening
from app.catalog.entries import BENCH, Entry, ListFilter
from app.deliberation.calls import FactProblem
from app.deliberation.errors import Gone
from app.deliberation.facts import CancelRequested, Failed
from tests.integration.archive.archived_stories import EPOCH, records_of, told, written
from tests.integration.archive.conftest import opened
from tests.story import NOW, Story


async def test_an_ended_deliberation_is_read_as_it_was_written(store: Store, fresh_id: str) -> None:
    records = records_of(Story(fresh_id), told(Story(fresh_id), '{"answer":"\\u0000 \\ud83d\\ude00 \' -- %s \\n"}'))
    await store.write(EPOCH, [written(records)])

    found = await store.read("acme", fresh_id)

    assert found is not None and found.records == records and found.epoch == EPOCH
    assert await store.read("umbrella", fresh_id) is None


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


async def place_and_labels(store: Store, database_url: str, deliberation_id: str) -> tuple[int | None, set[int]]:
    row = deliberations.c
    async with opened(database_url) as database, database.begin() as connection:
        place = (await connection.execute(select(row.accepted).where(row.id == deliberation_id))).scalar_one()
        found = (await connection.execute(select(labels.c.label).where(labels.c.accepted == place))).scalars().all()
    return place, set(found)


async def test_labels_come_with_the_acceptance_and_go_with_the_deletion(
    store: Store, database_url: str, fresh_id: str
) -> None:
    records = records_of(Story(fresh_id), told(Story(fresh_id)), first=31)
    found = list[tuple[int | None, set[int]]]()
    for part in (records[:2], records, records):
        await store.write(EPOCH, [written(part)])
        found.append(await place_and_labels(store, database_url, fresh_id))
    await store.delete("acme", fresh_id, NOW)
    found.append(await place_and_labels(store, database_url, fresh_id))

    has = {label("acme", "strategy", "independent"), label("acme", "role", "DEV")}
    place = position(await store.log_number(EPOCH), 31)
    assert found == [(place, has), (place, has), (place, has), (place, set())]


async def test_a_deliberation_keeps_its_first_place(store: Store, database_url: str, fresh_id: str) -> None:
    story = Story(fresh_id)
    await store.write(EPOCH, [written(records_of(story, told(story), first=9))])
    await store.write("ffffffff", [written(records_of(story, told(story)))])

    place, has = await place_and_labels(store, database_url, fresh_id)

    assert place == position(await store.log_number(EPOCH), 9) and len(has) == 2


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


async def test_a_tenant_with_its_own_retention_keeps_rows_for_that_time(store: Store, fresh_id: str) -> None:
    tenants = ("acme", "globex", "umbrella")
    records = records_of(Story(fresh_id), told(Story(fresh_id)))
    await store.write(EPOCH, [written(records, tenant) for tenant in tenants])
    earlier, later = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)

    removed = await store.expire(earlier, {"acme": later}), await store.expire(later, {"umbrella": earlier})
    left = [tenant for tenant in tenants if await store.read(tenant, fresh_id) is not None]

    assert removed == (1, 1) and left == ["umbrella"]


async def test_a_write_that_is_cancelled_holds_no_other_one_up(store: Store) -> None:
    """A gateway and a projector share a database; each may stop at any moment of a write."""
    batch = [written(records_of(Story(f"c{place}"), told(Story(f"c{place}")), 1 + 10 * place)) for place in range(50)]
    other = records_of(Story("other"), told(Story("other")), 1_000)
    for step in range(60):
        writing = asyncio.create_task(store.write(EPOCH, batch))
        await asyncio.sleep(step / 2_000)
        writing.cancel()
        # The exception is kept, and with it whatever it refers to.
        stopped = await asyncio.gather(writing, return_exceptions=True)
        async with asyncio.timeout(4):
            await store.write(EPOCH, [written(other)])
        assert stopped[0] is None or isinstance(stopped[0], asyncio.CancelledError)


def varied(number: int) -> Written:
    """A deliberation of one of two teams; each fifth failed, and each has its time and metadata of its own."""
    story, at = Story(f"varied-{number:03d}", 1), NOW + timedelta(minutes=number)
    metadata = {"team": "blue" if number % 3 else "red", "order": str(number)}
    metadata |= dict([BENCH]) if number % 4 == 0 else {"bench": "mine"}
    problem = FactProblem(code="no_answers", detail="None answered", retryable=False)
    ended = Failed(deliberation_id=story.id, ts=at, problem=problem) if number % 5 == 0 else story.completed()
    facts = [story.accepted(at, metadata=metadata), story.opened(), ended]
    return written(records_of(story, facts, 10 * number + 1))


Given = dict[str, Any]
FAILED: Given = {"statuses": frozenset(["failed"])}
BLUE: Given = {"metadata": {"team": "blue"}}
LATER: Given = {"created_after": NOW + timedelta(minutes=7)}
EARLIER: Given = {"created_before": NOW + timedelta(minutes=21)}
FILTERS: list[Given] = [
    {},
    FAILED,
    BLUE,
    FAILED | BLUE,
    FAILED | BLUE | LATER,
    BLUE | LATER | EARLIER,
    BLUE | {"role": "DEV"},
    BLUE | FAILED | {"role": "DEV", "strategy": "independent"},
    FAILED | {"role": "QA"},
    {"metadata": {"team": "blue", "order": "4"}},
    {"metadata": {"team": "red", "order": "4"}},
    {"statuses": frozenset(["completed", "cancelled"])} | BLUE,
    {"statuses": frozenset(["cancelled"])} | BLUE,
    {"bench": False},
    {"bench": False} | BLUE,
    {"bench": False, "metadata": dict([BENCH])},
    {"bench": False} | FAILED | BLUE | LATER,
]


@pytest.mark.parametrize("rare_max", [1, 5, 1_000])
async def test_pages_hold_what_passes_the_filter_whatever_is_rare(
    store: Store, rare_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.archive.database.pages.RARE_MAX", rare_max)
    await store.write(EPOCH, [varied(number) for number in range(30)])

    async def pages(asked: ListFilter) -> list[Entry]:
        found, before = list[Entry](), VERSION_MAX
        while page := (await store.page("acme", asked, limit=4, before=before))[0]:
            found += [entry for _, entry in page]
            before = page[-1][0]
        return found

    everything = await pages(ListFilter())
    assert [entry.id for entry in everything] == [f"varied-{number:03d}" for number in reversed(range(30))]
    for given in FILTERS:
        asked = ListFilter(**given)
        assert await pages(asked) == [entry for entry in everything if asked.shows(entry)], given


async def test_an_opening_changes_an_older_row_without_an_end_alone(store: Store) -> None:
    pending, cancelling, ended, newer = (Story(f"s{number}") for number in range(4))
    cancel = CancelRequested(deliberation_id=cancelling.id, ts=NOW)
    batch = [
        written(records_of(pending, [pending.accepted()])),
        written(records_of(cancelling, [cancelling.accepted(), cancel], 11)),
        written(records_of(ended, told(ended), 21)),
        written(records_of(newer, [newer.accepted()], 99)),
    ]
    await store.write(EPOCH, batch)
    log = await store.log_number(EPOCH)
    first, second = progress_of(pending.opened()), progress_of(pending.opened(2))
    openings = [Opening(("acme", each.deliberation_id), position(log, 50), 1_000_000, first) for each in batch]
    openings += [Opening(("acme", "s0"), position(log, 51), 2_000_000, second)]
    await store.put([], [*reversed(openings), Opening(("acme", "unknown"), position(log, 50), 1, first)])

    found, _ = await store.page("acme", ListFilter(), limit=9)

    statuses = {entry.id: (entry.status, entry.started_at is not None) for _, entry in found}
    assert statuses == {
        "s0": ("in_progress", True), "s1": ("cancelling", True), "s2": ("completed", True), "s3": ("pending", False),
    }  # fmt: skip
    stages = {entry.id: entry.progress and entry.progress.stage for _, entry in found}
    assert stages == {"s0": 2, "s1": 1, "s2": None, "s3": None}
    assert next(entry.started_at for _, entry in found if entry.id == "s0") == instant(1_000_000), "the first opening's"


async def test_what_a_lost_log_left_unfinished_is_in_no_list_and_in_no_statistics(store: Store) -> None:
    lost, active, ended = Story("lost"), Story("active"), Story("ended")
    await store.write(
        "00000000", [written(records_of(lost, told(lost)[:2])), written(records_of(ended, told(ended), 9))]
    )
    await store.write(EPOCH, [written(records_of(active, told(active)[:2], 5))])
    await store.put([], copied=Copied(EPOCH, 6, NOW))

    listed, copied = await store.page("acme", ListFilter(), limit=9)
    found, _ = await store.page("acme", ListFilter(), parse("colour"), limit=9)
    stats, _ = await store.stats(StatsFilter("acme", NOW - timedelta(days=1), None, NOW))

    assert [entry.id for _, entry in listed] == [entry.id for _, entry in found] == ["active", "ended"]
    assert (stats.active, stats.completed) == (1, 1) and copied == Copied(EPOCH, 6, NOW)
