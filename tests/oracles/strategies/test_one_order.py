"""A pair with one missing order: half a comparison finds the best more often than a tie does.

Judges are those of the proof table: right with q = 0.7, and 0.15 more often when the better one stands first. Three
calls in ten are lost, three candidates meet in a round robin, and equal strengths share the first place.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from random import Random

from app.deliberation.choice.bradley_terry import bradley_terry
from app.deliberation.choice.comparisons import Comparison, wins
from app.deliberation.choice.pairings import Pairing

CANDIDATES = ("a", "b", "c")
"""In the order of their true worth."""

ACCURACY, BIAS, LOST = 0.7, 0.15, 0.3
TOURNAMENTS = 4_000

Wins = Mapping[Pairing, Fraction]
Heard = tuple[Comparison, ...]


def tournament(draw: Random) -> Heard:
    comparisons: list[Comparison] = []
    for better, worse in combinations(CANDIDATES, 2):
        for shown in ((better, worse), (worse, better)):
            right = draw.random() < ACCURACY + (BIAS if shown[0] == better else -BIAS)
            if draw.random() >= LOST:
                comparisons.append(Comparison("j", shown, better if right else worse))
    return tuple(comparisons)


def alone(comparisons: Sequence[Comparison]) -> set[frozenset[str]]:
    pairs = [frozenset(each.pair) for each in comparisons]
    return {pair for pair in pairs if pairs.count(pair) == 1}


def as_ties(comparisons: Sequence[Comparison]) -> Wins:
    return {
        pair: Fraction(1, 2) if frozenset(pair) in alone(comparisons) else won
        for pair, won in wins(comparisons).items()
    }


def as_wins(comparisons: Sequence[Comparison]) -> Wins:
    return {pair: won * 2 if frozenset(pair) in alone(comparisons) else won for pair, won in wins(comparisons).items()}


def left_out(comparisons: Sequence[Comparison]) -> Wins:
    return {pair: won for pair, won in wins(comparisons).items() if frozenset(pair) not in alone(comparisons)}


def found(rule: Callable[[Sequence[Comparison]], Wins], tournaments: Counter[Heard]) -> float:
    total = 0.0
    for comparisons, times in tournaments.items():
        strengths = bradley_terry(CANDIDATES, rule(comparisons))
        first = [each for each in CANDIDATES if max(strengths.values()) - strengths[each] < 1e-9]
        total += times * ("a" in first) / len(first)
    return total / tournaments.total()


def test_half_a_comparison_finds_the_best_more_often_than_a_tie_or_nothing_and_no_less_than_a_whole_one() -> None:
    draw = Random(11)
    # Only 729 tournaments differ.
    tournaments = Counter(tournament(draw) for _ in range(TOURNAMENTS))
    half = found(wins, tournaments)
    assert half > found(as_ties, tournaments) + 0.05
    assert half > found(left_out, tournaments) + 0.05
    assert half >= found(as_wins, tournaments)
