"""Random profiles that every oracle is asked about: the same ones wherever this is run."""

from functools import cache
from random import Random

COUNT = 12_000
KINDS = ("strict", "ties", "recused")
"""All rank all without ties; with ties; with ties, and each ballot without the candidate that its reviewer wrote."""

Profile = list[dict[str, int]]
"""One points-by-candidate table per ballot; more is better."""


@cache
def profiles() -> tuple[tuple[str, Profile], ...]:
    """COUNT profiles with their kinds, in turn: three to six candidates, three to nine ballots."""
    found: list[tuple[str, Profile]] = []
    random = Random(20_260_101)
    for number in range(COUNT):
        kind = KINDS[number % len(KINDS)]
        names = "abcdef"[: random.choice((3, 3, 4, 4, 4, 5, 5, 6))]
        ballots: Profile = []
        for reviewer in range(random.randint(3, 9)):
            if kind == "strict":
                points = random.sample(range(len(names)), len(names))
            else:
                points = [random.randrange(len(names)) for _ in names]
            ballot = dict(zip(names, points, strict=True))
            if kind == "recused":
                del ballot[names[reviewer % len(names)]]
            ballots.append(ballot)
        found.append((kind, ballots))
    return tuple(found)
