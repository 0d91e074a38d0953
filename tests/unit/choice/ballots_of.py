from collections.abc import Mapping, Sequence
from typing import get_args

from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.ballots import Ballot, Ranked, rank
from app.deliberation.specification import Criterion

RULES: tuple[Aggregation, ...] = get_args(Aggregation)


def rubric(**weights: float) -> tuple[Criterion, ...]:
    return tuple(Criterion(id=name, description=name, weight=weight) for name, weight in weights.items())


ONE = rubric(only=1)
TWO = rubric(right=3, clear=1)


def cast(reviewer: str, **scores: int) -> Ballot:
    return Ballot(reviewer, {candidate: {"only": score} for candidate, score in scores.items()})


def two(reviewer: str, **scores: tuple[int, int]) -> Ballot:
    return Ballot(reviewer, {c: {"right": right, "clear": clear} for c, (right, clear) in scores.items()})


def blocs(*preferences: tuple[int, str]) -> list[Ballot]:
    orders = [order.split("|") if "|" in order else list(order) for voters, order in preferences for _ in range(voters)]
    return [
        cast(f"v{number}", **{name: 10 - place for place, tier in enumerate(order) for name in tier})
        for number, order in enumerate(orders)
    ]


def ranked(
    candidates: Sequence[str],
    ballots: Sequence[Ballot],
    rule: Aggregation = "borda",
    tokens: Mapping[str, int] | None = None,
    seed: int = 1,
) -> Ranked:
    return rank(candidates, ballots, ONE, tokens or dict.fromkeys(candidates, 100), seed, rule)
