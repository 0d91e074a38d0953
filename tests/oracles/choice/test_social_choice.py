from collections import Counter
from random import Random

from votelib.component.rankscore import Borda
from votelib.convert import RankedToCondorcetVotes, RankedToPositionalVotes
from votelib.evaluate.condorcet import Copeland, pairwise_wins

from app.deliberation.choice.aggregation import Aggregation, aggregate

COUNT = 12_000
KINDS = ("strict", "ties", "recused")
"""All rank all without ties; with ties; with ties, and each ballot without the candidate that its reviewer wrote."""

Profile = list[dict[str, int]]
"""One points-by-candidate table per ballot; more is better."""


def drawn(kind: str, random: Random) -> Profile:
    names = "abcdef"[: random.choice((3, 3, 4, 4, 4, 5, 5, 6))]
    ballots: Profile = []
    for reviewer in range(random.randint(3, 9)):
        strict = random.sample(range(len(names)), len(names))
        points = strict if kind == "strict" else [random.randrange(len(names)) for _ in names]
        ballot = dict(zip(names, points, strict=True))
        if kind == "recused":
            del ballot[names[reviewer % len(names)]]
        ballots.append(ballot)
    return ballots


def candidates(ballots: Profile) -> list[str]:
    return sorted({name for ballot in ballots for name in ballot})


def winners(rule: Aggregation, ballots: Profile) -> set[str]:
    scores, _ = aggregate(rule, candidates(ballots), ballots, ballots, best=10)
    return {candidate for candidate, score in scores.items() if score == max(scores.values())}


def best(scores: dict[str, int]) -> set[str]:
    highest = max(scores.values())
    return {name for name, score in scores.items() if score == highest}


def ranked_votes(ballots: Profile) -> Counter[tuple[object, ...]]:
    votes: Counter[tuple[object, ...]] = Counter()
    for ballot in ballots:
        tiers = [
            [name for name in ballot if ballot[name] == points] for points in sorted({*ballot.values()}, reverse=True)
        ]
        votes[tuple(tier[0] if len(tier) == 1 else frozenset(tier) for tier in tiers)] += 1
    return votes


def test_the_winners_are_those_of_votelib() -> None:
    random = Random(20_260_101)
    for number in range(COUNT):
        kind = KINDS[number % len(KINDS)]
        ballots = drawn(kind, random)
        votes = ranked_votes(ballots)
        counts = RankedToCondorcetVotes(unranked_at_bottom=False).convert(votes)
        duels = dict.fromkeys(candidates(ballots), 0) | Copeland.scores(pairwise_wins(counts))
        assert winners("copeland", ballots) == best(duels), (kind, ballots)
        if kind == "strict":
            # Its Borda knows no ties.
            points = RankedToPositionalVotes(Borda(base=0)).convert(votes)
            assert winners("borda", ballots) == best(points), (kind, ballots)
