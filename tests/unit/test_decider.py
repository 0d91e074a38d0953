from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from app.deliberation.calls import Usage
from app.deliberation.decider import (
    POISON_TAKEOVERS,
    CloseStage,
    Decision,
    Done,
    Finish,
    OpenStage,
    Replay,
    RunStage,
    Strategy,
    StrategyDefinition,
    decide,
)
from app.deliberation.errors import StrategyDrift
from app.deliberation.facts import (
    CallFinished,
    Cancelled,
    Completed,
    Fact,
    Failed,
    StageClosed,
    StageOpened,
    TimedOut,
)
from app.deliberation.fold import apply, fold
from app.deliberation.specification import Budget, Specification
from app.deliberation.strategies import STRATEGIES
from tests.unit.facts_of import (
    TIMEOUT_S,
    CouncilScript,
    Run,
    accepted,
    cancelling,
    finished,
    in_seconds,
    resumed,
    run,
    specification,
    taken_over,
)
from tests.unit.strategies.every_strategy import transcript


def decided(
    facts: Sequence[Fact], now: datetime | None = None, definition: StrategyDefinition | None = None
) -> Decision:
    state = fold(enumerate(facts, start=1))
    assert state is not None
    return decide(state, now or facts[-1].ts, definition or STRATEGIES[state.specification.strategy])


def test_a_running_stage_asks_only_for_missing_outcomes() -> None:
    whole = run(specification())
    opening = decided(whole.facts[:1])
    assert isinstance(opening, OpenStage)
    for count in range(3):
        running = decided(whole.facts[: 2 + count])
        assert isinstance(running, RunStage)
        assert running.opened == opening.fact
        lacking = ["s1-dev-001", "s1-dev-002", "s1-dev-003"][count:]
        assert [call.call_id for call in running.calls] == lacking
        assert running.stage_calls == opening.run.calls
    closing = decided(whole.facts[:5])
    assert isinstance(closing, CloseStage)
    assert (closing.fact.reason, closing.fact.seen) == ("all", ("s1-dev-001", "s1-dev-002", "s1-dev-003"))


def decisions_of(ended: Run) -> list[bytes]:
    verdict = ended.completed.verdict
    assert verdict is not None
    decided_facts: list[Fact] = [*ended.all(StageOpened), *ended.all(StageClosed)]
    return [*transcript(decided_facts), verdict.model_copy(update={"calls": 0}).model_dump_json().encode()]


@pytest.mark.parametrize("place", range(1, 20))
def test_a_late_answer_never_changes_the_verdict(place: int) -> None:
    script = CouncilScript(silent=["s1-dev-002"])
    whole = run(specification(), script)
    first_close = next(i for i, fact in enumerate(whole.facts) if isinstance(fact, StageClosed))
    cut = min(first_close + place, len(whole.facts))
    late = finished("dev-002", text=None).model_copy(
        update={"text": "{}", "problem": None, "ts": whole.facts[cut - 1].ts}
    )
    after = [*whole.facts[:cut], late]
    if cut == len(whole.facts):
        assert decided(after) == Done()
        return
    assert decisions_of(resumed(after, script)) == decisions_of(whole)


def test_a_strategy_goes_on_where_it_stood_until_its_facts_are_read_again() -> None:
    council, begun = STRATEGIES["council"], 0

    def begin(asked: Specification) -> Strategy:
        nonlocal begun
        begun += 1
        return council.run(asked)

    facts, replay = run(specification()).facts, Replay()
    counted = replace(council, run=begin)
    state = fold([(1, facts[0])])
    assert state is not None
    for sequence, fact in enumerate(facts[1:-2], start=2):
        state = apply(state, fact, sequence)
        assert decide(state, facts[-1].ts, counted, replay) == decide(state, facts[-1].ts, council)
    assert begun == 1
    for count in (6, 3):
        read = fold(enumerate(facts[:count], start=1))
        assert read is not None
        assert decide(read, facts[-1].ts, counted, replay) == decide(read, facts[-1].ts, council)


def test_an_answer_that_comes_while_the_next_stage_runs_is_late() -> None:
    slow = {f"s2-dev-00{number}": 5.0 for number in (1, 3)}
    late = run(specification(), CouncilScript(after_s={"s1-dev-002": 27.0, **slow}))
    never = run(specification(), CouncilScript(silent=["s1-dev-002"], after_s=slow))
    place = [fact.call_id for fact in late.all(CallFinished)].index("s1-dev-002")
    assert place == 2, "after both answers of its stage, before the critiques"
    assert "s1-dev-002" not in late.all(StageClosed)[0].seen
    assert decisions_of(late) == decisions_of(never)
    assert late.end.usage.calls == never.end.usage.calls + 1


def test_the_cost_of_a_late_answer_does_not_change_admission_in_a_replay() -> None:
    script = CouncilScript(silent=["s1-dev-002"])
    whole = run(specification(budget=Budget(max_tokens=20_000)), script)
    assert whole.purposes == ["propose", "critique", "revise", "score"]
    first_close = next(i for i, fact in enumerate(whole.facts) if isinstance(fact, StageClosed))
    late = finished("dev-002", usage=Usage(prompt_tokens=1_000_000, calls=50))
    after = [*whole.facts[: first_close + 1], late.model_copy(update={"ts": whole.facts[first_close].ts})]
    assert decisions_of(resumed(after, script)) == decisions_of(whole)


@pytest.mark.parametrize(
    ("silent", "closings"),
    [
        ([], [(0, "all")]),
        (["s1-dev-001"], [(25, "quorum")]),
        (["s1-dev-001", "s1-dev-002"], [(62.5, "deadline")]),
    ],
)
def test_a_stage_closes_at_its_soft_deadline_with_a_quorum_and_else_when_its_calls_are_given_up(
    silent: list[str], closings: list[tuple[float, str]]
) -> None:
    ended = run(specification(), CouncilScript(silent=silent))
    first = ended.all(StageClosed)[0]
    assert [(first.ts, first.reason)] == [(in_seconds(at), reason) for at, reason in closings]
    assert first.seen == tuple(
        call_id for call_id in ("s1-dev-001", "s1-dev-002", "s1-dev-003") if call_id not in silent
    )


def test_a_quorum_reached_after_the_soft_deadline_closes_the_stage_at_once() -> None:
    ended = run(specification(), CouncilScript(silent=["s1-dev-001"], after_s={"s1-dev-002": 40}))
    first = ended.all(StageClosed)[0]
    assert (first.ts, first.reason) == (in_seconds(40), "quorum")


def test_a_problem_is_no_answer_for_the_quorum() -> None:
    ended = run(specification(), CouncilScript(failing=["s1-dev-001"], after_s={"s1-dev-003": 30}))
    first = ended.all(StageClosed)[0]
    assert (first.ts, first.reason) == (in_seconds(30), "all"), "one answer and one problem are no quorum of two"


def test_a_deadline_that_must_fail_ends_a_deliberation_with_its_cost() -> None:
    whole = run(specification(on_deadline="fail"))
    for cut in range(1, len(whole.facts)):
        decision = decided(whole.facts[:cut], now=in_seconds(TIMEOUT_S))
        assert isinstance(decision, Finish)
        assert isinstance(decision.fact, TimedOut)
        assert decision.fact.problem is not None
        assert (decision.fact.problem.code, decision.fact.problem.retryable) == ("deadline_exceeded", True)
        assert decision.fact.verdict is None
        assert decision.fact.usage.calls == sum(isinstance(fact, CallFinished) for fact in whole.facts[:cut])


def test_a_request_to_stop_and_a_poisoned_deliberation_keep_their_end_at_the_deadline() -> None:
    whole = run(specification())
    takeovers = [taken_over(number) for number in range(1, POISON_TAKEOVERS + 1)]
    for cut in range(5, len(whole.facts)):
        stopped = decided([*whole.facts[:cut], cancelling()], now=in_seconds(TIMEOUT_S))
        assert isinstance(stopped, Finish) and isinstance(stopped.fact, Cancelled)
        poisoned = decided([*whole.facts[:cut], *takeovers], now=in_seconds(TIMEOUT_S))
        assert isinstance(poisoned, Finish) and isinstance(poisoned.fact, Failed)


def test_a_successor_whose_clock_is_behind_opens_no_stage_after_the_deadline() -> None:
    whole = run(specification())
    first_close = next(i for i, fact in enumerate(whole.facts) if isinstance(fact, StageClosed))
    closed_late = whole.facts[first_close].model_copy(update={"ts": in_seconds(TIMEOUT_S)})
    decision = decided([*whole.facts[:first_close], closed_late], now=in_seconds(TIMEOUT_S - 1))
    assert isinstance(decision, Finish) and isinstance(decision.fact, Completed)
    assert isinstance(decided(whole.facts[: first_close + 1], now=in_seconds(TIMEOUT_S - 1)), OpenStage)


def test_an_end_names_the_stages_that_the_budget_and_the_deadline_cut() -> None:
    whole = run(specification(budget=Budget(max_calls=6)), CouncilScript(silent=["s2-dev-001", "s2-dev-002"]))
    assert whole.purposes == ["propose", "score"]
    assert whole.cut == [("critique", 1, "calls"), ("score", 2, "deadline")]
    assert whole.degraded == ("2 of 3 ballots are missing", "budget", "deadline")
    tokens = run(specification(budget=Budget(max_tokens=5_000)))
    assert {by for _, _, by in tokens.cut} == {"tokens"} and tokens.degraded[-1] == "budget"


def test_takeovers_without_progress_end_a_deliberation_and_progress_resets_them() -> None:
    whole = run(specification())
    for cut in range(1, len(whole.facts)):
        takeovers = [taken_over(number) for number in range(1, POISON_TAKEOVERS + 1)]
        before = [*whole.facts[:cut], *takeovers[:-1]]
        assert not isinstance(decided(before), Finish) or cut == len(whole.facts) - 1
        decision = decided([*before, takeovers[-1]])
        assert isinstance(decision, Finish) and isinstance(decision.fact, Failed)
        assert decision.fact.problem is not None and decision.fact.problem.code == "poisoned"
        stepped = [*whole.facts[:cut], *takeovers[:-1], *whole.facts[cut : cut + 1], takeovers[-1]]
        after = decided(stepped)
        assert not (isinstance(after, Finish) and isinstance(after.fact, Failed))


@pytest.mark.parametrize("stage", [2, 3, 4])
def test_agents_that_fall_silent_do_not_keep_a_deliberation_from_ending_in_time(stage: int) -> None:
    ended = run(specification(), CouncilScript(silent=[f"s{stage}-dev-00{number}" for number in (1, 2, 3)]))
    assert ended.end.ts < in_seconds(TIMEOUT_S)
    assert isinstance(ended.end, Completed)


def test_agents_that_never_answer_at_all_have_the_whole_time_and_end_in_a_timeout() -> None:
    ended = run(specification(), CouncilScript(silent=[f"s1-dev-00{number}" for number in (1, 2, 3)]))
    assert isinstance(ended.end, TimedOut)
    assert ended.end.ts == in_seconds(TIMEOUT_S)


def test_a_first_answer_that_is_very_late_is_still_taken() -> None:
    script = CouncilScript(silent=["s1-dev-001", "s1-dev-002"], after_s={"s1-dev-003": 90})
    ended = run(specification(), script)
    first = ended.all(StageClosed)[0]
    assert (first.ts, first.reason, first.seen) == (in_seconds(90), "deadline", ("s1-dev-003",))
    assert isinstance(ended.end, Completed)


def test_a_request_to_stop_ends_it_in_every_phase() -> None:
    whole = run(specification())
    for cut in range(1, len(whole.facts)):
        facts = [*whole.facts[:cut], cancelling("enough")]
        decision = decided(facts)
        assert isinstance(decision, Finish)
        assert isinstance(decision.fact, Cancelled)
        assert decision.fact.verdict is decision.fact.problem is None
        assert decision.fact.usage.calls == sum(isinstance(fact, CallFinished) for fact in whole.facts[:cut])
        assert resumed(facts).facts == [*facts, decision.fact]


def test_another_version_of_the_strategy_is_refused() -> None:
    other = specification().model_copy(update={"strategy_version": 0})
    with pytest.raises(StrategyDrift, match="version"):
        decided([accepted(other)])


def changed(whole: Run, **update: object) -> list[Fact]:
    place = next(i for i, fact in enumerate(whole.facts) if isinstance(fact, StageOpened) and fact.purpose == "score")
    return [*whole.facts[:place], whole.facts[place].model_copy(update=update)]


def test_a_log_that_records_other_calls_or_labels_than_the_replay_asks_for_is_refused() -> None:
    whole = run(specification(strategy="best_of_n"))
    scoring = whole.all(StageOpened)[1]
    swapped = [
        call.model_copy(update={"labels": dict(zip(call.labels, reversed(call.labels.values()), strict=True))})
        for call in scoring.calls
    ]
    renamed = [call.model_copy(update={"call_id": f"{call.call_id}x"}) for call in scoring.calls]
    for update in (
        {"calls": tuple(renamed)},
        {"calls": scoring.calls[:-1]},
        {"calls": (*scoring.calls[1:], scoring.calls[0])},
        {"calls": tuple(swapped)},
        {"purpose": "judge"},
        {"round": 2},
    ):
        with pytest.raises(StrategyDrift, match="stage 2 records"):
            decided(changed(whole, **update))
    assert isinstance(decided(changed(whole)), RunStage)


def test_a_log_that_records_more_stages_than_the_strategy_asks_for_is_refused() -> None:
    two_stages = run(specification(strategy="best_of_n")).facts
    for first in (
        accepted(specification(strategy="independent")),
        accepted(specification(strategy="best_of_n", budget=Budget(max_calls=1))),
    ):
        with pytest.raises(StrategyDrift, match="ends before it"):
            decided([first, *two_stages[1:-1]])


@pytest.mark.parametrize(
    ("strategy", "rounds", "shares"),
    [
        ("single", 1, [0.98]),
        ("independent", 1, [0.98]),
        ("best_of_n", 1, [1 / 2, 0.98]),
        ("council", 0, [1 / 2, 0.98]),
        ("council", 1, [1 / 4, 1 / 3, 1 / 2, 0.98]),
        ("council", 2, [1 / 6, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 0.98]),
    ],
)
def test_each_stage_may_take_its_share_of_the_time_that_is_left(
    strategy: str, rounds: int, shares: list[float]
) -> None:
    slow = CouncilScript(after_s={"s1-dev-001": 10, "s2-dev-001": 5})
    opened = run(specification(strategy=strategy, rounds=rounds), slow).all(StageOpened)
    taken = [(stage.soft_deadline_at - stage.ts) / (in_seconds(TIMEOUT_S) - stage.ts) for stage in opened]
    assert taken == pytest.approx(shares)
