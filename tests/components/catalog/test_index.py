"""The catalog is bounded, and independent of the order of facts."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from app.admission.backlog import Backlog
from app.catalog.index import PATTERNS, Catalog
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Cancelled, CancelRequested, Completed, Deleted, Fact, Failed
from app.deliberation.ports import Record
from app.testing import FakeClock, InMemoryJournal, subject_matches
from tests.conditions import until
from tests.story import NOW, Story


def catalog(clock: FakeClock | None = None, *, archived: bool = True, size_max: int = 1_000) -> Catalog:
    clock = clock or FakeClock(NOW)
    return Catalog(clock, Backlog(clock, 1_000, {}), retention_s=3_600, archived=archived, size_max=size_max)


def entries_of(kept: Catalog, tenant: str = "default") -> list[tuple[str, str]]:
    """What is in memory, newest first."""
    kept.caught_up = True
    return [(entry.id, entry.status) for entry in reversed(kept.recent(tenant).entries)]


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


async def test_a_log_that_lost_its_tail_is_read_anew() -> None:
    journal = await journal_of(*(fact for id in "abc" for fact in (Story(id).accepted(), Story(id).completed())))
    kept = catalog()
    async with following(kept, journal):
        del journal.records[4:]
        journal._last_sequence = 4  # pyright: ignore[reportPrivateUsage]
        journal.reconnect()
        await until(lambda: sorted(entries_of(kept)) == [("a", "completed"), ("b", "completed")])


async def test_a_start_reads_what_runs_and_what_the_archive_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.RECENT_SEQUENCES", 0)
    ends = {id: Completed(deliberation_id=id, ts=NOW) for id in "abcd"}
    journal = await journal_of(*life("a", ends["a"]), *life("b"), *life("c"), ends["b"], *life("d", ends["d"]))
    journal.archived_to = 7
    read, asked = journal.read, list[int]()

    def recorded(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        asked.append(after)
        return read(pattern, after, limit=limit)

    monkeypatch.setattr(journal, "read", recorded)
    kept = catalog()
    async with following(kept, journal):
        assert entries_of(kept) == [("d", "completed"), ("c", "in_progress"), ("b", "completed")]
        assert set(asked) == {5}, "the acceptance of b is at the coordinators' floor"
        assert kept.backlog.depth == 1


async def test_an_end_without_its_acceptance_is_completed_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has the acceptance and lacks the end; the coordinators are done with both."""
    monkeypatch.setattr("app.catalog.index.RECENT_SEQUENCES", 0)
    journal = await journal_of(*life("a", Completed(deliberation_id="a", ts=NOW)))
    journal.archived_to = 2
    kept = catalog()
    async with following(kept, journal):
        assert entries_of(kept) == [("a", "completed")]
        entry = kept.find("default", "a")
        assert entry is not None and (entry.sequence, entry.started_sequence, entry.ended_sequence) == (1, 2, 3)


async def test_a_start_far_behind_the_archive_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    monkeypatch.setattr("app.catalog.index.RECENT_SEQUENCES", 0)
    facts = [fact for n in range(30) for fact in life(f"d{n}", Completed(deliberation_id=f"d{n}", ts=NOW))]
    journal = await journal_of(*facts, Story("runs").accepted())
    kept = catalog(size_max=50)
    async with following(kept, journal):
        assert entries_of(kept) == [("runs", "pending")] and not kept.recent("default").whole
        journal.archived_to = 91
        await until(lambda: kept.recent("default").whole)


@pytest.mark.parametrize("archived", [True, False])
async def test_what_ended_is_forgotten_once_the_archive_has_it(archived: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    journal = await journal_of(Story("runs").accepted())
    kept = catalog(archived=archived)
    async with following(kept, journal):
        for fact in (
            *life("a", Completed(deliberation_id="a", ts=NOW)),
            *life("b", Failed(deliberation_id="b", ts=NOW)),
        ):
            await journal.append("default", fact)
        await journal.append("default", Deleted(deliberation_id="b", ts=NOW))
        if archived:
            journal.archived_to = 4
            await until(lambda: kept.recent("default").ids == {"runs", "b"})
            assert entries_of(kept) == [("runs", "pending")]
            journal.archived_to = 8
        await until(lambda: kept.recent("default").ids == {"runs"})
        assert kept.ended_counts == {"completed": 1, "failed": 1}
        for record in journal.records:
            kept.apply(record)
        assert kept.recent("default").ids == {"runs"}, "old facts that come again bring nothing back"


async def test_a_late_fact_brings_the_whole_deliberation_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    journal = await journal_of()
    kept = catalog()
    async with following(kept, journal):
        for fact in life("a", Completed(deliberation_id="a", ts=NOW)):
            await journal.append("default", fact)
        journal.archived_to = 3
        await until(lambda: entries_of(kept) == [])
        monkeypatch.setattr("app.catalog.index.CHECK_S", 60)
        await journal.append("default", CancelRequested(deliberation_id="a", ts=NOW))
        await kept.complete(journal, await journal.state())
        assert entries_of(kept) == [("a", "completed")]


async def test_deliberations_that_were_forgotten_are_recalled_from_the_log() -> None:
    journal = await journal_of(*life("a", Completed(deliberation_id="a", ts=NOW)))
    kept = catalog(archived=False)
    async with following(kept, journal):
        assert kept.find("default", "a") is None
        await kept.recall(journal, "default", ["a", "unknown"])
        entry = kept.find("default", "a")
        assert entry is not None and [entry.status_at(n) for n in range(4)] == [
            None, "pending", "in_progress", "completed",
        ]  # fmt: skip
        assert kept.find("default", "unknown") is None and entries_of(kept) == []


async def test_a_page_knows_what_was_stored_before_it_was_asked_for() -> None:
    journal = await journal_of(Story("a").accepted())
    kept = catalog()
    async with following(kept, journal):
        journal._subscriptions.clear()  # pyright: ignore[reportPrivateUsage]
        await journal.append("default", Story("b").accepted())
        await kept.complete(journal, await journal.state())
        assert entries_of(kept) == [("b", "pending"), ("a", "pending")]
        journal.epoch = "another"
        with pytest.raises(JournalUnavailable, match="replaced"):
            await kept.complete(journal, await journal.state())


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


async def test_an_unreadable_fact_is_left_out() -> None:
    kept = catalog()
    kept.apply(Record("deliberations.default.x.accepted", 1, b"not json"))
    assert entries_of(kept) == []


async def test_facts_on_subjects_that_no_deliberation_has_are_left_out() -> None:
    journal = await journal_of(Story("a").accepted())
    end = journal.records[0].data
    for subject in ("deliberations.ACME.x.end", "deliberations.default.x!.accepted"):
        await journal.write(subject, end)
    kept = catalog()
    async with following(kept, journal):
        assert entries_of(kept) == [("a", "pending")]


async def test_tenants_do_not_see_each_other() -> None:
    kept = catalog()
    for tenant in ("one", "two"):
        for record in (await journal_of(Story(f"of-{tenant}").accepted(), tenant=tenant)).records:
            kept.apply(record)
    assert entries_of(kept, "one") == [("of-one", "pending")]
    assert kept.find("one", "of-two") is None


async def test_removes_deliberations_past_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    clock = FakeClock(NOW)
    journal = await journal_of(*life("old"))
    kept = catalog(clock)
    async with following(kept, journal):
        clock.advance(3_601)
        await until(lambda: entries_of(kept) == [])
        assert sum(kept.active_by_status().values()) == 0


async def test_beyond_its_bound_the_oldest_ends_are_forgotten_first() -> None:
    facts: list[Fact] = []
    for number in range(30):
        end = None if number == 0 else Completed(deliberation_id=f"d{number}", ts=NOW)
        facts += life(f"d{number}", end)
    kept = catalog(size_max=20)
    for record in (await journal_of(*facts)).records:
        kept.apply(record)
    ids = [id for id, _ in entries_of(kept)]
    assert len(ids) <= 21 and ids[0] == "d29"
    assert ids[-1] == "d0", "it has not ended"
    assert not kept.recent("default").whole


async def test_tombstones_count_for_the_bound() -> None:
    kept, journal = catalog(size_max=10), InMemoryJournal()
    for number in range(40):
        await journal.append("default", Deleted(deliberation_id=f"d{number}", ts=NOW))
    for record in journal.records:
        kept.apply(record)
    kept.caught_up = True
    assert len(kept.recent("default").ids) <= 10 and not kept.recent("default").whole
