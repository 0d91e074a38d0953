"""Closed forms of pairwise comparison: judges in both orders, a fused text against the best one, tournaments."""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import prod


def orders_agree(judge: float, bias: float) -> float:
    """How often both orders name the same winner of a right and a wrong candidate.

    The judge names the right one with probability q+b in the first position and q-b in the second. So both orders name
    it with (q+b)(q-b), and both name the wrong one with (1-q-b)(1-q+b).
    """
    return pair_won(judge, bias) + pair_lost(judge, bias)


def pair_won(judge: float, bias: float) -> float:
    """How often the right one of two wins in both orders."""
    return (judge + bias) * (judge - bias)


def pair_lost(judge: float, bias: float) -> float:
    """How often the wrong one of two wins in both orders."""
    return (1 - judge - bias) * (1 - judge + bias)


def right_when_consistent(judge: float, bias: float) -> float:
    """How often the winner is right, given that both orders agree."""
    return pair_won(judge, bias) / orders_agree(judge, bias)


def equals_won(bias: float) -> float:
    """How often a given one of two equal candidates wins in both orders: ¼ - b²."""
    return (0.5 + bias) * (0.5 - bias)


def fused(best_right: float, some_right: float, writer: float, judge: float, bias: float) -> tuple[float, float]:
    """How often a fusion's verdict is right, and how often the fused text is shipped: only if it wins in both orders.

    The writer is right with w if some draft is right, and never otherwise. If both texts are right or both are wrong,
    shipping changes nothing. Else a right fused text replaces the best one with W (`pair_won`), a wrong one with L
    (`pair_lost`), and W > L for q > ½.
    """
    gains, losses, level = pair_won(judge, bias), pair_lost(judge, bias), equals_won(bias)
    missed = some_right - best_right
    right = best_right * (1 - (1 - writer) * losses) + missed * writer * gains
    shipped = (
        best_right * (writer * level + (1 - writer) * losses)
        + missed * (writer * gains + (1 - writer) * level)
        + (1 - some_right) * level
    )
    return right, shipped


def knockout_of_four(accuracy: float, judge: float, bias: float) -> float:
    """How often the winner of a knockout among four independent drafts is right.

    The right one of a pair wins with W, the wrong one with L, else it is a draw, which chance decides. A drawn final
    goes to the only finalist that won its semi-final outright, if there is one: Bradley-Terry counts all games.
    """
    wins, losses = pair_won(judge, bias), pair_lost(judge, bias)
    right, wrong = accuracy, 1 - accuracy
    drawn, level = 1 - wins - losses, 2 * equals_won(bias)
    # (is the finalist right, did it win outright) → probability
    finalist = {
        (True, True): right**2 * level + 2 * right * wrong * wins,
        (True, False): right**2 * (1 - level) + right * wrong * drawn,
        (False, True): wrong**2 * level + 2 * right * wrong * losses,
        (False, False): wrong**2 * (1 - level) + right * wrong * drawn,
    }
    both_right = (finalist[True, True] + finalist[True, False]) ** 2
    mixed = sum(
        2 * finalist[True, outright] * finalist[False, other] * (wins + drawn * (0.5 + (outright - other) / 2))
        for outright, other in product((True, False), repeat=2)
    )
    return both_right + mixed


def round_robin(agents: int, judge: float, bias: float) -> Callable[[int], float]:
    """g(k): how often the winner of a round robin is right given k right drafts, by enumeration of all outcomes.

    Each pair is won by either side or drawn. All pairs meet once, so Bradley-Terry strengths have the order of the
    points (a draw is half a point). Points among the tied break a tie, then chance does.
    """
    pairs = list(combinations(range(agents), 2))

    def given(k: int) -> float:
        total = 0.0
        for ended in product((1, 0, -1), repeat=len(pairs)):
            chance = prod(
                _pair_ends(one < k, other < k, end, judge, bias) for (one, other), end in zip(pairs, ended, strict=True)
            )
            leaders = _leaders(range(agents), pairs, ended)
            leaders = _leaders(leaders, pairs, ended)
            total += chance * sum(each < k for each in leaders) / len(leaders)
        return total

    return given


def _pair_ends(one_right: bool, other_right: bool, end: int, judge: float, bias: float) -> float:
    if one_right == other_right:
        won = lost = equals_won(bias)
    else:
        won, lost = pair_won(judge, bias), pair_lost(judge, bias)
        if other_right:
            won, lost = lost, won
    return {1: won, 0: 1 - won - lost, -1: lost}[end]


def _leaders(players: Sequence[int], pairs: Sequence[tuple[int, int]], ended: Sequence[int]) -> list[int]:
    """The players with most points in the games among them."""
    points = dict.fromkeys(players, 0)
    for (one, other), end in zip(pairs, ended, strict=True):
        if one in points and other in points:
            points[one] += end
            points[other] -= end
    return [player for player in players if points[player] == max(points.values())]
