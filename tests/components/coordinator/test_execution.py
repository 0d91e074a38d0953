import asyncio
from itertools import product

import pytest

from app.deliberation.facts import Cancelled, Completed, Failed, TimedOut
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket, TicketOutcome
from serve_deployments.coordinator.execution import Execution, ExecutionState
from tests.components.coordinator.executions import execution_of, running
from tests.unit.facts_of import TIMEOUT_S, end, in_seconds, opened

WAITING, RUNNING, STOPPING, ENDING, RELEASED = ExecutionState
ALLOWED = {
    (WAITING, RUNNING),
    (WAITING, ENDING),
    (RUNNING, STOPPING),
    (RUNNING, ENDING),
    (STOPPING, ENDING),
    *((state, RELEASED) for state in ExecutionState),
    *((state, state) for state in ExecutionState),
}


@pytest.mark.parametrize(("before", "after"), product(ExecutionState, ExecutionState))
def test_an_execution_enters_only_allowed_states(before: ExecutionState, after: ExecutionState) -> None:
    execution = running()
    execution.phase = before
    if (before, after) in ALLOWED:
        execution.enter(after)
        assert execution.phase is after
    else:
        with pytest.raises(AssertionError, match="cannot follow"):
            execution.enter(after)


async def test_a_suspect_holds_its_slot_until_it_is_cleared_or_released() -> None:
    slots = asyncio.Semaphore(1)

    async def suspect() -> Execution:
        execution = running()
        await execution.isolate(slots)
        return execution

    first = await suspect()
    second = asyncio.create_task(suspect())
    await asyncio.sleep(0)
    assert not second.done()
    first.clear_suspicion()
    first.clear_suspicion()
    execution = await second
    assert slots.locked()
    execution.release(0.0)
    execution.release(0.0)
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
    execution, queue = execution_of(opened(), *facts), RecordingQueue()
    execution.join(queue, 0.0)
    execution.release(1.0)
    assert queue.outcomes == [outcome]
