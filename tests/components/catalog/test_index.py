"""The catalog is bounded, and independent of the order of facts."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from app.admission.backlog import Backlog
from app.catalog.index import PATTERNS, Catalog, Entry, ListFilter, fair_surplus, percentile
from app.deliberation.calls import Usage
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Cancelled, CancelRequested, Completed, Fact, Failed, TotalUsage
from app.deliberation.ports import Record
from app.testing import FakeClock, InMemoryJournal, subject_matches
from tests.conditions import held_back, until
from tests.story import NOW, Story

EVERYTHING = ListFilter()


def catalog(clock: FakeClock | None = None, **bounds: int) -> Catalog:
    clock = clock or FakeClock(NOW)
    return Catalog(clock, Backlog(clock, 1_000, {}), **{"retention_s": 3_600, "size_max": 1_000, **bounds})


def entries_of(kept: Catalog, tenant: str = "default") -> list[tuple[str, str]]:
    return [(entry.id, entry.status) for entry in kept.page(tenant, EVERYTHING, limit=1_000)[0]]


async def journal_of(*facts: Fact, tenant: str = "default") -> InMemoryJournal:
    journal = InMemoryJournal()
    for fact in facts:
        await journal.append(tenant, fact)
    return journal


def life(id: str, end: Fact | None = None) -> list[Fact]:
    story = Story(id)
    return [story.accepted(), story.opened(), *([end] if end is not None else [])]


@asynccontextmanager
async def following(kept: Catalog, journal: InMemoryJournal) -> AsyncGenerator[None, None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(kept.follow(journal))
        await until(lambda: kept.caught_up)
        yield
        task.cancel()


@pytest.mark.parametrize("seed", range(20))
async def test_order_and_repetition_of_facts_do_not_change_the_catalog(seed: int) -> None:
    journal = await journal_of(
        *life("a", Completed(deliberation_id="a", ts=NOW)),
        *life("b", Failed(deliberation_id="b", ts=NOW)),
        *life("c"),
        Story("d").accepted(),
        CancelRequested(deliberation_id="c", ts=NOW),
        Story("e").accepted(),
        Cancelled(deliberation_id="e", ts=NOW),
    )
    records = [r for r in journal.records if any(subject_matches(pattern, r.subject) for pattern in PATTERNS)]
    heard = records + random.Random(seed).choices(records, k=5)
    random.Random(seed).shuffle(heard)
    kept = catalog()
    for record in heard:
        kept.apply(record)
    expected = [("e", "cancelled"), ("d", "pending"), ("c", "cancelling"), ("b", "failed"), ("a", "completed")]
    assert entries_of(kept) == expected
    assert kept.active_by_status() == {"pending": 1, "in_progress": 0, "cancelling": 1}
    assert kept.ended_counts == {"completed": 1, "failed": 1, "cancelled": 1}


async def test_applies_stored_and_live_facts() -> None:
    journal = await journal_of(*life("old"))
    kept = catalog()
    async with following(kept, journal):
        await journal.append("default", Story("new").accepted())
        assert entries_of(kept) == [("new", "pending"), ("old", "in_progress")]
        assert kept.epoch == journal.epoch


async def test_facts_stored_during_the_replay_are_applied() -> None:
    journal = await journal_of(Story("first").accepted())
    read = journal.read

    async def slow(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        async for record in read(pattern, after, limit=limit):
            yield record
        if pattern == PATTERNS[0]:
            await journal.append("default", Story("meanwhile").accepted())
            await journal.append("default", Completed(deliberation_id="first", ts=NOW))

    journal.read = slow  # pyright: ignore[reportAttributeAccessIssue]
    kept = catalog()
    async with following(kept, journal):
        assert entries_of(kept) == [("meanwhile", "pending"), ("first", "completed")]


async def test_records_missed_while_disconnected_are_replayed() -> None:
    journal = await journal_of(Story("a").accepted())
    kept = catalog()
    async with following(kept, journal):
        deaf, journal._subscriptions[:] = list(journal._subscriptions), []  # pyright: ignore[reportPrivateUsage]
        await journal.append("default", Story("b").accepted())
        assert entries_of(kept) == [("a", "pending")]
        journal._subscriptions[:] = deaf  # pyright: ignore[reportPrivateUsage]
        journal.reconnect()
        await until(lambda: len(entries_of(kept)) == 2)


async def test_a_replaced_log_starts_a_new_catalog() -> None:
    journal = await journal_of(Story("a").accepted())
    kept = catalog()
    async with following(kept, journal):
        journal.records.clear()
        journal.epoch = "another"
        journal.reconnect()
        await until(lambda: kept.epoch == "another")
        assert entries_of(kept) == []


async def test_a_replaced_log_is_detected_without_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    journal = await journal_of(Story("a").accepted())
    kept = catalog()
    async with following(kept, journal):
        journal.records.clear()
        journal.epoch = "another"
        await until(lambda: kept.epoch == "another")
        assert entries_of(kept) == []


async def test_a_replay_starts_after_the_last_complete_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    journal = await journal_of(Story("a").accepted())
    kept = catalog()
    read, asked = journal.read, list[int]()

    def recorded(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        asked.append(after)
        return read(pattern, after, limit=limit)

    monkeypatch.setattr(journal, "read", recorded)
    async with following(kept, journal):
        for number in range(5):
            await journal.append("default", Story(f"b{number}").accepted())
        await until(lambda: kept._applied_to == 6)  # pyright: ignore[reportPrivateUsage]
        asked.clear()
        journal.reconnect()
        await until(lambda: len(asked) == len(PATTERNS))
    assert set(asked) == {6}


async def test_waits_for_an_unavailable_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.log.projection.RETRY_S", 0.001)
    journal = await journal_of(Story("a").accepted())
    journal.available = False
    kept = catalog()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(kept.follow(journal))
        await asyncio.sleep(0)
        assert not kept.caught_up
        journal.available = True
        await until(lambda: kept.caught_up)
        task.cancel()
    assert entries_of(kept) == [("a", "pending")]


def broken_off(journal: InMemoryJournal, after_records: int, then: Callable[[], None] = lambda: None) -> list[int]:
    """Have the first read of all acceptances break off after so many records, with what happens `then`.

    Returns, growing, after which sequence each read of acceptances began; the first is of what is unfinished.
    """
    read, asked = journal.read, list[int]()

    async def breaking(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        number = 0
        if pattern.endswith(".accepted"):
            asked.append(after)
        async for record in read(pattern, after, limit=limit):
            yield record
            number += 1
            if pattern.endswith(".accepted") and len(asked) == 2 and number == after_records:
                then()
                raise JournalUnavailable("away")

    journal.read = breaking
    return asked


async def test_an_interrupted_replay_resumes_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.log.projection.RETRY_S", 0.001)
    journal = await journal_of(*(fact for id in "abc" for fact in (Story(id).accepted(), Story(id).completed())))
    asked = broken_off(journal, 2)
    kept = catalog()
    async with following(kept, journal):
        assert asked == [6, 0, 3] and sorted(entries_of(kept)) == [(id, "completed") for id in "abc"]


async def test_a_truncated_log_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.log.projection.RETRY_S", 0.001)
    journal = await journal_of(*(fact for id in "abc" for fact in (Story(id).accepted(), Story(id).completed())))

    def lost() -> None:
        del journal.records[4:]
        journal._last_sequence = 4  # pyright: ignore[reportPrivateUsage]

    asked = broken_off(journal, 3, lost)
    kept = catalog()
    async with following(kept, journal):
        assert asked == [6, 0, 4, 0] and sorted(entries_of(kept)) == [("a", "completed"), ("b", "completed")]


async def test_unfinished_deliberations_are_loaded_first() -> None:
    journal = await journal_of(
        *(fact for id in "abc" for fact in life(id, Completed(deliberation_id=id, ts=NOW + timedelta(seconds=9)))),
        *life("d"),
        *life("e", Failed(deliberation_id="e", ts=NOW)),
        Story("f").accepted(),
    )
    going_on, kept, depths = held_back(journal), catalog(), set[int]()
    apply = kept.apply

    def watched(record: Record) -> None:
        apply(record)
        depths.add(kept.backlog.depth)

    kept.apply = watched
    async with asyncio.TaskGroup() as group:
        task = group.create_task(kept.follow(journal))
        await until(lambda: kept.backlog_known)
        assert not kept.caught_up and (kept.backlog.depth, len(kept.backlog.throughput().waiting)) == (2, 1)
        assert not kept.knows("default", "a"), "it ended long ago"
        depths.clear()
        going_on.set()
        await until(lambda: kept.caught_up)
        task.cancel()
    assert depths == {2}, "what had ended was never taken for unfinished"
    assert kept.stats("default").completed == 3


async def test_ends_before_the_start_count_for_the_throughput() -> None:
    journal = await journal_of()
    for number in range(40):
        story, at = Story(f"d{number}"), NOW + timedelta(seconds=number)
        await journal.append("default", story.accepted().model_copy(update={"ts": at}))
        await journal.append("default", story.completed().model_copy(update={"ts": at + timedelta(seconds=3)}))
    clock = FakeClock(NOW + timedelta(seconds=42))
    kept = catalog(clock)
    async with following(kept, journal):
        assert kept.backlog.throughput("DEV").observed_per_s(clock.now().timestamp()) == pytest.approx(1.0, rel=0.1)


async def test_a_replaced_log_is_listed_once_it_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.log.projection.RETRY_S", 0.001)
    journal = await journal_of(*life("a"))
    kept = catalog()
    async with following(kept, journal):
        going_on = held_back(journal)
        journal.records.clear()
        journal.epoch = "another"
        await journal.append("default", Story("b").accepted())
        journal.reconnect()
        await until(lambda: kept.epoch == "another" and kept.backlog_known)
        assert not kept.caught_up and kept.backlog.depth == 1
        going_on.set()
        await until(lambda: kept.caught_up)
        assert entries_of(kept) == [("b", "pending")]


async def test_an_unreadable_fact_is_left_out() -> None:
    kept = catalog()
    kept.apply(Record("deliberations.default.x.accepted", 1, b"not json"))
    assert entries_of(kept) == []


async def test_tenants_do_not_see_each_other() -> None:
    kept = catalog()
    for tenant in ("one", "two"):
        for record in (await journal_of(Story(f"of-{tenant}").accepted(), tenant=tenant)).records:
            kept.apply(record)
    assert entries_of(kept, "one") == [("of-one", "pending")]
    assert kept.stats("two").total == 1
    assert not kept.knows("one", "of-two")


async def test_removes_deliberations_past_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    clock = FakeClock(NOW)
    journal = await journal_of(*life("old"))
    kept = catalog(clock)
    async with following(kept, journal):
        clock.advance(3_601)
        await until(lambda: entries_of(kept) == [])
        assert sum(kept.active_by_status().values()) == 0


async def test_a_full_catalog_removes_the_oldest_ended_first() -> None:
    facts: list[Fact] = []
    for number in range(30):
        end = None if number == 0 else Completed(deliberation_id=f"d{number}", ts=NOW)
        facts += life(f"d{number}", end)
    kept = catalog(size_max=20)
    for record in (await journal_of(*facts)).records:
        kept.apply(record)
    ids = [id for id, _ in entries_of(kept)]
    assert len(ids) <= 20
    assert ids[0] == "d29"
    assert ids[-1] == "d0"  # it has not ended


async def test_statistics_cover_counts_durations_and_tokens() -> None:
    clock = FakeClock(NOW)
    kept = catalog(clock)
    facts: list[Fact] = []
    for number in range(1, 101):
        clock.present = NOW
        clock.advance(number)
        usage = TotalUsage(prompt_tokens=10, completion_tokens=5, cached_tokens=1, calls=1)
        facts += life(f"d{number}", Completed(deliberation_id=f"d{number}", ts=clock.now(), usage=usage))
    facts += life("f", Failed(deliberation_id="f", ts=clock.now()))
    facts += [Story("p").accepted()]
    for record in (await journal_of(*facts)).records:
        kept.apply(record)
    stats = kept.stats("default")
    assert stats.model_dump() == {
        "total": 102,
        "active": 1,
        "completed": 100,
        "failed": 1,
        "cancelled": 0,
        "timeout": 0,
        "seconds": {"mean": 50.5, "p50": 50.0, "p95": 95.0, "p99": 99.0},
        "tokens": {"prompt_tokens": 1_000, "completion_tokens": 500, "cached_tokens": 100},
    }
    empty: Any = catalog().stats("default")
    assert (empty.seconds.mean, empty.seconds.p99) == (None, None)
    assert kept.page("default", EVERYTHING, limit=1)[0][0].usage == Usage()


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([1.0], 0.01, 1.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0, 3.0], 0.99, 3.0)],
)
def test_percentiles_use_the_nearest_rank(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected


@pytest.mark.parametrize(
    ("held", "surplus", "left"),
    [
        ([10, 2, 3], 4, [6, 2, 3]),
        ([10, 8, 1], 10, [4, 4, 1]),
        ([10, 8, 1], 11, [3, 3, 1]),
        ([2, 2], 9, [0, 0]),
        ([5], 2, [3]),
        ([], 3, []),
    ],
)
def test_the_largest_tenants_lose_entries_first(held: list[int], surplus: int, left: list[int]) -> None:
    tenants = [[Entry(str(tenant), str(place), NOW) for place in range(count)] for tenant, count in enumerate(held)]
    gone = fair_surplus(tenants, surplus)
    counts = Counter(entry.tenant for entry in gone)
    assert [count - counts[str(tenant)] for tenant, count in enumerate(held)] == left
    assert all(entry.id < str(counts[entry.tenant]) for entry in gone if counts[entry.tenant] < 10), "the oldest"


async def test_a_large_tenant_does_not_evict_others() -> None:
    kept = catalog(size_max=100)
    journal = await journal_of(*life("theirs", Completed(deliberation_id="theirs", ts=NOW)), tenant="small")
    for number in range(150):
        for fact in life(f"l{number}", Completed(deliberation_id=f"l{number}", ts=NOW)):
            await journal.append("large", fact)
    async with following(kept, journal):
        assert entries_of(kept, "small") == [("theirs", "completed")]
        assert len(entries_of(kept, "large")) < 100
        assert kept.stats("small").total == 1
