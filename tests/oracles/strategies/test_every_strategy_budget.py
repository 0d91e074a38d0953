from collections.abc import Collection, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import accumulate

import pytest

from app.deliberation.calls import Call
from app.deliberation.decider import Conclusion, Outcomes
from app.deliberation.errors import BudgetExhausted
from app.deliberation.facts import Completed, Failed, StageOpened
from app.deliberation.specification import Budget, RolePrices
from app.deliberation.strategies import STRATEGIES
from tests.fakes import Reply
from tests.unit.facts_of import Run, finished, run
from tests.unit.strategies.every_strategy import WAYS, Way, subsets

STAGES_MAX = 64
REFUSED_MAX = 5
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def cut_short(way: Way, ended: Run) -> None:
    if not ended.purposes:
        assert isinstance(ended.end, Failed)
        assert ended.end.problem is not None
        assert (ended.end.problem.code, ended.end.problem.retryable) == ("budget_exhausted", False)
        return
    assert isinstance(ended.end, Completed)
    assert ended.degraded.count("budget") == 1
    if way.strategy != "independent":
        assert ended.verdict.winner is not None and ended.verdict.content


def engine_calls(stage: StageOpened) -> int:
    return sum(call.output != "report" for call in stage.calls)


@every_way
def test_a_ceiling_of_calls_below_or_at_any_stage_is_kept_and_ends_in_a_verdict(way: Way) -> None:
    for size in (1, 3):
        needed = list(accumulate(engine_calls(stage) for stage in way.run(size).all(StageOpened)))
        for max_calls in {*needed, *(calls - 1 for calls in needed)} - {0}:
            ended = run(way.asked(size, budget=Budget(max_calls=max_calls)), way.script())
            assert ended.end.usage.calls <= max_calls
            if max_calls < needed[-1]:
                cut_short(way, ended)
            else:
                # A council's round opens only if revisions by all authors fit too, though none may be needed.
                foreseen = Budget(max_calls=max_calls + size)
                refused = way.strategy == "council" and ended.degraded == ("budget",)
                assert refused or ended.completed.degraded is None
                assert run(way.asked(size, budget=foreseen), way.script()).completed.degraded is None


@every_way
def test_a_ceiling_of_tokens_is_kept_and_ends_in_a_verdict(way: Way) -> None:
    whole = way.run(3)
    for max_tokens in (500, 1_800, 2_500, 3_200, 4_000, 5_000, 7_000):
        ended = run(way.asked(3, budget=Budget(max_tokens=max_tokens)), way.script())
        assert ended.end.usage.tokens <= max_tokens
        if ended.purposes != whole.purposes:
            cut_short(way, ended)


def in_money(tokens: int) -> Budget:
    return Budget(max_cost=Decimal(tokens) / 10**6, prices=prices(prompt=1, completion=1))


def prices(**of_a_million: float) -> tuple[RolePrices, ...]:
    return (RolePrices.model_validate({"role": "DEV", "currency": "USD", **of_a_million}),)


@every_way
def test_a_ceiling_of_cost_reserves_for_every_stage_as_one_of_tokens_does(way: Way) -> None:
    for max_tokens in range(500, 30_000, 1_000):
        by_tokens = run(way.asked(3, rounds=2, budget=Budget(max_tokens=max_tokens)), way.script())
        by_cost = run(way.asked(3, rounds=2, budget=in_money(max_tokens)), way.script())
        assert by_cost.purposes == by_tokens.purposes, max_tokens
        if by_tokens.purposes:
            assert by_cost.completed.verdict == by_tokens.completed.verdict
            assert by_cost.degraded == by_tokens.degraded


@every_way
def test_a_ceiling_of_cost_is_kept_at_other_prices_and_ends_in_a_verdict(way: Way) -> None:
    whole, dear = way.run(3), prices(prompt=0.5, completion=4)

    def script(call: Call) -> Reply:
        reply = way.script()(call)
        return replace(reply, usage=reply.usage.at(dear[0]))

    for millionths in (500, 3_000, 5_000, 7_000, 9_000, 12_000):
        max_cost = Decimal(millionths) / 10**6
        ended = run(way.asked(3, budget=Budget(max_cost=max_cost, prices=dear)), script)
        spent = ended.end.usage.cost
        assert (spent is None and not ended.purposes) or (spent is not None and spent.amount <= max_cost)
        if ended.purposes != whole.purposes:
            cut_short(way, ended)


@every_way
def test_any_stages_may_be_refused_and_those_after_them_admitted(way: Way) -> None:
    asked = len(driven(way, ())[1])
    for refused in subsets(range(2, min(asked, REFUSED_MAX) + 1)):
        conclusion, _ = driven(way, refused)
        if way.strategy != "independent":
            assert conclusion.winner is not None and conclusion.content and conclusion.call_id
    with pytest.raises(BudgetExhausted):
        driven(way, (1,))


SCORING = tuple(way for way in WAYS.values() if way.strategy in ("council", "fuse"))


def ceilings(size: int) -> Iterator[Budget]:
    yield from (Budget(max_calls=calls) for calls in range(size, 12 * size))
    yield from (Budget(max_tokens=tokens) for tokens in range(1_000, 30_000, 1_000))


@cache
def best_of_n_scores(size: int, budget: Budget) -> bool:
    best_of_n = WAYS["best_of_n"]
    return "score" in run(best_of_n.asked(size, budget=budget), best_of_n.script()).purposes


@pytest.mark.parametrize("way", SCORING, ids=[name for name, way in WAYS.items() if way in SCORING])
def test_auxiliary_stages_never_take_the_budget_of_the_choice(way: Way) -> None:
    for size in (2, 4):
        for budget in ceilings(size):
            scored = best_of_n_scores(size, budget)
            ended = run(way.asked(size, rounds=2, budget=budget), way.script())
            assert ("score" in ended.purposes) == scored, (size, budget)
            if not scored:
                continue
            assert "unscored" not in ended.degraded
            if "fuse" in ended.purposes or "analyse" in ended.purposes:
                assert ended.purposes[-1] == "judge", (size, budget)
            if way.strategy == "council":
                assert ended.purposes[-1] == "score", (size, budget)


def driven(way: Way, refused: Collection[int]) -> tuple[Conclusion, list[str]]:
    specification = way.asked(3)
    script = way.script()
    strategy = STRATEGIES[way.strategy].run(specification)
    purposes: list[str] = []
    made: set[str] = set()
    try:
        ask = next(strategy)
        while len(purposes) < STAGES_MAX:
            purposes.append(ask.purpose)
            if len(purposes) in refused:
                ask = strategy.send(Outcomes({}, admitted=False))
                continue
            assert made.isdisjoint(call.call_id for call in ask.calls), "a call id names one call"
            made |= {call.call_id for call in ask.calls}
            outcomes = {
                call.call_id: finished(call.agent_id, len(purposes), script(call).text).model_copy(
                    update={"call_id": call.call_id}
                )
                for call in ask.calls
            }
            ask = strategy.send(Outcomes(outcomes))
    except StopIteration as stop:
        return stop.value, purposes
    raise AssertionError(f"{way.strategy} asks for ever: {purposes[:8]} …")
