"""Decides which authors revise after a round's critiques, and when further rounds are not worth their calls.

Decisions depend on severities, verdicts and scores; only the author reads a critique's words.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.deliberation.choice.ballots import CandidateId, author, kendall_tau
from app.deliberation.outputs import Critique, Issue

CritiqueStopRule = Literal["no_major", "accepted", "settled", "none"]

GAIN_MIN = 0.025
"""The best text must gain a quarter of a point out of ten in a round to justify another round."""

TAU_MIN = 0.9
"""Two rounds' rankings with this Kendall τ and the same first author end the rounds."""

_GRAVITY = {"blocker": 2, "major": 1, "minor": 0}


def is_open(critique: Critique, rule: CritiqueStopRule) -> bool:
    return critique.demands_revision or (rule == "accepted" and critique.verdict != "accept")


def demanded(critiques: Mapping[str, Sequence[Critique]], rule: CritiqueStopRule) -> dict[str, list[Issue]]:
    """The issues to revise on, by author. The same claim at the same place is one issue, at its highest severity."""
    issues = {
        author: _merged(author_critiques)
        for author, author_critiques in critiques.items()
        if any(is_open(critique, rule) for critique in author_critiques)
    }
    return {author: merged for author, merged in issues.items() if merged}


def _merged(critiques: Sequence[Critique]) -> list[Issue]:
    merged: dict[tuple[str, str], Issue] = {}
    for critique in critiques:
        for issue in critique.issues:
            alike = " ".join(issue.where.casefold().split()), " ".join(issue.claim.casefold().split())
            known = merged.get(alike)
            if known is None or _GRAVITY[issue.severity] > _GRAVITY[known.severity]:
                merged[alike] = issue
    return list(merged.values())


def ends_rounds(critiques: Collection[Critique], rule: CritiqueStopRule) -> bool:
    """Whether a whole round's critiques end the rounds. Under `accepted`, a round without critiques does not."""
    if rule == "none" or (rule == "accepted" and not critiques):
        return False
    return not any(is_open(critique, rule) for critique in critiques)


@dataclass(frozen=True, slots=True)
class RoundScores:
    order: Sequence[CandidateId]
    means: Mapping[CandidateId, float]

    @property
    def authors(self) -> list[str]:
        return list(dict.fromkeys(map(author, self.order)))


def is_settled(earlier: RoundScores | None, later: RoundScores) -> bool:
    """Whether a round gained or changed the ranking too little for another; None compares with the drafts."""
    before = (
        earlier.means.values()
        if earlier
        else [m for candidate, m in later.means.items() if candidate == author(candidate)]
    )
    if max(later.means.values()) - max(before, default=0.0) < GAIN_MIN:
        return True
    if earlier is None or earlier.authors[0] != later.authors[0]:
        return False
    return kendall_tau([[name] for name in earlier.authors], [[name] for name in later.authors]) >= TAU_MIN
