"""Budgets admit or refuse stages, and stages share the time left."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.budget import (
    BYTES_PER_TOKEN,
    needs_of_first_stage,
    predicted_tokens,
    refused_by,
    spent_on,
    stage_deadlines,
)
from app.deliberation.calls import Call, ChatMessage, Cost, Usage
from app.deliberation.facts import CutBy
from app.deliberation.outputs import Output
from app.deliberation.specification import Budget
from tests.unit.facts_of import NOW, finished


def call(agent: str = "dev-001", prompt: str = "x" * 297, max_tokens: int = 100) -> Call:
    """By default a call that is foreseen to cost 200 tokens: a system message of 3 bytes and a prompt of 297."""
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
    ],
)
def test_a_stage_is_refused_when_spent_and_predicted_costs_do_not_fit(
    budget: Budget, spent: Cost, refused: CutBy | None
) -> None:
    assert refused_by(budget, spent, TWO, Cost()) == refused


@pytest.mark.parametrize(
    ("budget", "reserve", "refused"),
    [
        (Budget(), Cost(calls=10**9, tokens=10**9), None),
        (Budget(max_calls=5), Cost(calls=3), None),
        (Budget(max_calls=4), Cost(calls=3), "calls"),
        (Budget(max_tokens=450), Cost(calls=3, tokens=50), None),
        (Budget(max_tokens=449), Cost(tokens=50), "tokens"),
    ],
)
def test_a_stage_is_refused_too_where_the_reserve_would_not_fit_besides(
    budget: Budget, reserve: Cost, refused: CutBy | None
) -> None:
    assert refused_by(budget, Cost(), TWO, reserve) == refused
    assert refused_by(budget, Cost(), TWO, Cost()) is None
    assert Cost(calls=1, tokens=2) + Cost(calls=3, tokens=4) == Cost(calls=4, tokens=6)


def test_a_first_stage_that_is_refused_says_what_it_needs_and_what_there_is() -> None:
    needed = predicted_tokens(TWO)
    for budget, limits in (
        (Budget(max_calls=1), "budget.max_calls is 1"),
        (Budget(max_tokens=399), "budget.max_tokens is 399"),
        (Budget(max_tokens=399, max_calls=1), "budget.max_tokens is 399, budget.max_calls is 1"),
    ):
        assert needs_of_first_stage(budget, TWO) == (
            f"the first stage needs 2 calls and {needed} tokens, {sum(each.max_tokens for each in TWO)} of them for "
            f"answers at their longest; {limits}. Raise it, lower sampling.max_tokens, or ask fewer agents."
        )


def test_every_completion_is_foreseen_at_its_bound_and_every_prompt_by_its_bytes() -> None:
    assert predicted_tokens([]) == 0
    assert predicted_tokens([call()]) == 200
    assert predicted_tokens([*TWO, call(max_tokens=1)]) == 501
    longer = {
        text: predicted_tokens([call(prompt=text * 300)]) - predicted_tokens([call(prompt="")]) for text in "x颜😀"
    }
    assert longer == {"x": 100, "颜": 300, "😀": 400}
    assert BYTES_PER_TOKEN == 3


def test_attempts_count_and_a_call_without_an_outcome_counts_once() -> None:
    seen = {
        "s1-dev-001": finished("dev-001", usage=Usage(prompt_tokens=10, completion_tokens=5, calls=3)),
        "s1-dev-002": finished("dev-002", text=None, usage=Usage()),
    }
    assert Cost(calls=1, tokens=2) + spent_on([*TWO, call("dev-003")], seen) == Cost(calls=1 + 3 + 1 + 1, tokens=2 + 15)


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
