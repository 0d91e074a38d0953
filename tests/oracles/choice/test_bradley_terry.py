"""Bradley-Terry strengths are choix's to 1e-6, given the same games and the same prior.

The prior is an imaginary opponent, and choix gets it as one more item; its strength is then the zero point.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations
from random import Random

import choix
import numpy as np
import pytest

from app.deliberation.choice.bradley_terry import PRIOR_WINS, bradley_terry

Outcomes = dict[tuple[str, str], Fraction]

KINDS = ("round robin", "sparse", "one order", "nothing")


def games(kind: str, random: Random) -> tuple[list[str], Outcomes]:
    names = list("abcdefghi"[: random.randint(2, 9)])
    outcomes: Outcomes = {}
    for one, other in combinations(names, 2):
        if kind == "round robin" or (kind == "sparse" and random.random() < 0.4):
            outcomes[one, other] = Fraction(random.randint(0, 6), 2)
            outcomes[other, one] = Fraction(random.randint(0, 6), 2)
        elif kind == "one order":
            outcomes[one, other] = Fraction(random.randint(1, 5))
    return names, outcomes


def sets_of_games(count: int) -> Iterator[tuple[list[str], Outcomes]]:
    random = Random(7)
    for number in range(count):
        yield games(KINDS[number % len(KINDS)], random)


def matrix(names: list[str], outcomes: Outcomes) -> np.ndarray:
    wins = np.zeros((len(names) + 1, len(names) + 1))
    for (winner, loser), count in outcomes.items():
        wins[names.index(winner), names.index(loser)] = float(count)
    wins[-1, :-1] = wins[:-1, -1] = PRIOR_WINS
    return wins


def test_strengths_are_those_of_choix_spectral_method() -> None:
    for names, outcomes in sets_of_games(300):
        theirs = choix.ilsr_pairwise_dense(matrix(names, outcomes), max_iter=1_000, tol=1e-10)
        ours = bradley_terry(names, outcomes)
        assert [ours[name] for name in names] == pytest.approx(theirs[:-1] - theirs[-1], abs=1e-6), outcomes


def test_strengths_are_those_of_choix_minorisation() -> None:
    for names, outcomes in sets_of_games(40):
        wins = matrix(names, outcomes)
        # Its games are whole: twice as many of each leave the maximum where it is.
        data = [pair for pair in permutations(range(len(wins)), 2) for _ in range(round(2 * wins[pair]))]
        theirs = choix.mm_pairwise(len(wins), data, max_iter=100_000, tol=1e-10)
        ours = bradley_terry(names, outcomes)
        assert [ours[name] for name in names] == pytest.approx(theirs[:-1] - theirs[-1], abs=1e-6), outcomes
