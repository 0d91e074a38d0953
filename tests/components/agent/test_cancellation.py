import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from unittest.mock import patch

import pytest

from app.deliberation.facts import CancelRequested, Completed, Fact, Resumed, StageClosed
from app.deliberation.ports import Record
from serve_deployments.agent.cancellation import CancellationListener
from tests.conditions import until
from tests.fakes import InMemoryJournal

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def cancel(deliberation_id: str) -> CancelRequested:
    return CancelRequested(deliberation_id=deliberation_id, ts=NOW)


def closed(deliberation_id: str, stage: int) -> StageClosed:
    return StageClosed(
        deliberation_id=deliberation_id, ts=NOW, stage=stage, purpose="propose", round=0, seen=(), reason="all"
    )


class CountingJournal(InMemoryJournal):
    reads = 0

    async def last(self, patterns: Sequence[str]) -> list[Record]:
        self.reads += 1
        return await super().last(patterns)


def stop_nothing(deliberation_id: str, stage: float, why: str) -> None:
    """A replica without running calls."""


@pytest.mark.parametrize(
    ("fact", "stopped", "runs"),
    [
        (cancel("d"), [1, 2, 9], []),
        (Completed(deliberation_id="d", ts=NOW), [1, 2, 9], []),
        (closed("d", 2), [1, 2], [3, 9]),
        (Resumed(deliberation_id="d", ts=NOW, takeover=1, replica="r"), [], [1, 2, 9]),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_hears_stops_stored_before_and_after_it_subscribes(
    fact: Fact, stopped: list[int], runs: list[int], when: str
) -> None:
    journal = InMemoryJournal()
    stops = CancellationListener(journal, stop_nothing)
    if when == "before":
        await journal.append("default", fact)
    await stops.watch("default", "d", accepted_sequence=0)
    if when == "after":
        await journal.append("default", fact)
    assert all(stops.why("d", stage) for stage in stopped)
    assert not any(stops.why("d", stage) for stage in runs)
    assert not stops.why("another", 1)
    assert stops.taken_over("d") == isinstance(fact, Resumed)


async def test_reads_an_older_deliberation_once_and_a_newer_one_never() -> None:
    journal = CountingJournal()
    await journal.append("default", cancel("old"))
    stops = CancellationListener(journal, stop_nothing)
    for _ in range(3):
        await stops.watch("default", "old", accepted_sequence=0)
    assert journal.reads == 1
    await stops.watch("default", "new", accepted_sequence=1)
    assert journal.reads == 1


async def test_reads_a_forgotten_deliberation_again() -> None:
    journal = CountingJournal()
    stops = CancellationListener(journal, stop_nothing)
    with patch("serve_deployments.agent.cancellation.REMEMBERED_MAX", 2):
        await stops.watch("default", "d1", accepted_sequence=0)
        for name in ("d1", "d2", "d3"):
            await journal.append("default", cancel(name))
        assert stops.why("d1", 1) is None and stops.why("d3", 1) is not None
        await stops.watch("default", "d1", accepted_sequence=0)
    assert stops.why("d1", 1) is not None and journal.reads == 1


async def test_a_stop_stored_without_a_connection_stops_running_calls() -> None:
    journal = InMemoryJournal()
    stopped: list[tuple[str, float, str]] = []

    def stop(deliberation_id: str, stage: float, why: str) -> None:
        stopped.append((deliberation_id, stage, why))

    stops = CancellationListener(journal, stop)
    await stops.watch("default", "d", accepted_sequence=0)
    keeping = asyncio.create_task(stops.keep(lambda: {("default", "d")}, lambda: False))
    journal.records.append((await InMemoryJournal().append("default", cancel("d"))).record)
    assert stopped == []
    journal.reconnect()
    await until(lambda: bool(stopped))
    assert stopped == [("d", float("inf"), "stopped on request")]
    keeping.cancel()
    await asyncio.wait({keeping})


async def test_unsubscribes_while_idle_and_subscribes_again() -> None:
    journal = InMemoryJournal()
    stops = CancellationListener(journal, stop_nothing)
    await stops.watch("default", "d", accepted_sequence=0)
    with patch("serve_deployments.agent.cancellation.IDLE_AFTER_S", 0.01):
        keeping = asyncio.create_task(stops.keep(set, lambda: True))
        await until(lambda: not journal.listeners)
        keeping.cancel()
        await asyncio.wait({keeping})
    await journal.append("default", cancel("d"))
    assert stops.why("d", 1) is None
    await stops.watch("default", "d", accepted_sequence=0)
    assert stops.why("d", 1) is not None
