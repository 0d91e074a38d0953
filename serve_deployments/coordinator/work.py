"""A deliberation in a coordinator's hands, and the facts that reach it."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import ValidationError

from app.deliberation.errors import Gone, JournalUnavailable, UnexpectedFact
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, CancelRequested, Deleted, Fact, Resumed, decode
from app.deliberation.fold import State
from app.deliberation.ports import Journal, Record
from app.log.work_queue import QueueItem
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket, TicketOutcome

HAND_OVER_WITHIN_S = 2.0


@dataclass(eq=False)
class Work:
    """A deliberation in hand: its delivery, and an inbox of facts that others wrote (None: some were missed).

    The delivery is kept alive up to `alive_until`: a stage that hangs beyond its deadline must not hide behind a
    heartbeat. `resumed` says that calls may have been made before. `apart` is held while little else that is suspected
    may run beside it. `stopping` says that no call is to be made again, `settled` that the log was read for what
    stopped calls had cost. `place` is its place at the `gate`, and `outcome` what is told there when it leaves.
    `takeovers` counts how often it had changed hands when it came, and `begun` says that calls may have been made and
    that no end has been written here.
    """

    tenant: str
    deliberation_id: str
    delivery: QueueItem
    resumed: bool
    alive_until: datetime
    task: asyncio.Task[None] | None = None
    apart: asyncio.Semaphore | None = None
    stopping: bool = False
    settled: bool = False
    begun: bool = False
    takeovers: int = 0
    gate: AdmissionQueue | None = None
    place: Ticket | None = None
    outcome: TicketOutcome = "stopped"
    inbox: asyncio.Queue[Record | None] = field(default_factory=asyncio.Queue[Record | None])

    def stepped(self) -> None:
        """The work has made a step, is over, or has been in hand for long enough: others may begin. Idempotent."""
        if self.apart is not None:
            self.apart.release()
            self.apart = None

    def left(self, now_s: float) -> None:
        """It is out of hand: another one may begin. Idempotent."""
        if self.gate is not None and self.place is not None:
            self.gate.leave(self.place, now_s, self.outcome)
            self.gate = self.place = None

    async def heard_before(self, event: asyncio.Event, within_s: float) -> list[Record | None]:
        """What reaches the inbox before the event is set and the time is over: at most one, for there may be more."""
        set_, heard = asyncio.ensure_future(event.wait()), asyncio.ensure_future(self.inbox.get())
        try:
            await asyncio.wait((set_, heard), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            return [heard.result()] if heard.done() else []
        finally:
            set_.cancel()
            heard.cancel()


def fact_of(record: Record) -> Fact:
    """The fact in a record; raises Gone when it is a tombstone, and UnexpectedFact when something else stands there."""
    try:
        event = decode(record.data)
    except ValidationError:
        # Not `from`: the validation error quotes what stands there, and with it a client's task.
        raise UnexpectedFact(f"what stands on {record.subject} is no fact") from None
    if isinstance(event, CallStarted | CallDelta):
        raise UnexpectedFact(f"a view stands on {record.subject}")
    if isinstance(event, Deleted):
        raise Gone(f"deliberation {event.deliberation_id} has been deleted")
    return event


def known(state: State, fact: Fact) -> bool:
    """Whether a fact that was heard is folded already; what is heard twice is one fact."""
    match fact:
        case CallFinished():
            return fact.call_id in state.finished
        case CancelRequested():
            return state.cancel is not None
        case _:
            return False


async def hand_over(journal: Journal, works: Iterable[Work], replica: str) -> None:
    """Record that these are given back because `replica` stops in order, so that none is blamed for the change.

    What somebody else has taken over by now has that number already, and nothing more is said of it. Unsaid, for want
    of a log, the work changes hands all the same, and is at worst blamed for it.
    """

    async def given_back(work: Work) -> None:
        fact = Resumed(
            deliberation_id=work.deliberation_id,
            ts=datetime.now(UTC),
            takeover=work.takeovers + 1,
            replica=replica,
            given_back=True,
        )
        with suppress(JournalUnavailable):
            await journal.append(work.tenant, fact)

    with suppress(TimeoutError):
        async with asyncio.timeout(HAND_OVER_WITHIN_S), asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(given_back(work))
