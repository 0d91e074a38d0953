"""Counts judges' comparisons of pairs into one ranking.

Judges favour a place: swapping a pair changed a third of GPT-4's verdicts (arXiv:2306.05685). So a pair is won only
when both orders agree, and is a tie when they differ. One order alone is half a comparison (arXiv:2305.17926). Which
order is missing does not depend on quality, so this favours no candidate. A missing comparison is no tie and no defeat.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum

from app.deliberation.choice.aggregation import CandidateId
from app.deliberation.choice.anonymity import nonce
from app.deliberation.choice.ballots import Ranked, author
from app.deliberation.choice.bradley_terry import bradley_terry, win_rates
from app.deliberation.choice.pairings import Pairing

# The iteration is exact to twelve digits; strengths that agree to nine are equal.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Comparison:
    judge: str
    pair: Pairing
    winner: CandidateId | None


def wins(comparisons: Collection[Comparison]) -> dict[Pairing, Fraction]:
    """The wins of a pair's first candidate over its second; a tie is half a win to each. A single order weighs half."""
    said: dict[Pairing, list[CandidateId | None]] = {}
    for comparison in comparisons:
        one, other = sorted(comparison.pair)
        said.setdefault((one, other), []).append(comparison.winner)
    counted: dict[Pairing, Fraction] = {}
    for (one, other), winners in said.items():
        agreed = winners[0] if len(set(winners)) == 1 else None
        weight = Fraction(len(winners), 2)
        share = Fraction(1, 2) if agreed is None else Fraction(agreed == one)
        counted[one, other] = weight * share
        counted[other, one] = weight - weight * share
    return counted


def rates(candidates: Sequence[CandidateId], comparisons: Collection[Comparison]) -> dict[CandidateId, float]:
    strengths = bradley_terry(candidates, wins(comparisons))
    return {candidate: round(rate, _DIGITS) for candidate, rate in win_rates(strengths).items()}


def ranked(
    candidates: Sequence[CandidateId], comparisons: Collection[Comparison], tokens: Mapping[CandidateId, int], seed: int
) -> Ranked:
    """Rank by `rates`. Ties: head to head, fewer tokens, a hash of seed and candidate. Uncompared ones come last."""
    counted, win_rates = wins(comparisons), rates(candidates, comparisons)
    compared = {candidate for pair in counted for candidate in pair}
    scores = {candidate: rate if candidate in compared else None for candidate, rate in win_rates.items()}

    def duels(one: CandidateId) -> Fraction:
        level = [other for other in scores if scores[other] == scores[one] and (one, other) in counted]
        return sum((counted[one, other] - counted[other, one] for other in level), start=Fraction())

    def place(one: CandidateId) -> tuple[bool, float, Fraction, int, str]:
        return one not in compared, -win_rates[one], -duels(one), tokens[one], nonce(seed, one)

    order = tuple(sorted(scores, key=place))
    best = [score for candidate in order if (score := scores[candidate]) is not None]
    margin = round(best[0] - best[1], _DIGITS) if len(best) > 1 else None
    return Ranked(order=order, scores={c: scores[c] for c in order}, tie=margin == 0, margin=margin)


def beaten(
    pair: Pairing, comparisons: Collection[Comparison], tokens: Mapping[CandidateId, int], seed: int
) -> CandidateId:
    return ranked(
        pair, [comparison for comparison in comparisons if set(comparison.pair) == set(pair)], tokens, seed
    ).order[-1]


def agreement(comparisons: Collection[Comparison], order: Sequence[CandidateId]) -> float | None:
    """Mean Kendall τ of the comparisons against a ranking, in [-1, 1]: 1, 0 or -1 for each; None without any."""
    place = {candidate: place for place, candidate in enumerate(order)}
    taus = [
        0
        if comparison.winner is None
        else 1
        if comparison.winner == min(comparison.pair, key=place.__getitem__)
        else -1
        for comparison in comparisons
    ]
    return fsum(taus) / len(taus) if taus else None


def dissent(comparisons: Collection[Comparison], winner: CandidateId) -> tuple[tuple[str, str], ...]:
    against = {
        (comparison.judge, author(comparison.winner))
        for comparison in comparisons
        if winner in comparison.pair and comparison.winner not in (None, winner)
    }
    return tuple(sorted(against))
