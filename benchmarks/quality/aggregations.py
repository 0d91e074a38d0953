"""`python -m benchmarks.quality.aggregations`: how often each rule of aggregation puts the best text first.

Each text has a true quality, normally distributed. Reviewers score all texts but their own, from 0 to 10, with errors
that a situation describes. The product's `rank` counts the ballots. All rules count the same ballots, so a difference
to Borda has the standard error of paired trials.
"""

import random
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import fmean, stdev
from typing import get_args

from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.ballots import Ballot, author, rank
from app.deliberation.specification import Criterion

RULES: tuple[Aggregation, ...] = get_args(Aggregation)
# A difference to Borda counts from this many standard errors.
SIGMAS = 3.0
_RUBRIC = (Criterion(id="quality", description="Is it good?"),)
_MIDDLE, _SPREAD = 5.5, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Council, and the errors of its reviewers on a scale of ten.

    `noise` is the standard deviation of one score's error, `leniency` that of an offset on all scores of a reviewer,
    `stretch` that of the logarithm of the factor by which it spreads them. `hostile` reviewers turn the order round,
    `selfish` ones give everybody else 0. A share `careless` of the scores is drawn blindly, a share `lost` of
    the ballots is missing. One author has `clones` further versions of about the same quality.
    """

    about: str
    agents: int
    noise: float = 1.5
    leniency: float = 0.0
    stretch: float = 0.0
    hostile: int = 0
    selfish: int = 0
    careless: float = 0.0
    lost: float = 0.0
    clones: int = 0


def situations() -> tuple[Situation, ...]:
    """The situations of the table."""
    return (
        *(Situation(about="one scale, noise", agents=agents) for agents in (3, 5, 9)),
        *(Situation(about="unlike scales", agents=agents, leniency=2.0, stretch=0.6) for agents in (3, 5, 9)),
        *(Situation(about="one hostile", agents=agents, hostile=1) for agents in (4, 5, 9)),
        *(Situation(about="one selfish", agents=agents, selfish=1) for agents in (4, 5, 9)),
        *(Situation(about="a fifth blind", agents=agents, careless=0.2) for agents in (3, 5, 9)),
        Situation(about="two ballots in five lost", agents=9, lost=0.4),
        Situation(about="two clones of a text", agents=5, clones=2),
        Situation(about="unlike scales, two in five lost", agents=9, leniency=2.0, stretch=0.6, lost=0.4),
    )


def qualities(situation: Situation, chance: random.Random) -> dict[str, float]:
    """The true quality of each candidate."""
    names = [f"a{number}" for number in range(situation.agents)]
    found = {name: chance.gauss(_MIDDLE, _SPREAD) for name in names}
    copied = chance.choice(names)
    return found | {
        f"{copied}#{number}": found[copied] + chance.gauss(0, 0.2) for number in range(1, situation.clones + 1)
    }


def ballots(situation: Situation, true: Mapping[str, float], chance: random.Random) -> list[Ballot]:
    """The ballots that arrive; at least one does."""
    cast: list[Ballot] = []
    for number in range(situation.agents):
        offset, factor = chance.gauss(0, situation.leniency), exp(chance.gauss(0, situation.stretch))
        scores: dict[str, int] = {}
        for candidate, quality in true.items():
            if author(candidate) == f"a{number}":
                continue
            seen = offset + factor * (quality - _MIDDLE) + chance.gauss(0, situation.noise)
            if number < situation.hostile:
                seen = -seen
            score = min(10, max(0, round(_MIDDLE + seen)))
            if chance.random() < situation.careless:
                score = chance.randint(0, 10)
            scores[candidate] = 0 if situation.hostile <= number < situation.hostile + situation.selfish else score
        cast.append(Ballot(f"a{number}", {candidate: {"quality": score} for candidate, score in scores.items()}))
    return [each for each in cast if chance.random() >= situation.lost] or cast[:1]


def hits(situation: Situation, runs: int, seed: int) -> dict[Aggregation, list[bool]]:
    """For each rule and run, whether the winner is by the author of the best text."""
    found: dict[Aggregation, list[bool]] = {rule: [] for rule in RULES}
    for run in range(runs):
        chance = random.Random(f"{seed}/{situation}/{run}")
        true = qualities(situation, chance)
        cast = ballots(situation, true, chance)
        best = author(max(true, key=true.__getitem__))
        for rule in RULES:
            ranked = rank(list(true), cast, _RUBRIC, dict.fromkeys(true, 1), run, rule)
            found[rule].append(author(ranked.order[0]) == best)
    return found


def beyond_noise(these: Sequence[bool], others: Sequence[bool]) -> float:
    """The difference of two shares over the same runs, in standard errors; 0 where all runs are alike."""
    differences = [int(one) - int(other) for one, other in zip(these, others, strict=True)]
    error = stdev(differences) / sqrt(len(differences))
    return fmean(differences) / error if error else 0.0


def main() -> None:
    """Print the table; `+` and `-` mark what lies more than three standard errors above or below Borda."""
    parser = ArgumentParser("python -m benchmarks.quality.aggregations", description=__doc__)
    parser.add_argument("--runs", type=int, default=3_000, help="councils per situation (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"{'situation':<34}{'N':>2}  " + "".join(f"{rule:>14}" for rule in RULES))
    for situation in situations():
        found = hits(situation, given.runs, given.seed)
        cells: list[str] = []
        for rule in RULES:
            sigmas = beyond_noise(found[rule], found["borda"])
            mark = "+" if sigmas > SIGMAS else "-" if sigmas < -SIGMAS else " "
            cells.append(f"{fmean(found[rule]):>13.3f}{mark}")
        print(f"{situation.about:<34}{situation.agents:>2}  " + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
