from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.budget import (
    BYTES_PER_TOKEN,
    needs_of_first_stage,
    predicted,
    refused_by,
    spent_on,
    stage_deadlines,
)
from app.deliberation.calls import AMOUNT_MAX, Call, ChatMessage, Cost, Money, Usage, UsageCost, price_of
from app.deliberation.facts import CutBy
from app.deliberation.outputs import Output
from app.deliberation.specification import Budget, Prices, RolePrices
from tests.unit.facts_of import NOW, finished


def call(agent: str = "dev-001", prompt: str = "x" * 297, max_tokens: int = 100) -> Call:
    return Call(
        call_id=f"s1-{agent}",
        agent_id=agent,
        role="DEV",
        messages=(ChatMessage(role="system", content="Hi."), ChatMessage(role="user", content=prompt)),
        output=Output(kind="answer"),
        temperature=0.7,
        max_tokens=max_tokens,
        seed=1,
    )


PRICES = Prices(currency="USD", prompt=Decimal("0.5"), cached=Decimal("0.05"), completion=Decimal("1.5"))
DEV = (RolePrices(role="DEV", **dict(PRICES)),)
_TOKENS = st.integers(0, 10**7)
_PRICE = st.decimals(0, 1_000_000, places=6)


@given(_TOKENS, _TOKENS, _TOKENS, _PRICE, st.none() | _PRICE, _PRICE)
def test_a_price_is_exact_and_rounded_half_up_to_a_millionth(
    prompt: int, cached: int, completion: int, each_prompt: Decimal, each_cached: Decimal | None, each: Decimal
) -> None:
    cached = min(prompt, cached)
    prices = Prices(currency="USD", prompt=each_prompt, cached=each_cached, completion=each)
    exact = (
        (prompt - cached) * Fraction(each_prompt)
        + cached * Fraction(each_prompt if each_cached is None else each_cached)
        + completion * Fraction(each)
    )
    found = price_of(prices, prompt, completion, cached)
    assert Fraction(found) * 10**6 == min(int(exact + Fraction(1, 2)), 10**15)
    money = Money(amount=found, currency="USD")
    assert Money.model_validate_json(money.model_dump_json()) == money, "a JSON number holds it exactly"


def test_cached_tokens_are_part_of_the_prompt_whatever_an_engine_reports() -> None:
    assert price_of(PRICES, 100, 0, 100) == price_of(PRICES, 100, 0, 10**9) == Decimal("0.000005")
    assert price_of(PRICES, 100, 0, -5) == Decimal("0.00005")
    assert price_of(PRICES, -1, -1, -1) == 0
    assert price_of(PRICES, 10**60, 10**60) == AMOUNT_MAX
    without = PRICES.model_copy(update={"cached": None})
    assert price_of(without, 100, 0, 100) == price_of(without, 100, 0) == Decimal("0.00005")


def test_a_sum_names_the_requests_without_a_price_or_in_another_currency() -> None:
    one = Usage(prompt_tokens=100, completion_tokens=10, calls=1)
    dollars, euros = one.at(PRICES), one.at(PRICES.model_copy(update={"currency": "EUR"}))
    assert (one + one).cost is None and one.at(None).cost is None
    assert (dollars + dollars).cost == UsageCost(amount=Decimal("0.00013"), currency="USD")
    assert (one + one + dollars).cost == UsageCost(amount=Decimal("0.000065"), currency="USD", unpriced_calls=2)
    assert (dollars + euros + one).cost == UsageCost(amount=Decimal("0.000065"), currency="USD", unpriced_calls=2)
    assert str(dollars.cost) == "0.000065 USD"
    assert [str((dollars + Usage(calls=calls)).cost) for calls in (1, 2)] == [
        "0.000065 USD, without 1 unpriced call",
        "0.000065 USD, without 2 unpriced calls",
    ]
    assert str(Money(amount=Decimal("1E+3"), currency="EUR")) == "1000 EUR"


def tokens_of(calls: Iterable[Call]) -> int:
    return predicted(Budget(), calls).tokens


TWO = (call("dev-001"), call("dev-002"))


@pytest.mark.parametrize(
    ("budget", "spent", "refused"),
    [
        (Budget(), Cost(calls=10**9, tokens=10**9), None),
        (Budget(max_calls=2), Cost(), None),
        (Budget(max_calls=2), Cost(calls=1), "calls"),
        (Budget(max_calls=1), Cost(), "calls"),
        (Budget(max_tokens=400), Cost(), None),
        (Budget(max_tokens=399), Cost(), "tokens"),
        (Budget(max_tokens=400), Cost(tokens=1), "tokens"),
        (Budget(max_tokens=400), Cost(calls=100), None),
        (Budget(max_calls=2), Cost(tokens=10**9), None),
        (Budget(max_calls=2, max_tokens=399), Cost(), "tokens"),
        (Budget(max_calls=1, max_tokens=400), Cost(), "calls"),
        (Budget(max_calls=2, max_tokens=400), Cost(), None),
        # Two prompts of 100 tokens at 0.5 and two answers of 100 at 1.5.
        (Budget(max_cost=Decimal("0.0004"), prices=DEV), Cost(), None),
        (Budget(max_cost=Decimal("0.000399"), prices=DEV), Cost(), "cost"),
        (Budget(max_cost=Decimal("0.0004"), prices=DEV), Cost(tokens=10**9), None),
        (Budget(max_cost=Decimal("0.0004"), prices=DEV), Cost(amount=Decimal("0.000001")), "cost"),
        (Budget(max_cost=Decimal("0.0001"), max_tokens=399, prices=DEV), Cost(), "tokens"),
    ],
)
def test_a_stage_is_refused_when_spent_and_predicted_costs_do_not_fit(
    budget: Budget, spent: Cost, refused: CutBy | None
) -> None:
    assert refused_by(budget, spent, TWO, Cost()) == refused


def test_a_first_stage_that_is_refused_says_what_it_needs_and_what_there_is() -> None:
    needed = tokens_of(TWO)
    for budget, limits in (
        (Budget(max_calls=1), "budget.max_calls is 1"),
        (Budget(max_tokens=399), "budget.max_tokens is 399"),
        (Budget(max_tokens=399, max_calls=1), "budget.max_tokens is 399, budget.max_calls is 1"),
        (Budget(max_cost=Decimal("0.0001"), prices=DEV), "budget.max_cost is 0.0001 USD"),
    ):
        cost = "" if budget.max_cost is None else ", which may cost 0.0004 USD"
        shorter = "" if limits == "budget.max_calls is 1" else "lower sampling.max_tokens, "
        assert needs_of_first_stage(budget, TWO) == (
            f"the first stage needs 2 calls and {needed} tokens, {sum(each.max_tokens for each in TWO)} of them for "
            f"answers at their longest{cost}; {limits}. Raise it, {shorter}or ask fewer agents."
        )


def test_every_completion_is_foreseen_at_its_bound_and_every_prompt_by_its_bytes() -> None:
    assert tokens_of([]) == 0
    assert tokens_of([call()]) == 200
    assert tokens_of([*TWO, call(max_tokens=1)]) == 501
    longer = {text: tokens_of([call(prompt=text * 300)]) - tokens_of([call(prompt="")]) for text in "x颜😀"}
    assert longer == {"x": 100, "颜": 300, "😀": 400}
    assert BYTES_PER_TOKEN == 3


def test_attempts_count_and_a_call_without_an_outcome_counts_once() -> None:
    seen = {
        "s1-dev-001": finished("dev-001", usage=Usage(prompt_tokens=10, completion_tokens=5, calls=3)),
        "s1-dev-002": finished("dev-002", text=None, usage=Usage()),
    }
    assert Cost(calls=1, tokens=2) + spent_on(Budget(), [*TWO, call("dev-003")], seen) == Cost(
        calls=1 + 3 + 1 + 1, tokens=2 + 15
    )


@pytest.mark.parametrize(
    ("stages_left", "soft_s", "hard_s"), [(1, 98, 98), (2, 50, 75), (4, 25, 62.5), (12, 100 / 12, 54.166667)]
)
def test_the_time_left_is_shared_among_the_possible_stages(stages_left: int, soft_s: float, hard_s: float) -> None:
    soft, hard = stage_deadlines(NOW, NOW + timedelta(seconds=100), stages_left)
    assert ((soft - NOW).total_seconds(), (hard - NOW).total_seconds()) == pytest.approx((soft_s, hard_s))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.001, 3_600), st.integers(1, 12))
def test_a_stage_always_ends_before_the_deliberation_does(left_s: float, stages_left: int) -> None:
    deadline_at = NOW + timedelta(seconds=left_s)
    soft, hard = stage_deadlines(NOW, deadline_at, stages_left)
    assert NOW < soft <= hard < deadline_at


def test_what_was_spent_is_the_recorded_cost_or_the_most_that_the_tokens_cost() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=5, calls=1)
    recorded = usage.at(PRICES.model_copy(update={"prompt": Decimal(1), "completion": Decimal(2)}))
    seen = {"s1-dev-001": finished("dev-001", usage=usage), "s1-dev-002": finished("dev-002", usage=recorded)}
    budget = Budget(max_cost=Decimal(1), prices=DEV)
    # Half up: 10 at 0.5 and 5 at 1.5 are 12.5 millionths.
    assert spent_on(budget, TWO, seen) == Cost(calls=2, tokens=30, amount=Decimal("0.000013") + Decimal("0.00002"))
    assert spent_on(Budget(), TWO[:1], {"s1-dev-001": seen["s1-dev-001"]}) == Cost(calls=1, tokens=15)
