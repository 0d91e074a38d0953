from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.deliberation.strategies.vote import VoteStopRule, lead_probability, may_stop, wave


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
