"""Bradley-Terry: strengths behind pairwise wins, so that a win over a strong candidate counts for more.

i beats j with probability s_i / (s_i + s_j) [Biometrika 39 (1952)]. Each candidate also draws one imaginary game
against strength 1, so that all strengths are finite: half the weak prior of Newman, JMLR 24 (2023).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import exp, fsum, log1p

PRIOR_WINS = 0.5
"""Imaginary wins, and as many losses, of every candidate against an opponent of log-strength 0."""

_STEPS_MAX = 200
_CONVERGED = 1e-12

_Matrix = list[list[float]]


def bradley_terry(candidates: Sequence[str], outcomes: Mapping[tuple[str, str], Fraction | float]) -> dict[str, float]:
    """Log-strengths by candidate: `outcomes[i, j]` is how often i beat j, and a tie is half a win to each.

    Maximises the strictly concave log-posterior by Newton's method, its steps damped as Sun and Tran-Dinh [Math.
    Program. 178 (2019)] do for logistic losses; any order of the arguments gives the same bits.
    """
    names = sorted(set(candidates))
    place = {name: index for index, name in enumerate(names)}
    wins = [[0.0] * len(names) for _ in names]
    for (winner, loser), count in outcomes.items():
        if winner == loser or winner not in place or loser not in place or count < 0:
            raise ValueError(f"not an outcome between two candidates: {winner} over {loser}, {count} times")
        wins[place[winner]][place[loser]] = float(count)
    strengths = [0.0] * len(names)
    for _ in range(_STEPS_MAX):
        step = _solved(*_curvature_and_slope(wins, strengths))
        # The most by which a lead over a rival, or over the prior's opponent, would change.
        change = max([0.0, *step]) - min([0.0, *step])
        damping = log1p(change) / change if change else 1.0
        strengths = [strength + damping * part for strength, part in zip(strengths, step, strict=True)]
        if change < _CONVERGED:
            break
    return dict(zip(names, strengths, strict=True))


def win_rates(strengths: Mapping[str, float]) -> dict[str, float]:
    """Each candidate's mean chance, in [0, 1], of beating one of the others, by log-strengths; 0.5 when alone."""
    return {
        name: fsum(_chance(strength - other) for rival, other in strengths.items() if rival != name)
        / (len(strengths) - 1)
        if len(strengths) > 1
        else 0.5
        for name, strength in strengths.items()
    }


def _chance(lead: float) -> float:
    return 1 / (1 + exp(-lead)) if lead >= 0 else exp(lead) / (1 + exp(lead))


def _curvature_and_slope(wins: _Matrix, strengths: Sequence[float]) -> tuple[_Matrix, list[float]]:
    slope = [PRIOR_WINS * (1 - 2 * _chance(strength)) for strength in strengths]
    curvature = [[0.0] * len(strengths) for _ in strengths]
    for one, strength in enumerate(strengths):
        curvature[one][one] += 2 * PRIOR_WINS * _chance(strength) * _chance(-strength)
        for other in range(one):
            games = wins[one][other] + wins[other][one]
            if games:
                chance, against = _chance(strength - strengths[other]), _chance(strengths[other] - strength)
                surprise = wins[one][other] * against - wins[other][one] * chance
                slope[one] += surprise
                slope[other] -= surprise
                weight = games * chance * against
                curvature[one][one] += weight
                curvature[other][other] += weight
                curvature[one][other] = curvature[other][one] = -weight
    return curvature, slope


def _solved(matrix: _Matrix, right: Sequence[float]) -> list[float]:
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for pivot in range(size):
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / rows[pivot][pivot]
            if factor:
                rows[below] = [value - factor * lead for value, lead in zip(rows[below], rows[pivot], strict=True)]
    solution = [0.0] * size
    for row in range(size - 1, -1, -1):
        known = fsum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution
