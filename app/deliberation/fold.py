"""Folds the facts of a deliberation into its state. Only the facts are stored."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, assert_never

from pydantic import ValidationError

from app.deliberation.calls import Usage
from app.deliberation.errors import DeliberationDeleted, UnexpectedFact, UnreadableFact
from app.deliberation.facts import (
    TERMINAL_STATUS,
    Accepted,
    AgentUsage,
    CallFinished,
    Cancelled,
    CancelRequested,
    Completed,
    Deleted,
    End,
    Event,
    Fact,
    Failed,
    NewerEvent,
    Resumed,
    StageClosed,
    StageOpened,
    StageUsage,
    TimedOut,
    ToolStarted,
    ToolUsed,
    TotalUsage,
    decode,
)
from app.deliberation.ports import Record
from app.deliberation.specification import Purpose, Specification

PENDING, IN_PROGRESS, CANCELLING = "pending", "in_progress", "cancelling"
TERMINAL: frozenset[str] = frozenset(TERMINAL_STATUS.values())

_WORK = ("stage.opened", "call.finished", "tool.started", "tool.used", "stage.closed")
_LATE = ("deliberation.cancelling", "deliberation.resumed")

# The life of a deliberation: (status, fact) → status. `fold` raises on a pair that is missing here.
# docs/facts.md shows this table as a diagram (tests/unit/test_diagram.py).
TRANSITIONS: dict[tuple[str, str], str] = {
    ("", "deliberation.accepted"): PENDING,
    (PENDING, "stage.opened"): IN_PROGRESS,
    **{(IN_PROGRESS, kind): IN_PROGRESS for kind in _WORK},
    (PENDING, "deliberation.cancelling"): CANCELLING,
    (IN_PROGRESS, "deliberation.cancelling"): CANCELLING,
    # Calls that were running when the cancellation arrived may still record their outcomes.
    **{(CANCELLING, kind): CANCELLING for kind in _WORK},
    **{(status, kind): end for status in (PENDING, IN_PROGRESS, CANCELLING) for kind, end in TERMINAL_STATUS.items()},
    # A takeover changes no status.
    **{(status, "deliberation.resumed"): status for status in (PENDING, IN_PROGRESS, CANCELLING)},
    # A late outcome, cancellation or takeover is kept in the log and changes nothing.
    **{(status, kind): status for status in sorted(TERMINAL) for kind in (*_WORK, *_LATE)},
}


class ToolSum(NamedTuple):
    """An agent's uses of one tool; `tool` is empty for names that no tool of the agent has."""

    server: str
    tool: str
    uses: int = 0
    failed: int = 0
    bytes: int = 0
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    opened: StageOpened
    closed: StageClosed | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A deliberation as its facts describe it.

    `revision` counts the folded facts; `last_sequence` is the last one's sequence in the stream. `after_cancel` lists
    the calls with an outcome after the cancellation. `takeovers` counts all takeovers, `takeovers_without_progress`
    those since the last stage or call fact. A takeover from a coordinator that shut down in order (`given_back`) is not
    counted as one without progress.
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
    # By agent, server and tool. The facts alone hold results of tools.
    tools: dict[tuple[str, str, str], ToolSum] = field(default_factory=dict[tuple[str, str, str], ToolSum])

    @property
    def specification(self) -> Specification:
        return self.accepted.specification

    @property
    def deliberation_id(self) -> str:
        return self.accepted.deliberation_id

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def open_stage(self) -> Stage | None:
        return self.stages[-1] if self.stages and self.stages[-1].closed is None else None


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
    # The first write wins: a second outcome of a call is ignored.
    return state.finished if fact.call_id in state.finished else {**state.finished, fact.call_id: fact}


def _used(state: State, fact: ToolUsed) -> dict[tuple[str, str, str], ToolSum]:
    key = fact.agent_id, fact.server, fact.tool
    server, tool, uses, failed, size, duration_ms = state.tools.get(key, ToolSum(fact.server, fact.tool))
    duration_ms += fact.duration_ms
    return {**state.tools, key: ToolSum(server, tool, uses + 1, failed + fact.failed, size + fact.bytes, duration_ms)}


def begin(accepted: Accepted, sequence: int = 0) -> State:
    return State(accepted=accepted, status=TRANSITIONS["", accepted.type], last_sequence=sequence)


def apply(state: State, fact: Fact, sequence: int = 0) -> State:
    """The state after one more fact; raises UnexpectedFact if the table, or its stage or call, does not allow it."""
    if isinstance(fact, Accepted):
        raise UnexpectedFact(f"deliberation {fact.deliberation_id} is accepted twice")
    status = TRANSITIONS.get((state.status, fact.type))
    if status is None:
        raise UnexpectedFact(f"{fact.type} cannot follow while {state.status} (deliberation {state.deliberation_id})")
    return replace(
        state,
        status=status,
        revision=state.revision + 1,
        last_sequence=max(state.last_sequence, sequence),
        **_changes(state, fact),
    )


def _changes(
    state: State,
    fact: StageOpened | CallFinished | ToolStarted | ToolUsed | StageClosed | CancelRequested | Resumed | End,
) -> dict[str, Any]:
    match fact:
        case StageOpened():
            stages = _opened(state.stages, fact)
            return {"stages": stages, "started_at": state.started_at or fact.ts, "takeovers_without_progress": 0}
        case CallFinished():
            after_cancel = state.after_cancel if state.cancel is None else (*state.after_cancel, fact.call_id)
            finished = _finished(state, fact)
            return {"finished": finished, "after_cancel": after_cancel, "takeovers_without_progress": 0}
        case ToolStarted():
            return {"takeovers_without_progress": 0}
        case ToolUsed():
            return {"tools": _used(state, fact), "takeovers_without_progress": 0}
        case StageClosed():
            return {"stages": _closed(state, fact), "takeovers_without_progress": 0}
        case CancelRequested():
            return {"cancel": state.cancel or fact}
        case Resumed():
            blamed = 0 if fact.given_back or state.given_back else 1
            return {
                "takeovers": state.takeovers + 1,
                "takeovers_without_progress": state.takeovers_without_progress + blamed,
                "given_back": fact.given_back,
            }
        case Completed() | Failed() | Cancelled() | TimedOut():
            return {"end": fact}
        case _:
            assert_never(fact)


def fold(facts: Iterable[tuple[int, Fact | Deleted | NewerEvent]]) -> State | None:
    """Fold (sequence, fact) pairs in stream order; None when there are none. Skips facts of unknown types.

    Raises DeliberationDeleted for a tombstone, and UnexpectedFact.
    """
    state: State | None = None
    for sequence, fact in facts:
        if isinstance(fact, NewerEvent):
            continue
        if isinstance(fact, Deleted):
            raise DeliberationDeleted(f"Deliberation {fact.deliberation_id} has been deleted.")
        if state is None:
            if not isinstance(fact, Accepted):
                raise UnexpectedFact(f"the log of {fact.deliberation_id} begins with {fact.type}")
            state = begin(fact, sequence)
        else:
            state = apply(state, fact, sequence)
    return state


def decoded(data: bytes) -> Event | NewerEvent:
    """A stored event; raises UnreadableFact."""
    try:
        return decode(data)
    except ValidationError:
        # Without `from`, because the validation error quotes the fact, and with it a client's task.
        raise UnreadableFact("a stored fact does not decode") from None


def state_of(records: "Iterable[Record]") -> State | None:
    """Fold stored records; None without any. Raises as `fold` and `decoded` do."""
    return fold((record.sequence, decoded(record.data)) for record in records)  # pyright: ignore[reportArgumentType]


def usage(state: State) -> TotalUsage:
    stage_of = {planned.call_id: stage.opened for stage in state.stages for planned in stage.opened.calls}
    by_stage: dict[tuple[int, Purpose], list[Usage]] = defaultdict(list)
    by_agent: dict[str, list[Usage]] = defaultdict(list)
    for call_id, finished in state.finished.items():
        stage = stage_of[call_id]
        by_stage[stage.stage, stage.purpose].append(finished.usage)
        by_agent[finished.agent_id].append(finished.usage)
    return TotalUsage(
        **dict(Usage.total([finished.usage for finished in state.finished.values()])),
        by_stage=tuple(
            StageUsage(stage=n, purpose=of, **dict(Usage.total(by_stage[n, of]))) for n, of in sorted(by_stage)
        ),
        by_agent=tuple(AgentUsage(agent_id=agent, **dict(Usage.total(by_agent[agent]))) for agent in sorted(by_agent)),
    )
