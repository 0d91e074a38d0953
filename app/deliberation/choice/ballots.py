"""Counts the reviewers' ballots into one ranking.

Sums are exact and become floats only in the result: neither rounding nor the order of arrival makes or breaks a tie.
A missing ballot, or a candidate that a ballot does not show, never counts as zero.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import fsum, lcm, sqrt

from app.deliberation.choice import aggregation as rules
from app.deliberation.choice.aggregation import (
    Aggregation,
    CandidateId,
    Totals,
    aggregate,
    tiers,
    wins_less_losses,
)
from app.deliberation.outputs import Scores
from app.deliberation.specification import Criterion

SCORE_MAX = 10

Tiers = Sequence[Sequence[CandidateId]]


@dataclass(frozen=True)
class Ballot:
    reviewer: str
    scores: Mapping[CandidateId, Mapping[str, int]]


@dataclass(frozen=True)
class Ranked:
    """A strict order and the aggregates behind it, in [0, 1], None for a candidate without a ballot.

    `tie`: the first two have equal aggregates before the tie-breaks. `margin`: the lead of the first over the second.
    `degraded`: why the requested rule could not be followed exactly.
    """

    order: tuple[CandidateId, ...]
    scores: dict[CandidateId, float | None]
    tie: bool
    margin: float | None
    degraded: tuple[str, ...] = ()


def candidate_id(author: str, version: int) -> CandidateId:
    return author if version == 0 else f"{author}#{version}"


def author(candidate: CandidateId) -> str:
    return candidate.partition("#")[0]


def ballot(reviewer: str, labels: Mapping[str, CandidateId], scores: Scores) -> Ballot:
    by_letter = scores.candidates.items()
    return Ballot(reviewer, {labels[letter]: {e.id: e.score for e in scored.criteria} for letter, scored in by_letter})


def _weights(criteria: Sequence[Criterion]) -> dict[str, int]:
    """Integers in proportion to the weights, read as the client's decimals: 0.1 + 0.2 is 0.3 here."""
    if not criteria:
        raise ValueError("a rubric has at least one criterion")
    exact = {criterion.id: Fraction(str(criterion.weight)) for criterion in criteria}
    scale = lcm(*(weight.denominator for weight in exact.values()))
    return {criterion: int(weight * scale) for criterion, weight in exact.items()}


def _totals(cast: Ballot, weights: Mapping[str, int]) -> Totals:
    return {
        candidate: sum(weight * scores[criterion] for criterion, weight in weights.items())
        for candidate, scores in cast.scores.items()
    }


def order(ballot: Ballot, criteria: Sequence[Criterion]) -> list[tuple[CandidateId, ...]]:
    return tiers(_totals(ballot, _weights(criteria)))


def mean_scores(ballots: Sequence[Ballot], criteria: Sequence[Criterion]) -> dict[CandidateId, float]:
    weights = _weights(criteria)
    exact = rules.mean([_totals(cast, weights) for cast in ballots], SCORE_MAX * sum(weights.values()))
    return {candidate: float(value) for candidate, value in exact.items()}


def criterion_means(ballots: Sequence[Ballot]) -> dict[CandidateId, dict[str, Fraction]]:
    by_candidate: dict[CandidateId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for cast in ballots:
        for candidate, scores in cast.scores.items():
            for criterion, score in scores.items():
                by_candidate[candidate][criterion].append(score)
    return {
        candidate: {criterion: Fraction(sum(scores), len(scores)) for criterion, scores in by_criterion.items()}
        for candidate, by_criterion in by_candidate.items()
    }


def rank(
    candidates: Sequence[CandidateId],
    ballots: Sequence[Ballot],
    criteria: Sequence[Criterion],
    tokens: Mapping[CandidateId, int],
    seed: int,
    aggregation: Aggregation = "borda",
) -> Ranked:
    """Rank the candidates by a rule, or by mean score where a rule cannot compare (a council of two).

    Ties: mean score, head to head, the worst criterion's mean (higher first), fewer tokens, a hash of seed and
    candidate. Candidates without a score come last. An unlisted candidate keeps its place on the ballots.

    A ballot that shows versions of one author counts in means and tie-breaks only: under Borda it would lift the
    author's best version to 1.
    """
    weights = _weights(criteria)
    totals = [_totals(cast, weights) for cast in ballots]
    best = SCORE_MAX * sum(weights.values())
    listed = sorted(set(candidates))
    comparing = [cast for cast in totals if len({author(candidate) for candidate in cast}) > 1]
    scores, degraded = aggregate(aggregation, listed, totals, comparing, best)
    means = rules.mean(totals, best)
    worst = {candidate: min(by_criterion.values()) for candidate, by_criterion in criterion_means(ballots).items()}
    scored = [candidate for candidate in listed if candidate in scores]

    groups: dict[tuple[Fraction, Fraction], list[CandidateId]] = defaultdict(list)
    for candidate in scored:
        groups[scores[candidate], means[candidate]].append(candidate)
    # Counting within a group keeps the order transitive when three candidates beat each other in a cycle.
    head_to_head = {c: points for group in groups.values() for c, points in wins_less_losses(group, totals).items()}

    def tail(candidate: CandidateId) -> tuple[int, str]:
        return tokens[candidate], hashlib.sha256(f"{seed}:{candidate}".encode()).hexdigest()

    def place(c: CandidateId) -> tuple[Fraction, Fraction, int, Fraction, int, str]:
        return -scores[c], -means[c], -head_to_head[c], -worst[c], *tail(c)

    winners = sorted(scored, key=place)
    unscored = sorted((candidate for candidate in listed if candidate not in scores), key=tail)
    lead = scores[winners[0]] - scores[winners[1]] if len(winners) > 1 else None
    return Ranked(
        order=(*winners, *unscored),
        scores={c: float(scores[c]) if c in scores else None for c in (*winners, *unscored)},
        tie=lead == 0,
        margin=None if lead is None else float(lead),
        degraded=degraded,
    )


def kendall_tau(first: Tiers, second: Tiers) -> float:
    """Kendall's τ-b of two orders of the same candidates, two at least, in tiers; 0 when one side is all one tier."""
    listed = {candidate for tier in first for candidate in tier}
    if listed != {candidate for tier in second for candidate in tier} or len(listed) < 2:
        raise ValueError("Kendall's tau compares two orders of the same candidates, two at least")
    bits = _bits(listed)
    return _tau_b(_relations(first, bits), _relations(second, bits)) or 0.0


# By candidate, as a bit: the candidates below and above it on a ballot, as sets of bits.
_Relations = Mapping[int, tuple[int, int]]


def _bits(candidates: Iterable[CandidateId]) -> dict[CandidateId, int]:
    return {candidate: 1 << place for place, candidate in enumerate(candidates)}


def _relations(tiers: Tiers, bits: Mapping[CandidateId, int]) -> _Relations:
    relations: dict[int, tuple[int, int]] = {}
    above, rest = 0, sum(bits[candidate] for tier in tiers for candidate in tier)
    for tier in tiers:
        level = sum(bits[candidate] for candidate in tier)
        rest ^= level
        relations.update((bits[candidate], (rest, above)) for candidate in tier)
        above |= level
    return relations


def _tau_b(first: _Relations, second: _Relations) -> float | None:
    common = first.keys() & second.keys()
    shown = sum(common)
    balance = untied_first = untied_second = 0
    for candidate in common:
        (below, _), (below_there, above_there) = first[candidate], second[candidate]
        below &= shown
        balance += (below & below_there).bit_count() - (below & above_there).bit_count()
        untied_first += below.bit_count()
        untied_second += (below_there & shown).bit_count()
    if not untied_first or not untied_second:
        return None
    return balance / sqrt(untied_first * untied_second)


def agreement(ballots: Sequence[Ballot], ranking: Sequence[CandidateId], criteria: Sequence[Criterion]) -> float | None:
    """Mean Kendall τ-b of ballots against the ranking, in [-1, 1]; None when no ballot shows two candidates of it."""
    taus: list[float] = []
    for cast in ballots:
        tiers = [[candidate for candidate in tier if candidate in ranking] for tier in order(cast, criteria)]
        shown = {candidate for tier in tiers for candidate in tier}
        if len(shown) > 1:
            taus.append(kendall_tau(tiers, [[candidate] for candidate in ranking if candidate in shown]))
    return fsum(taus) / len(taus) if taus else None


def effective_votes(ballots: Sequence[Ballot], criteria: Sequence[Criterion]) -> float | None:
    """The number of independent ballots that these are worth: N/(1+(N-1)ρ̂), None without any (Kish, 1965).

    ρ̂ is the mean Kendall τ-b of two ballots over the candidates that both show, clipped to [0, 1].
    """
    weights = _weights(criteria)
    bits = _bits({candidate for cast in ballots for candidate in cast.scores})
    relations = [_relations(tiers(_totals(cast, weights)), bits) for cast in ballots]
    taus = {
        (one, other): tau
        for one, other in combinations(range(len(relations)), 2)
        if (tau := _tau_b(relations[one], relations[other])) is not None
    }
    if not taus:
        return None
    counted = len({place for pair in taus for place in pair})
    correlation = min(1.0, max(0.0, fsum(taus.values()) / len(taus)))
    return counted / (1 + (counted - 1) * correlation)


def dissent(
    ballots: Sequence[Ballot], winner: CandidateId, criteria: Sequence[Criterion]
) -> tuple[tuple[str, str], ...]:
    """(reviewer, preferred agent) of each ballot with a candidate strictly above the winner's best, by reviewer."""
    dissenters: list[tuple[str, str]] = []
    for cast in ballots:
        tiers = order(cast, criteria)
        if any(author(candidate) == author(winner) for tier in tiers for candidate in tier):
            preferred = [author(candidate) for candidate in tiers[0]]
            if author(winner) not in preferred:
                dissenters.append((cast.reviewer, min(preferred)))
    return tuple(sorted(dissenters))
