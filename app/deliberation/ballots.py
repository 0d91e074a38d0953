"""Ballots: what reviewers scored, counted into one ranking.

Sums are exact (integers and fractions) and become floats only when they leave, so that neither the order in which
ballots arrive nor rounding can make or break a tie. A ballot that is missing, or a candidate that a ballot does not
show, is missing: nothing here ever counts it as zero.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import lcm, sqrt

from app.deliberation.outputs import Scores
from app.deliberation.specification import Criterion

CandidateId = str
"""An agent and, after `#`, the version of its text: `dev-001`, `dev-001#1`."""

SCORE_MAX = 10

Tiers = Sequence[Sequence[CandidateId]]
"""Candidates best first; those of one tier are equal."""

_Totals = dict[CandidateId, int]
_Exact = dict[CandidateId, Fraction]


@dataclass(frozen=True)
class Ballot:
    """One reviewer's scores, 0 to 10, by candidate and criterion id; only the candidates that it was shown."""

    reviewer: str
    scores: Mapping[CandidateId, Mapping[str, int]]


@dataclass(frozen=True)
class Ranked:
    """A strict order with what it was made from.

    `scores` are the aggregates in [0, 1], None for a candidate that nobody scored. `tie` tells that the first two had
    equal aggregates before the tie-breaks, `margin` by how much the first leads the second; None with less than two
    scored candidates.
    """

    order: tuple[CandidateId, ...]
    scores: dict[CandidateId, float | None]
    tie: bool
    margin: float | None


def author(candidate: CandidateId) -> str:
    """The agent that wrote a candidate."""
    return candidate.partition("#")[0]


def ballot(reviewer: str, labels: Mapping[str, CandidateId], scores: Scores) -> Ballot:
    """The ballot in a reviewer's answer; `labels` names the candidate behind each letter (else KeyError)."""
    return Ballot(
        reviewer,
        {
            labels[letter]: {entry.id: entry.score for entry in scored.criteria}
            for letter, scored in scores.candidates.items()
        },
    )


def _weights(criteria: Sequence[Criterion]) -> dict[str, int]:
    """Integers in the proportion of the weights, read as the decimals that the client wrote: 0.1 + 0.2 is 0.3 here."""
    if not criteria:
        raise ValueError("a rubric has at least one criterion")
    exact = {criterion.id: Fraction(str(criterion.weight)) for criterion in criteria}
    scale = lcm(*(weight.denominator for weight in exact.values()))
    return {criterion: int(weight * scale) for criterion, weight in exact.items()}


def _total(scores: Mapping[str, int], weights: Mapping[str, int]) -> int:
    return sum(weight * scores[criterion] for criterion, weight in weights.items())


def _totals(cast: Ballot, weights: Mapping[str, int]) -> _Totals:
    return {candidate: _total(scores, weights) for candidate, scores in cast.scores.items()}


def weighted(scores_of_candidate: Mapping[str, int], criteria: Sequence[Criterion]) -> float:
    """Weighted mean of one candidate's scores, 0 to 10. KeyError: a criterion without a score."""
    weights = _weights(criteria)
    return float(Fraction(_total(scores_of_candidate, weights), sum(weights.values())))


def _tiers(totals: _Totals) -> list[tuple[CandidateId, ...]]:
    tiers: dict[int, list[CandidateId]] = defaultdict(list)
    for candidate in sorted(totals):
        tiers[totals[candidate]].append(candidate)
    return [tuple(tiers[total]) for total in sorted(tiers, reverse=True)]


def order(ballot: Ballot, criteria: Sequence[Criterion]) -> list[tuple[CandidateId, ...]]:
    """The ballot's candidates best first, in tiers of equal weighted totals."""
    return _tiers(_totals(ballot, _weights(criteria)))


def _averages(votes: Iterator[tuple[CandidateId, Fraction]]) -> _Exact:
    sums: dict[CandidateId, Fraction] = defaultdict(Fraction)
    counts: dict[CandidateId, int] = defaultdict(int)
    for candidate, value in votes:
        sums[candidate] += value
        counts[candidate] += 1
    return {candidate: total / counts[candidate] for candidate, total in sums.items()}


def _borda_votes(ballots: Sequence[Ballot], weights: Mapping[str, int]) -> Iterator[tuple[CandidateId, Fraction]]:
    for cast in ballots:
        last = len(cast.scores) - 1
        if last < 1:
            continue
        first = 0
        for tier in _tiers(_totals(cast, weights)):
            # Places first … first+len-1 are shared, so each of the tier takes their mean; doubled to stay whole.
            value = 1 - Fraction(2 * first + len(tier) - 1, 2 * last)
            first += len(tier)
            for candidate in tier:
                yield candidate, value


def _mean_votes(ballots: Sequence[Ballot], weights: Mapping[str, int]) -> Iterator[tuple[CandidateId, Fraction]]:
    best = SCORE_MAX * sum(weights.values())
    for cast in ballots:
        for candidate, total in _totals(cast, weights).items():
            yield candidate, Fraction(total, best)


def borda(ballots: Sequence[Ballot], criteria: Sequence[Criterion]) -> dict[CandidateId, float]:
    """Borda scores in [0, 1]: (m-1-place)/(m-1) on a ballot of m, averaged over the ballots that show the candidate.

    Equal candidates share the mean of their places. A ballot of fewer than two says nothing.
    """
    exact = _averages(_borda_votes(ballots, _weights(criteria)))
    return {candidate: float(value) for candidate, value in exact.items()}


def mean_scores(ballots: Sequence[Ballot], criteria: Sequence[Criterion]) -> dict[CandidateId, float]:
    """Mean weighted score over the ballots that show the candidate, divided by ten: in [0, 1]."""
    exact = _averages(_mean_votes(ballots, _weights(criteria)))
    return {candidate: float(value) for candidate, value in exact.items()}


def _criterion_means(ballots: Sequence[Ballot]) -> dict[CandidateId, dict[str, Fraction]]:
    given: dict[CandidateId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for cast in ballots:
        for candidate, scores in cast.scores.items():
            for criterion, score in scores.items():
                given[candidate][criterion].append(score)
    return {
        candidate: {criterion: Fraction(sum(scores), len(scores)) for criterion, scores in by_criterion.items()}
        for candidate, by_criterion in given.items()
    }


def criterion_means(ballots: Sequence[Ballot]) -> dict[CandidateId, dict[str, float]]:
    """Mean score, 0 to 10, by candidate and criterion, over the ballots that show the candidate."""
    return {
        candidate: {criterion: float(mean) for criterion, mean in means.items()}
        for candidate, means in _criterion_means(ballots).items()
    }


def _aggregate(ballots: Sequence[Ballot], weights: Mapping[str, int], means: _Exact) -> _Exact:
    """Borda over the ballots that compare authors; the mean scores where those are none or leave a candidate out.

    A ballot of one author's versions would lift its best to 1 without comparing it to anyone, as every ballot of a
    council of two does; it still counts in the mean and in the tie-breaks.
    """
    comparing = [cast for cast in ballots if len({author(candidate) for candidate in cast.scores}) > 1]
    counted = _averages(_borda_votes(comparing, weights))
    return counted if counted.keys() == means.keys() else means


def _head_to_head(group: Sequence[CandidateId], totals: Sequence[_Totals]) -> dict[CandidateId, int]:
    """Pairwise wins less losses within the group (Copeland): of two candidates, the one that more ballots put above.

    Counting within the group keeps the order transitive where three candidates beat each other in a circle.
    """
    points = dict.fromkeys(group, 0)
    for one, other in combinations(group, 2):
        seen = [cast for cast in totals if one in cast and other in cast]
        lead = sum((cast[one] > cast[other]) - (cast[one] < cast[other]) for cast in seen)
        won = (lead > 0) - (lead < 0)
        points[one] += won
        points[other] -= won
    return points


def _seeded_hash(seed: int, candidate: CandidateId) -> str:
    return hashlib.sha256(f"{seed}:{candidate}".encode()).hexdigest()


def rank(
    candidates: Sequence[CandidateId],
    ballots: Sequence[Ballot],
    criteria: Sequence[Criterion],
    tokens: Mapping[CandidateId, int],
    seed: int,
) -> Ranked:
    """Rank the candidates by normalised Borda, or by mean score where Borda cannot compare (a council of two).

    Ties: mean score, head to head, the worst criterion's mean (higher first), fewer tokens, a hash of seed and
    candidate. Candidates that nobody scored come last, by the chain's tail. `tokens` must name every candidate.
    Ballots count as they were cast: a candidate that is not listed keeps its place on them and is not ranked.
    """
    weights = _weights(criteria)
    means = _averages(_mean_votes(ballots, weights))
    aggregate = _aggregate(ballots, weights, means)
    worst = {candidate: min(by_criterion.values()) for candidate, by_criterion in _criterion_means(ballots).items()}
    listed = sorted(set(candidates))
    scored = [candidate for candidate in listed if candidate in aggregate]

    groups: dict[tuple[Fraction, Fraction], list[CandidateId]] = defaultdict(list)
    for candidate in scored:
        groups[aggregate[candidate], means[candidate]].append(candidate)
    totals = [_totals(cast, weights) for cast in ballots]
    duels = {candidate: won for group in groups.values() for candidate, won in _head_to_head(group, totals).items()}

    def tail(candidate: CandidateId) -> tuple[int, str]:
        return tokens[candidate], _seeded_hash(seed, candidate)

    def place(candidate: CandidateId) -> tuple[Fraction, Fraction, int, Fraction, int, str]:
        return (
            -aggregate[candidate],
            -means[candidate],
            -duels[candidate],
            -worst[candidate],
            *tail(candidate),
        )

    winners = sorted(scored, key=place)
    unscored = sorted((candidate for candidate in listed if candidate not in aggregate), key=tail)
    lead = aggregate[winners[0]] - aggregate[winners[1]] if len(winners) > 1 else None
    return Ranked(
        order=(*winners, *unscored),
        scores={c: float(aggregate[c]) if c in aggregate else None for c in (*winners, *unscored)},
        tie=lead == 0,
        margin=None if lead is None else float(lead),
    )


def kendall_tau(first: Tiers, second: Tiers) -> float:
    """Kendall's τ-b of two orders of the same candidates, in tiers; on strict orders it is the plain τ.

    0 when one side puts all in one tier: no preference neither agrees nor disagrees (τ-b itself is undefined there).
    Raises ValueError unless both sides hold the same candidates, two at least. Kendall, Biometrika 33 (1945).
    """
    places = {candidate: place for place, tier in enumerate(first) for candidate in tier}
    others = {candidate: place for place, tier in enumerate(second) for candidate in tier}
    if places.keys() != others.keys() or len(places) < 2:
        raise ValueError("Kendall's tau compares two orders of the same candidates, two at least")
    balance = untied_first = untied_second = 0
    for one, other in combinations(places, 2):
        here = (places[one] < places[other]) - (places[one] > places[other])
        there = (others[one] < others[other]) - (others[one] > others[other])
        balance += here * there
        untied_first += abs(here)
        untied_second += abs(there)
    if not untied_first or not untied_second:
        return 0.0
    return balance / sqrt(untied_first * untied_second)


def agreement(ballots: Sequence[Ballot], ranking: Sequence[CandidateId], criteria: Sequence[Criterion]) -> float | None:
    """Mean Kendall τ-b of each ballot against the ranking of its candidates, in [-1, 1].

    None when no ballot shows two candidates of the ranking.
    """
    taus: list[float] = []
    for cast in sorted(ballots, key=lambda cast: cast.reviewer):
        tiers = [[candidate for candidate in tier if candidate in ranking] for tier in order(cast, criteria)]
        shown = {candidate for tier in tiers for candidate in tier}
        if len(shown) > 1:
            taus.append(kendall_tau(tiers, [[candidate] for candidate in ranking if candidate in shown]))
    return sum(taus) / len(taus) if taus else None


def dissent(
    ballots: Sequence[Ballot],
    winner: CandidateId,
    criteria: Sequence[Criterion],
    author_of: Callable[[CandidateId], str] = author,
) -> tuple[tuple[str, str], ...]:
    """(reviewer, preferred agent) of each ballot whose best candidate is strictly above the winner's best, by reviewer.

    `winner` is an agent or one of its candidates. A ballot that does not show the winner, such as the winner's own,
    compares nothing and is no dissent. Of equally preferred agents the first by id is named.
    """
    found: list[tuple[str, str]] = []
    for cast in ballots:
        tiers = order(cast, criteria)
        if any(author_of(candidate) == author_of(winner) for tier in tiers for candidate in tier):
            preferred = [author_of(candidate) for candidate in tiers[0]]
            if author_of(winner) not in preferred:
                found.append((cast.reviewer, min(preferred)))
    return tuple(sorted(found))
