from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.answers import Count, tally
from app.deliberation.strategies.vote import VoteStopRule, lead_probability, may_stop, wave

RULES: tuple[VoteStopRule, ...] = ("unassailable", "beta", "none")


@pytest.mark.parametrize(
    ("first", "second", "stops"),
    [(3, 0, False), (4, 0, True), (5, 1, False), (6, 1, True), (7, 2, False), (8, 2, True)],
)
def test_the_beta_rule_stops_at_its_published_leads(first: int, second: int, stops: bool) -> None:
    assert may_stop("beta", first, second, 100) is stops
    assert not may_stop("unassailable", first, second, 100)
    assert not may_stop("none", first, second, 100)


@given(st.integers(0, 32), st.integers(0, 32))
def test_the_probability_of_a_lead_is_the_beta_integral(first: int, second: int) -> None:
    """∫ from ½ to 1 of x^v₁ (1-x)^v₂, over the same from 0: integrated term by term, not by the binomial tail."""

    def antiderivative(x: Fraction) -> Fraction:
        return sum(
            ((-1) ** k * comb(second, k) * x ** (first + k + 1) / (first + k + 1) for k in range(second + 1)),
            Fraction(0),
        )

    whole = antiderivative(Fraction(1))
    assert lead_probability(first, second) == (whole - antiderivative(Fraction(1, 2))) / whole


@pytest.mark.parametrize(
    ("rule", "first", "second", "left", "asked"),
    [
        ("unassailable", 0, 0, 1, 1),
        ("unassailable", 0, 0, 2, 2),
        ("unassailable", 0, 0, 3, 2),
        ("unassailable", 0, 0, 5, 3),
        ("unassailable", 0, 0, 32, 17),
        ("unassailable", 2, 1, 2, 1),
        ("unassailable", 1, 1, 3, 2),
        ("unassailable", 3, 0, 2, 0),
        ("beta", 0, 0, 32, 4),
        ("beta", 3, 1, 28, 3),
        ("beta", 0, 0, 5, 3),
        ("none", 0, 0, 5, 5),
        ("none", 5, 0, 3, 3),
    ],
)
def test_a_wave_is_the_fewest_votes_that_could_decide(
    rule: VoteStopRule, first: int, second: int, left: int, asked: int
) -> None:
    assert wave(rule, first, second, left) == asked


# One by one, and in waves


def counted(samples: Sequence[str | None], seed: int) -> Count:
    return tally([(f"dev-{place}", sample) for place, sample in enumerate(samples)], seed)


def one_by_one(rule: VoteStopRule, samples: Sequence[str | None], seed: int) -> int:
    for asked in range(len(samples)):
        found = counted(samples[:asked], seed)
        if may_stop(rule, found.first, found.second, len(samples) - asked):
            return asked
    return len(samples)


def in_waves(rule: VoteStopRule, samples: Sequence[str | None], seed: int) -> list[int]:
    sizes: list[int] = []
    while True:
        found = counted(samples[: sum(sizes)], seed)
        size = wave(rule, found.first, found.second, len(samples) - sum(sizes))
        if size == 0:
            return sizes
        sizes.append(size)


samples = st.lists(st.sampled_from(["a", "a", "a", "b", "b", "c", None]), min_size=1, max_size=32)


@settings(max_examples=60)
@given(samples, st.integers(0, 2**31), st.sampled_from(RULES))
def test_waves_make_exactly_the_calls_of_asking_one_by_one(
    samples: list[str | None], seed: int, rule: VoteStopRule
) -> None:
    assert sum(in_waves(rule, samples, seed)) == one_by_one(rule, samples, seed)


@settings(max_examples=60)
@given(samples, st.integers(0, 2**31))
def test_an_unassailable_winner_is_the_full_votes_winner(samples: list[str | None], seed: int) -> None:
    stopped = counted(samples[: sum(in_waves("unassailable", samples, seed))], seed)
    full = counted(samples, seed)
    assert [group.answer for group in stopped.groups[:1]] == [group.answer for group in full.groups[:1]]
    # The answer's first author is in both counts, so even the shown text is the same.
    assert [group.agents[0] for group in stopped.groups[:1]] == [group.agents[0] for group in full.groups[:1]]


def expected(rule: VoteStopRule, size: int, right: Fraction, cost: Callable[[int], int]) -> Fraction:
    @cache
    def after(rights: int, wrongs: int) -> Fraction:
        asked = wave(rule, max(rights, wrongs), min(rights, wrongs), size - rights - wrongs)
        if asked == 0:
            return Fraction(0)
        return cost(asked) + sum(
            (
                comb(asked, hits)
                * right**hits
                * (1 - right) ** (asked - hits)
                * after(rights + hits, wrongs + asked - hits)
                for hits in range(asked + 1)
            ),
            Fraction(0),
        )

    return after(0, 0)


@pytest.mark.parametrize(
    ("size", "right", "calls"), [(5, Fraction(7, 10), 3.8946), (15, Fraction(8, 10), 9.9890), (3, Fraction(1, 2), 2.5)]
)
def test_expected_calls_are_the_figures_of_sequential_stopping(size: int, right: Fraction, calls: float) -> None:
    assert float(expected("unassailable", size, right, lambda asked: asked)) == pytest.approx(calls, abs=5e-5)
