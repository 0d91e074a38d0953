"""Tracks the answers in a debate, applies turns, and counts first and final answers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from app.deliberation.answers import READ_AS, Count, Normaliser, normalise, tally
from app.deliberation.decider import Conclusion
from app.deliberation.outputs import DebateTurn
from app.deliberation.strategies.steps.counts import by_answers
from app.deliberation.strategies.steps.strategy_run import Candidate, StrategyRun

Taken = Literal["switched", "kept", "unfounded", "unread"]
"""A turn's result: another answer with a cited error, the same answer, another without one, or an unreadable one."""


@dataclass(slots=True)
class Positions:
    """Each author's first and latest candidate, and how many turns it has taken."""

    seed: int
    normaliser: Normaliser
    options: tuple[str, ...]
    first: Mapping[str, Candidate]
    latest: dict[str, Candidate]
    turns: Counter[str] = field(default_factory=Counter[str])

    def read(self, candidate: Candidate) -> str | None:
        """An answer as it is compared; None when it cannot be read."""
        return normalise(candidate.text, self.normaliser, self.options)

    def answers(self, candidates: Mapping[str, Candidate]) -> dict[str, str | None]:
        """Answers as they are compared, by author."""
        return {author: self.read(candidate) for author, candidate in candidates.items()}

    def dissenters(self, agreement: float) -> list[str]:
        """The authors outside the plurality: all while the first place is shared, none when enough of all agree."""
        answers = self.answers(self.latest)
        count = tally(answers.items(), self.seed)
        # Exact decimal: 0.56 · 25 is 14, and more in binary.
        if count.first >= Fraction(str(agreement)) * len(answers):
            return []
        leading = count.groups[0].answer if count.groups and not count.tie else None
        return [author for author, answer in answers.items() if leading is None or answer != leading]

    def take(self, author: str, turn: DebateTurn, tokens: int, call_id: str) -> Taken:
        """Apply a turn: a different answer becomes the author's latest if the turn cites an error."""
        self.turns[author] += 1
        candidate = Candidate(author, self.turns[author], turn.answer, tokens, call_id, turn.reasoning)
        answer = self.read(candidate)
        if answer is None:
            return "unread"
        if answer == self.read(self.latest[author]):
            return "kept"
        if not any(character.isalnum() for character in turn.error):
            return "unfounded"
        self.latest[author] = candidate
        return "switched"

    def conclude(self, run: StrategyRun) -> Conclusion:
        """Count first and final answers, once without any turn, and rank authors by the votes for their answer.

        The plurality's text is the first final holder's, in the council's order, or the first drafter's when no author
        holds it any more. Unreadable answers come last: fewer tokens first, then a seeded hash.
        """
        first, final = self.answers(self.first), self.answers(self.latest)
        # Final answers come first: of one author's two answers with equal votes the later one leads.
        count = tally([*final.items(), *(first.items() if self.turns else ())], self.seed)
        if self.turns:
            finals = Counter(final.values())
            count = Count(tuple(replace(group, final=finals[group.answer]) for group in count.groups))
        unread = list(final.values()).count(None)
        run.report(unread, len(final), f"answers could not be read as {READ_AS[self.normaliser]}")
        standing = dict(self.latest)
        if count.groups and count.groups[0].answer not in final.values():
            author = count.groups[0].agents[0]
            standing[author] = self.first[author]
        return by_answers(run, [(each, self.read(each)) for each in standing.values()], final, count)
