"""Rules that count ballots into one aggregate per candidate, in [0, 1].

A rule reads the ballots' weighted totals, whole numbers, by candidate. A candidate that a ballot does not show never
counts as zero. Aggregates are fractions, so that neither rounding nor the order of ballots makes or breaks a tie.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Literal

Aggregation = Literal["borda", "mean", "trimmed_mean", "copeland"]

CandidateId = str
"""An agent and, after `#`, the version of its text: `dev-001`, `dev-001#1`."""

Totals = Mapping[CandidateId, int]
"""One ballot's weighted totals, for the candidates that it shows."""

Exact = dict[CandidateId, Fraction]

TRIMMED_SHARE = 5


def tiers(totals: Totals) -> list[tuple[CandidateId, ...]]:
    by_total: dict[int, list[CandidateId]] = defaultdict(list)
    for candidate in sorted(totals):
        by_total[totals[candidate]].append(candidate)
    return [tuple(by_total[total]) for total in sorted(by_total, reverse=True)]


def borda(ballots: Sequence[Totals]) -> Exact:
    """(m-1-place)/(m-1) on a ballot of m, averaged over the ballots that show the candidate (Borda, 1781).

    Equal candidates share the mean of their places. A ballot of fewer than two does not count.
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
    values: dict[CandidateId, list[Fraction]] = defaultdict(list)
    for candidate, value in votes:
        values[candidate].append(value)
    return {candidate: sum(received, Fraction()) / len(received) for candidate, received in values.items()}


def mean(ballots: Sequence[Totals], best: int) -> Exact:
    return {
        candidate: Fraction(sum(totals), best * len(totals))
        for candidate, totals in _totals_by_candidate(ballots).items()
    }


def trimmed_mean(ballots: Sequence[Totals], best: int) -> Exact:
    """The mean without a fifth of a candidate's totals at each end (Wilcox, 2012): of three one, of two none."""
    kept: dict[CandidateId, list[int]] = {}
    for candidate, totals in _totals_by_candidate(ballots).items():
        dropped = max(1, len(totals) // TRIMMED_SHARE) if len(totals) > 2 else 0
        kept[candidate] = sorted(totals)[dropped : len(totals) - dropped]
    return {candidate: Fraction(sum(totals), best * len(totals)) for candidate, totals in kept.items()}


def _totals_by_candidate(ballots: Sequence[Totals]) -> dict[CandidateId, list[int]]:
    totals: dict[CandidateId, list[int]] = defaultdict(list)
    for cast in ballots:
        for candidate, total in cast.items():
            totals[candidate].append(total)
    return totals


def wins_less_losses(candidates: Sequence[CandidateId], ballots: Sequence[Totals]) -> dict[CandidateId, int]:
    """Pairwise wins less losses. A ballot that does not show both of a pair, or puts them level, does not count."""
    points = dict.fromkeys(candidates, 0)
    for one, other in combinations(points, 2):
        leads = [cast[one] - cast[other] for cast in ballots if one in cast and other in cast]
        above = sum(lead > 0 for lead in leads) - sum(lead < 0 for lead in leads)
        won = (above > 0) - (above < 0)
        points[one] += won
        points[other] -= won
    return points


def copeland(candidates: Sequence[CandidateId], ballots: Sequence[Totals]) -> Exact:
    """Duels won and half of those drawn, as a part of all (Copeland, 1951). A pair that no ballot shows is drawn."""
    rivals = len(candidates) - 1
    points = wins_less_losses(candidates, ballots)
    return {candidate: Fraction(won + rivals, 2 * rivals) for candidate, won in points.items()}


def aggregate(
    rule: Aggregation,
    candidates: Sequence[CandidateId],
    ballots: Sequence[Totals],
    comparing: Sequence[Totals],
    best: int,
) -> tuple[Exact, tuple[str, ...]]:
    """The aggregates by a rule, and why the rule could not be followed; `best` is a ballot's highest possible total.

    When the ballots that compare several authors omit a scored candidate, the mean scores decide.
    """
    means = mean(ballots, best)
    compared = {candidate for cast in comparing for candidate in cast}
    match rule:
        case "mean":
            return means, ()
        case "trimmed_mean":
            return trimmed_mean(ballots, best), ()
        case "borda":
            return (borda(comparing) if compared == means.keys() else means), ()
        case "copeland":
            scored = [candidate for candidate in sorted(set(candidates)) if candidate in means]
            if len(scored) > 1 and compared.issuperset(scored):
                return copeland(scored, comparing), ()
            return means, ("too few ballots for copeland: ranked by the mean scores",) if means else ()
