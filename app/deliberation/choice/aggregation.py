"""Rules that count ballots into one aggregate per candidate, in [0, 1].

A rule reads the ballots' weighted totals, whole numbers, by candidate. A candidate that a ballot does not show never
counts as zero. Aggregates are fractions, so that neither rounding nor the order of ballots makes or breaks a tie; only
Bradley-Terry's are rounded, to nine places.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from app.deliberation.choice.bradley_terry import bradley_terry, win_rates
from app.deliberation.choice.pairwise import CandidateId, Duels, Orders, copeland, duels, kemeny, schulze

Aggregation = Literal["borda", "mean", "trimmed_mean", "copeland", "schulze", "kemeny", "bradley_terry"]
"""The rules; `docs/aggregation.md` says when to choose which."""

Totals = Mapping[CandidateId, int]
"""One ballot's weighted totals, for the candidates that it shows."""

Exact = dict[CandidateId, Fraction]

TRIMMED_SHARE = 5
"""One in five of a candidate's totals is dropped at each end, at least one where there are three."""

_PLACES = 9


@dataclass(frozen=True)
class Aggregate:
    """A rule's result: a score for each candidate and, for rules that rank, the orders it allows.

    `degraded` says when the rule could not be followed exactly.
    """

    scores: Exact
    orders: Sequence[Orders] = ()
    degraded: tuple[str, ...] = ()

    def first(self, preferred: Sequence[CandidateId]) -> list[CandidateId]:
        """The order; `preferred` has the candidates by score and, where scores are equal, by the tie-breaks."""
        return [c for part in self.orders for c in part.first(preferred)] if self.orders else list(preferred)


def tiers(totals: Totals) -> list[tuple[CandidateId, ...]]:
    """A ballot's candidates best first, those of equal totals together and by name."""
    by_total: dict[int, list[CandidateId]] = defaultdict(list)
    for candidate in sorted(totals):
        by_total[totals[candidate]].append(candidate)
    return [tuple(by_total[total]) for total in sorted(by_total, reverse=True)]


def borda(ballots: Sequence[Totals]) -> Exact:
    """(m-1-place)/(m-1) on a ballot of m, averaged over the ballots that show the candidate.

    Equal candidates share the mean of their places. A ballot of fewer than two does not count. Borda, 1781.
    """
    return _averages(vote for cast in ballots if len(cast) > 1 for vote in _shares(tiers(cast)).items())


def _shares(places: Sequence[Collection[CandidateId]]) -> Exact:
    """1 for the first place down to 0 for the last; the members of a tier take the mean of the places they fill."""
    shares: Exact = {}
    last = sum(map(len, places)) - 1
    first = 0
    for tier in places:
        # Places first … first+len-1 are shared; doubled to stay whole.
        shares.update(dict.fromkeys(tier, 1 - Fraction(2 * first + len(tier) - 1, 2 * last)))
        first += len(tier)
    return shares


def _averages(votes: Iterable[tuple[CandidateId, Fraction]]) -> Exact:
    sums: dict[CandidateId, Fraction] = defaultdict(Fraction)
    counts: dict[CandidateId, int] = defaultdict(int)
    for candidate, value in votes:
        sums[candidate] += value
        counts[candidate] += 1
    return {candidate: total / counts[candidate] for candidate, total in sums.items()}


def mean(ballots: Sequence[Totals], best: int) -> Exact:
    """The mean total over the ballots that show the candidate, as a part of the `best` that there can be."""
    return {candidate: Fraction(sum(given), best * len(given)) for candidate, given in _given(ballots).items()}


def trimmed_mean(ballots: Sequence[Totals], best: int) -> Exact:
    """The mean without a candidate's highest and lowest totals: a fifth at each end, and one at least of three.

    So one outlying reviewer changes nothing. With one or two totals none is dropped. Tukey, 1962; Wilcox,
    Introduction to Robust Estimation (2012), recommends the fifth.
    """
    kept: dict[CandidateId, list[int]] = {}
    for candidate, given in _given(ballots).items():
        dropped = max(1, len(given) // TRIMMED_SHARE) if len(given) > 2 else 0
        kept[candidate] = sorted(given)[dropped : len(given) - dropped]
    return {candidate: Fraction(sum(given), best * len(given)) for candidate, given in kept.items()}


def _given(ballots: Sequence[Totals]) -> dict[CandidateId, list[int]]:
    given: dict[CandidateId, list[int]] = defaultdict(list)
    for cast in ballots:
        for candidate, total in cast.items():
            given[candidate].append(total)
    return given


def strengths(table: Duels) -> Exact:
    """Bradley-Terry's mean chance of beating another candidate; each ballot that shows both is a game between them.

    A ballot that puts them level is half a win for each.
    """
    wins = {
        (one, other): Fraction(2 * table.above[i][j] + table.level[i][j], 2)
        for i, one in enumerate(table.candidates)
        for j, other in enumerate(table.candidates)
        if i != j
    }
    rates = win_rates(bradley_terry(table.candidates, wins))
    # Newton's last bits depend on the order of the equations; rounding makes equal strengths equal.
    return {candidate: Fraction(str(round(rate, _PLACES))) for candidate, rate in rates.items()}


def _ordered(parts: Sequence[Orders]) -> Aggregate:
    shares = _shares([tier for part in parts for tier in part.tiers()])
    inexact = sorted(len(part.candidates) for part in parts if not part.exact)
    degraded = tuple(f"{size} candidates in a circle: ordered by schulze instead of kemeny" for size in inexact)
    return Aggregate(shares, parts, degraded)


_PAIRWISE: dict[Aggregation, Callable[[Duels], Aggregate]] = {
    "copeland": lambda table: Aggregate(copeland(table)),
    "schulze": lambda table: _ordered([schulze(table)]),
    "kemeny": lambda table: _ordered(kemeny(table)),
    "bradley_terry": lambda table: Aggregate(strengths(table)),
}


def aggregate(
    rule: Aggregation,
    candidates: Sequence[CandidateId],
    ballots: Sequence[Totals],
    comparing: Sequence[Totals],
    best: int,
) -> Aggregate:
    """Count the ballots by a rule; `best` is the highest total that a ballot can give.

    `comparing` are the ballots that compare candidates of several authors. When they omit a scored candidate, no
    comparing rule can place it, and the mean scores decide. Pairwise rules count duels of `candidates` only; the
    others keep the places of unlisted candidates.
    """
    means = mean(ballots, best)
    if rule == "mean":
        return Aggregate(means)
    if rule == "trimmed_mean":
        return Aggregate(trimmed_mean(ballots, best))
    scored = [candidate for candidate in sorted(set(candidates)) if candidate in means]
    compared = {candidate for cast in comparing for candidate in cast}
    if rule == "borda":
        return Aggregate(borda(comparing) if compared == means.keys() else means)
    if len(scored) < 2 or not compared.issuperset(scored):
        return Aggregate(means, degraded=(f"too few ballots for {rule}: ranked by the mean scores",) if means else ())
    return _PAIRWISE[rule](duels(scored, comparing))
