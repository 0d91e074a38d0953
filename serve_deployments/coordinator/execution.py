"""A deliberation that a coordinator holds, and its state there."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from pydantic import AwareDatetime, BaseModel, ValidationError

from app.deliberation.decider import Replay
from app.deliberation.errors import Gone, JournalUnavailable, UnexpectedFact, UnreadableFact
from app.deliberation.facts import Cancelled, Deleted, Fact, NewerEvent, Resumed, View, decode
from app.deliberation.fold import State
from app.deliberation.ports import Journal, Record
from app.log.work_queue import QueueItem, WorkQueue
from app.observability.trace_context import DeliberationTrace
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket

HAND_OVER_WITHIN_S = 2.0


class ExecutionState(Enum):
    WAITING = auto()
    RUNNING = auto()
    STOPPING = auto()
    ENDING = auto()
    RELEASED = auto()


_NEXT: dict[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.WAITING: frozenset({ExecutionState.RUNNING, ExecutionState.ENDING, ExecutionState.RELEASED}),
    ExecutionState.RUNNING: frozenset({ExecutionState.STOPPING, ExecutionState.ENDING, ExecutionState.RELEASED}),
    ExecutionState.STOPPING: frozenset({ExecutionState.ENDING, ExecutionState.RELEASED}),
    ExecutionState.ENDING: frozenset({ExecutionState.RELEASED}),
    ExecutionState.RELEASED: frozenset(),
}


@dataclass(eq=False)
class Execution:
    """A deliberation that this coordinator holds: its queue item, its state, and the facts that reach it.

        WAITING ───▶ RUNNING ───▶ STOPPING
           │            │            │
           └────────────┼────────────┘
                        ▼
                     ENDING ───▶ RELEASED      (any state may be RELEASED: requeued, hung, or deleted)

    WAITING: the coordinator has made no call. RUNNING: calls may have been made. STOPPING: no call is made again, and
    stopped calls record their cost. ENDING: this coordinator writes the end. RELEASED: others may hold the item.

    `state` is the fold of the known facts, set by `FactStore` alone. `inbox` holds facts that were received; None says
    that some were missed. `resumed` says that calls may have been made before. `takeovers` counts the takeovers up to
    this coordinator's own. `trace` is None where no spans are recorded. Heartbeats keep the item until `alive_until`;
    others get an item that hangs for longer.
    """

    tenant: str
    deliberation_id: str
    queue: WorkQueue
    item: QueueItem
    resumed: bool
    alive_until: datetime
    phase: ExecutionState = ExecutionState.WAITING
    takeovers: int = 0
    task: asyncio.Task[None] | None = None
    trace: DeliberationTrace | None = None
    state: State = field(init=False)
    inbox: asyncio.Queue[Record | None] = field(default_factory=asyncio.Queue[Record | None])
    replay: Replay = field(default_factory=Replay)
    _suspect_slot: asyncio.Semaphore | None = None
    _queue: AdmissionQueue | None = None
    _ticket: Ticket | None = None

    def enter(self, phase: ExecutionState) -> None:
        assert phase is self.phase or phase in _NEXT[self.phase], f"{phase} cannot follow {self.phase}"
        self.phase = phase

    def begin(self) -> None:
        if self.phase is ExecutionState.WAITING:
            self.enter(ExecutionState.RUNNING)

    def join(self, queue: AdmissionQueue, now_s: float) -> Ticket:
        self._queue, self._ticket = queue, queue.ask(now_s, self.tenant, begun=bool(self.state.stages))
        return self._ticket

    async def isolate(self, slots: asyncio.Semaphore) -> None:
        await slots.acquire()
        self._suspect_slot = slots

    def clear_suspicion(self) -> None:
        """It has made progress, has run for long enough, or is over: the next suspect may run. Idempotent."""
        if self._suspect_slot is not None:
            self._suspect_slot.release()
            self._suspect_slot = None

    def release(self, now_s: float) -> None:
        self.clear_suspicion()
        self.enter(ExecutionState.RELEASED)
        if self._queue is not None and self._ticket is not None:
            end = self.state.end
            stopped = end is None or isinstance(end, Cancelled)
            missed = end is not None and end.ts >= self.state.accepted.deadline_at
            outcome = "stopped" if stopped else "missed" if missed else "done"
            self._queue.leave(self._ticket, now_s, outcome)
            self._queue = self._ticket = None

    async def next_fact(self, event: asyncio.Event, within_s: float) -> list[Record | None]:
        """At most one item of the inbox; none when the event is set or the time is over before."""
        granted, received = asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.inbox.get())
        try:
            await asyncio.wait((granted, received), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            return [received.result()] if received.done() else []
        finally:
            granted.cancel()
            received.cancel()


class _Bounded(BaseModel):
    deadline_at: AwareDatetime


def deadline_of(acceptance: Record) -> datetime | None:
    """The deadline in an acceptance, even where the rest has another form; None without one."""
    try:
        return _Bounded.model_validate_json(acceptance.data).deadline_at
    except ValidationError:
        return None


def fact_of(record: Record) -> Fact | NewerEvent:
    """The fact in a record; raises Gone for a tombstone, UnreadableFact, and UnexpectedFact for a view."""
    try:
        event = decode(record.data)
    except ValidationError:
        # Not `from`: the validation error quotes the record, and with it a client's task.
        raise UnreadableFact(f"the record on {record.subject} is no fact") from None
    if isinstance(event, View):
        raise UnexpectedFact(f"a view stands on {record.subject}")
    if isinstance(event, Deleted):
        raise Gone(f"deliberation {event.deliberation_id} has been deleted")
    return event


async def hand_over(journal: Journal, executions: Iterable[Execution], replica: str) -> None:
    """Record that `replica` releases these executions because it stops in order, so that none is suspected.

    After another coordinator's takeover the fact is dropped. Without the log each execution counts as a suspect once.
    """

    async def record(execution: Execution) -> None:
        fact = Resumed(
            deliberation_id=execution.deliberation_id,
            ts=datetime.now(UTC),
            takeover=execution.takeovers + 1,
            replica=replica,
            given_back=True,
        )
        with suppress(JournalUnavailable):
            await journal.append(execution.tenant, fact)

    with suppress(TimeoutError):
        async with asyncio.timeout(HAND_OVER_WITHIN_S), asyncio.TaskGroup() as group:
            for execution in executions:
                if execution.phase in (ExecutionState.RUNNING, ExecutionState.STOPPING):
                    group.create_task(record(execution))
