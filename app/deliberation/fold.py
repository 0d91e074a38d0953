"""State is the fold of the facts, and nothing else is stored."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never

from app.deliberation.calls import Usage
from app.deliberation.errors import Gone, UnexpectedFact
from app.deliberation.facts import (
    Accepted,
    AgentUsage,
    CallFinished,
    Cancelled,
    CancelRequested,
    Completed,
    Deleted,
    End,
    Fact,
    Failed,
    Resumed,
    StageClosed,
    StageOpened,
    StageUsage,
    TimedOut,
    TotalUsage,
)
from app.deliberation.specification import Specification

PENDING, IN_PROGRESS, CANCELLING = "pending", "in_progress", "cancelling"
COMPLETED, FAILED, CANCELLED, TIMEOUT = "completed", "failed", "cancelled", "timeout"
TERMINAL: frozenset[str] = frozenset({COMPLETED, FAILED, CANCELLED, TIMEOUT})

_WORK = ("stage.opened", "call.finished", "stage.closed")
_LATE = ("deliberation.cancelling", "deliberation.resumed")
_ENDS = {
    "deliberation.completed": COMPLETED,
    "deliberation.failed": FAILED,
    "deliberation.cancelled": CANCELLED,
    "deliberation.timeout": TIMEOUT,
}

# The whole life of a deliberation: (status, fact) → status. A pair that is not here cannot happen; `fold` raises on it.
# The diagram in docs/facts.md is drawn from this table.
TRANSITIONS: dict[tuple[str, str], str] = {
    ("", "deliberation.accepted"): PENDING,
    (PENDING, "stage.opened"): IN_PROGRESS,
    **{(IN_PROGRESS, kind): IN_PROGRESS for kind in _WORK},
    (PENDING, "deliberation.cancelling"): CANCELLING,
    (IN_PROGRESS, "deliberation.cancelling"): CANCELLING,
    # Work that was under way when the request to stop arrived may still be recorded.
    **{(CANCELLING, kind): CANCELLING for kind in _WORK},
    **{(status, kind): end for status in (PENDING, IN_PROGRESS, CANCELLING) for kind, end in _ENDS.items()},
    # Who takes over begins nothing anew.
    **{(status, "deliberation.resumed"): status for status in (PENDING, IN_PROGRESS, CANCELLING)},
    # A late answer, a request to stop or a takeover that lost the race is kept and changes nothing.
    **{(status, kind): status for status in sorted(TERMINAL) for kind in (*_WORK, *_LATE)},
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage as far as the facts tell."""

    opened: StageOpened
    closed: StageClosed | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A deliberation as its facts tell it.

    `revision` counts the facts that are folded; `last_sequence` is the place of the last one in the stream.
    `after_cancel` are the calls whose outcome came after the request to stop. `takeovers` counts the times that the
    work changed hands, `takeovers_without_progress` the coordinators that took it over since its last step; but not
    those to whom one that stopped in order gave it (`given_back`), which is no sign against the work.
    """

    accepted: Accepted
    status: str
    revision: int = 1
    last_sequence: int = 0
    stages: tuple[Stage, ...] = ()
    finished: dict[str, CallFinished] = field(default_factory=dict[str, CallFinished])
    cancel: CancelRequested | None = None
    end: End | None = None
    started_at: datetime | None = None
    after_cancel: tuple[str, ...] = ()
    takeovers: int = 0
    takeovers_without_progress: int = 0
    given_back: bool = False

    @property
    def specification(self) -> Specification:
        """What was asked for."""
        return self.accepted.specification

    @property
    def deliberation_id(self) -> str:
        """The deliberation's id."""
        return self.accepted.deliberation_id

    @property
    def ended(self) -> bool:
        """Whether the one end fact is there."""
        return self.end is not None

    @property
    def open_stage(self) -> Stage | None:
        """The stage whose calls run now."""
        return self.stages[-1] if self.stages and self.stages[-1].closed is None else None


def _moved(state: State, fact: Fact) -> str:
    status = TRANSITIONS.get((state.status, fact.type))
    if status is None:
        raise UnexpectedFact(f"{fact.type} cannot follow while {state.status} (deliberation {state.deliberation_id})")
    return status


def _opened(stages: tuple[Stage, ...], fact: StageOpened) -> tuple[Stage, ...]:
    if fact.stage != len(stages) + 1 or (stages and stages[-1].closed is None):
        raise UnexpectedFact(f"stage {fact.stage} opens after {len(stages)} stages, the last of them open or missing")
    return (*stages, Stage(opened=fact))


def _closed(state: State, fact: StageClosed) -> tuple[Stage, ...]:
    stage = state.open_stage
    if stage is None or fact.stage != stage.opened.stage:
        raise UnexpectedFact(f"stage {fact.stage} closes while it is not the open one")
    planned = {call.call_id for call in stage.opened.calls}
    unknown = [call_id for call_id in fact.seen if call_id not in planned or call_id not in state.finished]
    if unknown:
        raise UnexpectedFact(f"stage {fact.stage} closes on outcomes that are not recorded: {', '.join(unknown)}")
    return (*state.stages[:-1], replace(stage, closed=fact))


def _finished(state: State, fact: CallFinished) -> dict[str, CallFinished]:
    stage = next((stage.opened for stage in state.stages if stage.opened.stage == fact.stage), None)
    if stage is None or fact.call_id not in (call.call_id for call in stage.calls):
        raise UnexpectedFact(f"stage {fact.stage} has no call {fact.call_id}")
    # First write wins: an outcome that is told twice is the one that was recorded first.
    return state.finished if fact.call_id in state.finished else {**state.finished, fact.call_id: fact}


def begin(accepted: Accepted, sequence: int = 0) -> State:
    """The state after the first fact."""
    return State(accepted=accepted, status=TRANSITIONS["", accepted.type], last_sequence=sequence)


def apply(state: State, fact: Fact, sequence: int = 0) -> State:
    """The state after one more fact.

    Raises UnexpectedFact when the table does not allow it, or when it tells of a stage or a call that is not there.
    """
    if isinstance(fact, Accepted):
        raise UnexpectedFact(f"deliberation {fact.deliberation_id} is accepted twice")
    state = replace(
        state, status=_moved(state, fact), revision=state.revision + 1, last_sequence=max(state.last_sequence, sequence)
    )
    match fact:
        case StageOpened():
            stages = _opened(state.stages, fact)
            return replace(state, stages=stages, started_at=state.started_at or fact.ts, takeovers_without_progress=0)
        case CallFinished():
            after_cancel = state.after_cancel if state.cancel is None else (*state.after_cancel, fact.call_id)
            return replace(
                state, finished=_finished(state, fact), after_cancel=after_cancel, takeovers_without_progress=0
            )
        case StageClosed():
            return replace(state, stages=_closed(state, fact), takeovers_without_progress=0)
        case CancelRequested():
            return replace(state, cancel=state.cancel or fact)
        case Resumed():
            blamed = 0 if fact.given_back or state.given_back else 1
            return replace(
                state,
                takeovers=state.takeovers + 1,
                takeovers_without_progress=state.takeovers_without_progress + blamed,
                given_back=fact.given_back,
            )
        case Completed() | Failed() | Cancelled() | TimedOut():
            return replace(state, end=fact)
        case _:
            assert_never(fact)


def fold(facts: Iterable[tuple[int, Fact | Deleted]]) -> State | None:
    """Fold (sequence, fact) pairs in stream order; None when there are none.

    Raises Gone when a tombstone is among them, and UnexpectedFact when the log does not begin with `accepted` or breaks
    the transition table.
    """
    state: State | None = None
    for sequence, fact in facts:
        if isinstance(fact, Deleted):
            raise Gone(f"Deliberation {fact.deliberation_id} has been deleted.")
        if state is None:
            if not isinstance(fact, Accepted):
                raise UnexpectedFact(f"the log of {fact.deliberation_id} begins with {fact.type}")
            state = begin(fact, sequence)
        else:
            state = apply(state, fact, sequence)
    return state


def usage(state: State) -> TotalUsage:
    """Tokens and engine requests of every recorded call, by stage and by agent; both sum to the total."""
    stage_of = {planned.call_id: stage.opened for stage in state.stages for planned in stage.opened.calls}
    by_stage: dict[int, StageUsage] = {}
    by_agent: dict[str, AgentUsage] = {}
    total = Usage()
    for call_id, finished in state.finished.items():
        opened = stage_of[call_id]
        spent = finished.usage
        total = total + spent
        stage = by_stage.get(opened.stage, StageUsage(stage=opened.stage, purpose=opened.purpose))
        by_stage[opened.stage] = stage.model_copy(update=(stage + spent).model_dump())
        agent = by_agent.get(finished.agent_id, AgentUsage(agent_id=finished.agent_id))
        by_agent[finished.agent_id] = agent.model_copy(update=(agent + spent).model_dump())
    return TotalUsage(
        **total.model_dump(),
        by_stage=tuple(by_stage[stage] for stage in sorted(by_stage)),
        by_agent=tuple(by_agent[agent] for agent in sorted(by_agent)),
    )
