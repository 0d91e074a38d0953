"""Replays a strategy over the facts and decides the next step (ARCHITECTURE.md, "Deciding is pure")."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from app.deliberation.actions import with_ids
from app.deliberation.budget import allotted, refused_by, spent_on, stage_deadlines
from app.deliberation.calls import Ask, Call, Cost, FactProblem
from app.deliberation.citations import citations
from app.deliberation.contributions import participation
from app.deliberation.errors import (
    DeadlineExceeded,
    DeliberationError,
    InvalidOutput,
    Poisoned,
    StrategyDrift,
    UnknownStrategy,
)
from app.deliberation.facts import (
    Action,
    CallFinished,
    Cancelled,
    Cause,
    Completed,
    CutStage,
    Degraded,
    Dissent,
    End,
    Failed,
    PlannedCall,
    StageClosed,
    StageOpened,
    Standing,
    StrategyRef,
    Tally,
    TimedOut,
    Verdict,
)
from app.deliberation.fold import Stage, State, usage
from app.deliberation.outputs import ParsedOutput, parse_output
from app.deliberation.specification import Budget, Parameters, Specification

# After this many takeovers without a recorded step in between, the deliberation ends as poisoned.
POISON_TAKEOVERS = 5

_Output = TypeVar("_Output", bound=ParsedOutput)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of a stage that were seen, by call id. `admitted` is False when budget or time refused the stage."""

    seen: Mapping[str, CallFinished]
    admitted: bool = True

    def answer(self, call: Call) -> ParsedOutput | None:
        finished = self.seen.get(call.call_id)
        if finished is None or finished.text is None or finished.problem is not None:
            return None
        try:
            return parse_output(call.output, finished.text)
        except InvalidOutput:
            # The replica checked it before it recorded it, so only a foreign or older writer causes this.
            return None

    def answers(self, calls: Sequence[Call], form: type[_Output]) -> list[tuple[Call, _Output]]:
        return [(call, output) for call in calls if isinstance(output := self.answer(call), form)]


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A strategy's result: the content of the verdict, and in `degraded` each way in which it falls short."""

    winner: str | None
    content: str | None
    call_id: str | None = None
    ranking: tuple[Standing, ...] = ()
    margin: float | None = None
    tie: bool = False
    dissent: tuple[Dissent, ...] = ()
    agreement: float | None = None
    effective_votes: float | None = None
    tally: tuple[Tally, ...] = ()
    action: Action | None = None
    agreed: bool | None = None
    degraded: tuple[str, ...] = ()


Strategy = Generator[Ask, Outcomes, Conclusion]


@dataclass(frozen=True, slots=True)
class StrategyDefinition:
    """A strategy as `GET /strategies` describes it. `version` changes whenever its calls or prompts change.

    `parameters` is the model of the request's `parameters`; `rounds` is False when the strategy ignores rounds.
    `formula` counts calls; `tool_calls` counts the calls that may use tools. Such a call makes one more request to an
    engine after each use. `size` is the council's size where a request gives none; None leaves the size to the gateway.
    `steps` are purposes in order: ` × R` repeats one in each round, other words after ` × ` are for readers. `test`
    refuses `answer_schema`.
    """

    name: str
    version: int
    summary: str
    steps: tuple[str, ...]
    formula: str
    source: str
    tool_calls: str
    run: Callable[[Specification], Strategy]
    parameters: type[Parameters] = Parameters
    rounds: bool = False
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RunStage:
    """Run `calls`, which lack an outcome, of all `stage_calls`, until each has one or `deadline_at` passes."""

    opened: StageOpened
    calls: tuple[Call, ...]
    deadline_at: datetime
    stage_calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenStage:
    fact: StageOpened
    run: RunStage


@dataclass(frozen=True, slots=True)
class CloseStage:
    fact: StageClosed


@dataclass(frozen=True, slots=True)
class Finish:
    fact: End


@dataclass(frozen=True, slots=True)
class Done:
    """The deliberation has ended; nothing is left to do."""


Decision = OpenStage | RunStage | CloseStage | Finish | Done


def problem_of(error: DeliberationError) -> FactProblem:
    return FactProblem(code=error.code, detail=str(error) or error.code, retryable=error.retryable)


def _finish(kind: type[End], state: State, now: datetime, **fields: Any) -> Finish:  # noqa: ANN401 -- of the fact
    known = {"deliberation_id": state.deliberation_id, "ts": now, "usage": usage(state)}
    return Finish(kind(**known, participation=participation(state), **fields))


def failed(state: State, now: datetime, error: DeliberationError) -> Finish:
    return _finish(Failed, state, now, problem=problem_of(error))


def closing_cause(stage: Stage, finished: Mapping[str, CallFinished], now: datetime) -> Cause | None:
    """The reason to close an open stage now: all outcomes, a quorum, or a deadline; None while it stays open."""
    outcomes = [finished[call.call_id] for call in stage.opened.calls if call.call_id in finished]
    if len(outcomes) == len(stage.opened.calls):
        return "all"
    answers = sum(outcome.answered for outcome in outcomes)
    if now >= stage.opened.soft_deadline_at and answers >= stage.opened.quorum:
        return "quorum"
    # A first stage without an answer leaves nothing to decide on, so it waits for the deliberation's own deadline.
    may_go_on = answers > 0 or stage.opened.stage > 1
    return "deadline" if now >= stage.opened.call_deadline_at and may_go_on else None


def require_strategy(state: State, definition: StrategyDefinition | None) -> StrategyDefinition:
    """The definition, if it is the one that the deliberation was accepted with; raises UnknownStrategy."""
    name, version = state.specification.strategy, state.specification.strategy_version
    if definition is None:
        raise UnknownStrategy(f"there is no strategy {name} here")
    if definition.version != version:
        raise UnknownStrategy(f"{name} is at version {definition.version} here and was accepted at {version}")
    return definition


@dataclass(slots=True)
class _Position:
    """A running strategy. It has received the outcomes of `stages`; `ask` is its next stage, which `opened` opens."""

    strategy: Strategy
    stages: tuple[Stage, ...] = ()
    ask: Ask | None = None
    opened: StageOpened | None = None
    spent: Cost = field(default_factory=Cost)
    cut: list[CutStage] = field(default_factory=list[CutStage])

    def next_ask(self, budget: Budget, outcomes: Outcomes | None) -> Ask:
        # A generator begins with None.
        ask = self.strategy.send(outcomes)  # pyright: ignore[reportArgumentType]
        return ask.model_copy(update={"calls": allotted(budget, self.spent, ask.calls)})


class Replay:
    """The position of a deliberation's strategy after the last decision. The next decision goes on from it.

    It changes no decision. After a new read of the log, the strategy begins anew.
    """

    def __init__(self) -> None:
        self._position: _Position | None = None

    def begin(self, state: State, definition: StrategyDefinition) -> _Position:
        """Take the position out: a strategy that ends or fails leaves none to go on from."""
        position, self._position = self._position, None
        known = position and all(told is stage for told, stage in zip(position.stages, state.stages, strict=False))
        return position if position and known else _Position(definition.run(state.specification))

    def keep(self, position: _Position, ask: Ask, opened: StageOpened) -> None:
        position.ask, position.opened = ask, opened
        self._position = position


def decide(
    state: State, now: datetime, definition: StrategyDefinition | None, replay: Replay | None = None
) -> Decision:
    """The next step. Raises UnknownStrategy, and StrategyDrift for other calls than the log records."""
    if state.ended:
        return Done()
    if state.cancel is not None:
        return _finish(Cancelled, state, now, by=state.cancel.by, reason=state.cancel.reason)
    late = _is_late(state, now)
    constraints = state.specification.constraints
    if late and (
        constraints.on_deadline == "fail" or not any(finished.answered for finished in state.finished.values())
    ):
        missed = DeadlineExceeded(f"no verdict within {constraints.timeout_seconds} seconds")
        return _finish(TimedOut, state, now, problem=problem_of(missed))
    if state.takeovers_without_progress >= POISON_TAKEOVERS:
        detail = f"{state.takeovers_without_progress} coordinators in a row died or hung over it"
        return failed(state, now, Poisoned(detail))
    definition = require_strategy(state, definition)
    stage = state.open_stage
    cause = closing_cause(stage, state.finished, now) if stage else None
    if stage and cause:
        return _closing(state, now, stage, cause)
    return _replay(state, now, definition, late, replay or Replay())


def _is_late(state: State, now: datetime) -> bool:
    """Whether the deadline has passed; also by the clock of the coordinator that closed the last stage."""
    closed = state.stages[-1].closed if state.stages else None
    return max(now, closed.ts if closed else now) >= state.accepted.deadline_at


def _replay(state: State, now: datetime, definition: StrategyDefinition, late: bool, replay: Replay) -> Decision:
    budget, position = state.specification.budget, replay.begin(state, definition)
    recorded = iter(state.stages[len(position.stages) :])
    try:
        ask = position.ask or position.next_ask(budget, None)
        while True:
            refused = refused_by(budget, position.spent, ask.calls, ask.reserve)
            stage = None if refused else next(recorded, None)
            if stage is None and (by := refused or ("deadline" if late else None)):
                position.cut.append(CutStage(purpose=ask.purpose, round=ask.round, by=by))
                ask = position.next_ask(budget, Outcomes({}, admitted=False))
                continue
            if stage is None:
                opened = _opening(state, now, ask)
                replay.keep(position, ask, opened)
                return OpenStage(opened, RunStage(opened, ask.calls, _call_deadline(state, opened), ask.calls))
            if stage.opened is not position.opened:
                _same_stage(stage.opened, ask)
            if stage.closed is None:
                replay.keep(position, ask, stage.opened)
                lacking = tuple(call for call in ask.calls if call.call_id not in state.finished)
                return RunStage(stage.opened, lacking, _call_deadline(state, stage.opened), ask.calls)
            seen = {call_id: state.finished[call_id] for call_id in stage.closed.seen}
            lacks = sum(finished.answered for finished in seen.values()) < len(ask.calls)
            if lacks and stage.closed.ts >= stage.opened.call_deadline_at:
                position.cut.append(CutStage(purpose=ask.purpose, round=ask.round, by="deadline"))
            position.stages += (stage,)
            position.spent += spent_on(budget, ask.calls, seen)
            ask = position.next_ask(budget, Outcomes(seen))
    except StopIteration as stop:
        _all_replayed(recorded)
        return _concluded(state, now, stop.value, position.cut)
    except StrategyDrift:
        raise
    except DeliberationError as error:
        _all_replayed(recorded)
        return failed(state, now, error)


def _planned(ask: Ask) -> tuple[PlannedCall, ...]:
    return tuple(
        PlannedCall(
            call_id=call.call_id, agent_id=call.agent_id, role=call.role, output=call.output.kind, labels=call.labels
        )
        for call in ask.calls
    )


def _opening(state: State, now: datetime, ask: Ask) -> StageOpened:
    soft_deadline_at, call_deadline_at = stage_deadlines(now, state.accepted.deadline_at, ask.stages_left)
    return StageOpened(
        deliberation_id=state.deliberation_id,
        ts=now,
        stage=len(state.stages) + 1,
        purpose=ask.purpose,
        round=ask.round,
        calls=_planned(ask),
        quorum=ask.quorum,
        soft_deadline_at=soft_deadline_at,
        call_deadline_at=call_deadline_at,
    )


def _same_stage(opened: StageOpened, ask: Ask) -> None:
    # Labels are compared too: reading a ballot by other labels than its prompt showed would credit the wrong authors.
    asked = _planned(ask)
    if (opened.purpose, opened.round, opened.calls) != (ask.purpose, ask.round, asked):
        raise StrategyDrift(
            f"stage {opened.stage} records {opened.purpose} in round {opened.round} with the calls "
            f"{[call.call_id for call in opened.calls]}, and the strategy now asks for {ask.purpose} in round "
            f"{ask.round} with {[call.call_id for call in asked]}"
        )


def _all_replayed(recorded: Iterator[Stage]) -> None:
    stage = next(recorded, None)
    if stage is not None:
        raise StrategyDrift(f"the log records stage {stage.opened.stage}, and the strategy ends before it")


def _call_deadline(state: State, opened: StageOpened) -> datetime:
    return state.accepted.deadline_at if opened.stage == 1 else opened.call_deadline_at


def _closing(state: State, now: datetime, stage: Stage, cause: Cause) -> CloseStage:
    opened = stage.opened
    fact = StageClosed(
        deliberation_id=state.deliberation_id,
        ts=now,
        stage=opened.stage,
        purpose=opened.purpose,
        round=opened.round,
        seen=tuple(call.call_id for call in opened.calls if call.call_id in state.finished),
        reason=cause,
    )
    return CloseStage(fact)


def _concluded(state: State, now: datetime, conclusion: Conclusion, cut: Sequence[CutStage]) -> Finish:
    causes = dict.fromkeys("deadline" if stage.by == "deadline" else "budget" for stage in cut)
    context = state.specification.context
    missing = [f"no context: {context.detail}"] if context and context.detail is not None else []
    away = Counter(server for finished in state.finished.values() for server in finished.tools_away)
    tools = [f"tool server {server} was away in {counted} of the calls" for server, counted in sorted(away.items())]
    decisive = state.finished.get(conclusion.call_id or "")
    as_json = ["the answer is no text but an object or a list; its JSON is shown"] * (
        decisive is not None and "json" in decisive.lenient
    )
    reasons = (*conclusion.degraded, *sorted(causes), *missing, *tools, *as_json)
    if conclusion.action is not None:
        conclusion = replace(conclusion, action=with_ids(conclusion.action, state.deliberation_id))
    verdict = Verdict(
        **{field.name: getattr(conclusion, field.name) for field in fields(conclusion) if field.name != "degraded"},
        citations=citations(conclusion.content or "", state.specification.evidence),
        strategy=StrategyRef(name=state.specification.strategy, version=state.specification.strategy_version),
        calls=sum(finished.usage.calls for finished in state.finished.values()),
    )
    degraded = Degraded(reasons=reasons, cut=tuple(cut)) if reasons else None
    return _finish(Completed, state, now, verdict=verdict, degraded=degraded)


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
