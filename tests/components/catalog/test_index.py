"""The catalog is bounded, and independent of the order of facts."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from app.catalog.index import Catalog, patterns
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Cancelled, CancelRequested, Completed, Fact, Failed
from app.deliberation.ports import Record
from tests.components.catalog.catalogs import catalog, entries_of
from tests.conditions import until
from tests.fakes import FakeClock, InMemoryJournal, subject_matches
from tests.story import NOW, Story


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
    records = [r for r in journal.records if any(subject_matches(pattern, r.subject) for pattern in patterns(()))]
    heard = records + random.Random(seed).choices(records, k=5)
    random.Random(seed).shuffle(heard)
    kept = catalog()
    for record in heard:
        kept.apply(record)
    assert entries_of(kept) == [("d", "pending"), ("c", "cancelling")]
    ended = {"e": "cancelled", "b": "failed", "a": "completed"}
    assert {id: entry.status for id in ended if (entry := kept.find("default", id))} == ended
    assert kept.active_by_status() == {"pending": 1, "in_progress": 0, "cancelling": 1}


async def test_facts_stored_during_the_replay_are_applied() -> None:
    journal = await journal_of(Story("first").accepted())
    read = journal.read

    async def slow(pattern: str, after: int, *, limit: int | None = None) -> AsyncIterator[Record]:
        async for record in read(pattern, after, limit=limit):
            yield record
        if pattern == patterns(())[0]:
            await journal.append("default", Story("meanwhile").accepted())
            await journal.append("default", Completed(deliberation_id="first", ts=NOW))

    journal.read = slow  # pyright: ignore[reportAttributeAccessIssue]
    kept = catalog()
    async with following(kept, journal):
        assert entries_of(kept) == [("meanwhile", "pending")]
        assert await kept.ended("default", "first", 0)


async def test_a_replaced_log_is_detected_without_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    journal = await journal_of(Story("a").accepted())
    kept = catalog()
    async with following(kept, journal):
        journal.records.clear()
        journal.epoch = "another"
        await until(lambda: kept.epoch == "another")
        assert entries_of(kept) == []


async def test_a_log_that_lost_its_tail_is_read_anew() -> None:
    journal = await journal_of(*(Story(id).accepted() for id in "abc"))
    kept = catalog()
    async with following(kept, journal):
        del journal.records[2:]
        journal._last_sequence = 2  # pyright: ignore[reportPrivateUsage]
        journal.reconnect()
        await until(lambda: sorted(entries_of(kept)) == [("a", "pending"), ("b", "pending")])


async def test_an_end_without_its_acceptance_is_completed_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinators are done with both, and the acceptance is older than the facts that a start reads."""
    monkeypatch.setattr("app.catalog.index.RECENT_SEQUENCES", 1)
    journal = await journal_of(*life("a", Completed(deliberation_id="a", ts=NOW)))
    kept = catalog()
    async with following(kept, journal):
        assert entries_of(kept) == []
        entry = kept.find("default", "a")
        assert entry is not None and (entry.sequence, entry.started_sequence, entry.ended_sequence) == (1, 2, 3)


async def test_deliberations_that_were_forgotten_are_recalled_from_the_log() -> None:
    journal = await journal_of(*life("a", Completed(deliberation_id="a", ts=NOW)))
    kept = catalog()
    async with following(kept, journal):
        kept._past.clear()  # pyright: ignore[reportPrivateUsage]
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


async def test_removes_deliberations_past_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.catalog.index.CHECK_S", 0.001)
    clock = FakeClock(NOW)
    journal = await journal_of(*life("old"))
    kept = catalog(clock)
    async with following(kept, journal):
        clock.advance(3_601)
        await until(lambda: entries_of(kept) == [])
        assert sum(kept.active_by_status().values()) == 0


async def test_facts_of_an_ended_deliberation_that_was_forgotten_bring_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repeated request brings its acceptance again, and a late cancellation comes without it."""
    monkeypatch.setattr("app.catalog.index.PAST_MAX", 1)
    ended = [fact for id in "ab" for fact in life(id, Completed(deliberation_id=id, ts=NOW))]
    journal = await journal_of(*ended, Story("c").accepted())
    kept = catalog()
    async with following(kept, journal):
        assert kept.find("default", "a") is None
        for record in journal.records:
            kept.apply(record)
        await journal.append("default", CancelRequested(deliberation_id="a", ts=NOW))
        await kept.complete(journal, await journal.state())
        assert entries_of(kept) == [("c", "pending")] and kept.backlog.depth == 1
