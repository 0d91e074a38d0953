import asyncio
from itertools import product

import pytest

from app.deliberation.facts import Cancelled, Completed, Failed, TimedOut
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket, TicketOutcome
from serve_deployments.coordinator.work import Work, WorkState
from tests.components.coordinator.works import running, work_of
from tests.unit.facts_of import TIMEOUT_S, end, in_seconds, opened

WAITING, RUNNING, STOPPING, ENDING, RELEASED = WorkState
ALLOWED = {
    (WAITING, RUNNING),
    (WAITING, ENDING),
    (RUNNING, STOPPING),
    (RUNNING, ENDING),
    (STOPPING, ENDING),
    *((state, RELEASED) for state in WorkState),
    *((state, state) for state in WorkState),
}


@pytest.mark.parametrize(("before", "after"), product(WorkState, WorkState))
def test_a_work_enters_only_allowed_states(before: WorkState, after: WorkState) -> None:
    work = running()
    work.phase = before
    if (before, after) in ALLOWED:
        work.enter(after)
        assert work.phase is after
    else:
        with pytest.raises(AssertionError, match="cannot follow"):
            work.enter(after)


async def test_a_suspect_holds_its_slot_until_it_is_cleared_or_released() -> None:
    slots = asyncio.Semaphore(1)

    async def suspect() -> Work:
        work = running()
        await work.isolate(slots)
        return work

    first = await suspect()
    second = asyncio.create_task(suspect())
    await asyncio.sleep(0)
    assert not second.done()
    first.clear_suspicion()
    first.clear_suspicion()
    work = await second
    assert slots.locked()
    work.release(0.0)
    work.release(0.0)
    assert not slots.locked()


class RecordingQueue(AdmissionQueue):
    def __init__(self) -> None:
        super().__init__(4)
        self.outcomes: list[TicketOutcome] = []

    def leave(self, ticket: Ticket, now_s: float, outcome: TicketOutcome) -> None:
        self.outcomes.append(outcome)
        super().leave(ticket, now_s, outcome)


@pytest.mark.parametrize(
    ("kind", "after_s", "outcome"),
    [
        (Completed, TIMEOUT_S - 1, "done"),
        (Completed, TIMEOUT_S, "missed"),
        (TimedOut, TIMEOUT_S, "missed"),
        (Failed, 1, "done"),
        (Cancelled, TIMEOUT_S, "stopped"),
        (None, TIMEOUT_S, "stopped"),
    ],
)
def test_a_work_that_ends_after_its_deadline_missed_it_also_with_a_verdict(
    kind: type[Completed | Failed | Cancelled | TimedOut] | None, after_s: float, outcome: TicketOutcome
) -> None:
    facts = [] if kind is None else [end(kind).model_copy(update={"ts": in_seconds(after_s)})]
    work, queue = work_of(opened(), *facts), RecordingQueue()
    work.join(queue, 0.0)
    work.release(1.0)
    assert queue.outcomes == [outcome]
