"""Obeys the decider: the coordinator's loop without its log, and the moments for which both wait."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import assert_never

from app.deliberation.decider import (
    CloseStage,
    Done,
    Finish,
    OpenStage,
    RunStage,
    StrategyDefinition,
    closing_cause,
    decide,
)
from app.deliberation.facts import CallFinished, Event, View
from app.deliberation.fold import State, apply


def waits_for_calls(state: State, now: datetime) -> bool:
    """Whether only outcomes, a cancellation or a deadline can change what `decide` says: a stage is open."""
    stage = state.open_stage
    if stage is None or state.ended or all_stopped(state, now):
        return False
    return closing_cause(stage, state.finished, now) is None


def all_stopped(state: State, now: datetime) -> bool:
    return state.cancel is not None or now >= state.accepted.deadline_at


def awaits_stopped_calls(state: State, now: datetime) -> bool:
    stopped = [stage for stage in state.stages if stage.closed is not None or all_stopped(state, now)]
    return any(call.call_id not in state.finished for stage in stopped for call in stage.opened.calls)


def next_moment(state: State, now: datetime) -> datetime:
    """The first moment after `now` at which time alone changes what `decide` says; at last the deadline, also past."""
    stage, deadline_at = state.open_stage, state.accepted.deadline_at
    moments = (stage.opened.soft_deadline_at, stage.opened.call_deadline_at) if stage else ()
    return min((moment for moment in moments if now < moment < deadline_at), default=deadline_at)


def drive(
    state: State,
    definition: StrategyDefinition,
    clock: Callable[[], datetime],
    run: Callable[[State, RunStage], Iterable[CallFinished | View]],
) -> Iterator[Event]:
    """Every event that follows `state`, up to the end. Raises what `decide` and `apply` raise.

    `run` returns what a stage's calls bring until the stage may close: outcomes, and views if they are wanted. Each
    event is yielded before the next one is made, so that a clock may move in between.
    """
    sequence = state.last_sequence
    while True:
        stage: RunStage | None = None
        decision = decide(state, clock(), definition)
        match decision:
            case OpenStage(fact, stage):
                facts = (fact,)
            case CloseStage(fact) | Finish(fact):
                facts = (fact,)
            case RunStage():
                facts, stage = (), decision
            case Done():
                return
            case _:
                assert_never(decision)
        for fact in facts:
            sequence += 1
            yield fact
            state = apply(state, fact, sequence)
        for event in run(state, stage) if stage else ():
            sequence += 1
            yield event
            if isinstance(event, CallFinished):
                state = apply(state, event, sequence)
