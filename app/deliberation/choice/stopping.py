"""Decides when a vote may stop, and how many votes to ask for at once without asking for one too many.

`unassailable` never changes the winner: it stops when the remaining votes cannot. `beta` is the rule of
Adaptive-Consistency (arXiv:2305.11860): it stops when the leader is probably the true majority, and may be wrong.
Arithmetic is in integers and fractions, so no threshold is rounded.
"""

from fractions import Fraction
from functools import cache
from math import comb
from typing import Literal

VoteStopRule = Literal["unassailable", "beta", "none"]
"""`beta` also stops when the lead is unassailable: that loses nothing. `none` asks every agent."""

CERTAINTY = Fraction(95, 100)


def is_unassailable(first: int, second: int, left: int) -> bool:
    """Whether `left` further votes cannot bring any answer level with the leader: v₁ - v₂ > N - n."""
    return first - second > left


@cache
def lead_probability(first: int, second: int) -> Fraction:
    """1 - I½(v₁+1, v₂+1): the probability that the leader is ahead of the runner-up among all possible votes.

    With whole arguments the incomplete beta function is a binomial tail: I½(a, b) = P(Bin(a+b-1, ½) ≥ a).
    """
    flips = first + second + 1
    return 1 - Fraction(sum(comb(flips, heads) for heads in range(first + 1, flips + 1)), 2**flips)


def may_stop(rule: VoteStopRule, first: int, second: int, left: int) -> bool:
    if left == 0:
        return True
    if rule == "none":
        return False
    if is_unassailable(first, second, left):
        return True
    return rule == "beta" and lead_probability(first, second) >= CERTAINTY


def wave(rule: VoteStopRule, first: int, second: int, left: int) -> int:
    """The fewest of the agents left that could decide the vote, if all chose the leader; 0 when it is decided.

    Asking one by one would need at least as many, so waves make exactly its calls, in fewer stages.
    """
    return next(asked for asked in range(left + 1) if may_stop(rule, first + asked, second, left - asked))
