"""Who holds which answer in a debate, what a turn changes, and what counting first and final answers gives."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from app.deliberation.answers import READ_AS, Count, Normaliser, normalise, tally
from app.deliberation.choice.anonymity import nonce
from app.deliberation.engine import Conclusion
from app.deliberation.facts import Dissent, Standing
from app.deliberation.outputs import DebateTurn
from app.deliberation.strategies.steps.strategy_run import Candidate, StrategyRun

Taken = Literal["switched", "kept", "unfounded", "unread"]
"""What becomes of a turn: another answer with an error cited, the same answer, another without, none to be read."""


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
        # The decimal as it was given: 0.56 · 25 is 14, and in binary more.
        if count.first >= Fraction(str(agreement)) * len(answers):
            return []
        leading = count.groups[0].answer if count.groups and not count.tie else None
        return [author for author, answer in answers.items() if leading is None or answer != leading]

    def take(self, author: str, turn: DebateTurn, tokens: int, call_id: str) -> Taken:
        """Take a turn: its answer is the author's latest when it is another one and an error is cited."""
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
        """Count first and final answers, once where nobody took a turn, and rank authors by the votes for theirs.

        The plurality is shown as the first in the council's order who holds it at the end wrote it, or, when all have
        left it, who began with it. What cannot be read comes last: fewer tokens first, then a seeded hash.
        """
        first, final = self.answers(self.first), self.answers(self.latest)
        # Final ones stand first: of one author's two answers with equally many votes the later is before the earlier.
        count = tally([*final.items(), *(first.items() if self.turns else ())], self.seed)
        unread = sum(answer is None for answer in final.values())
        if unread:
            run.degraded.append(f"{unread} of {len(final)} answers could not be read as {READ_AS[self.normaliser]}")
        winning = count.groups[0] if count.groups else None
        # One voter has two votes after a debate, and cannot agree with itself.
        several = len(count.voters) > 1
        ranked = self._ranked(count)
        group_of = {group.answer: group for group in count.groups}
        return Conclusion(
            winner=ranked[0].author,
            content=ranked[0].text,
            call_id=ranked[0].call_id,
            ranking=tuple(
                Standing(
                    agent_id=candidate.author,
                    score=None if answer is None else count.share(group_of[answer].votes),
                    rank=rank,
                    version=candidate.version,
                )
                for rank, candidate in enumerate(ranked, start=1)
                for answer in [self.read(candidate)]
            ),
            margin=count.margin if several else None,
            tie=count.tie or (winning is None and len(final) > 1),
            dissent=tuple(
                Dissent(agent_id=author, preferred=group_of[answer].agents[0])
                for author, answer in final.items()
                if answer is not None and group_of[answer] is not winning
            ),
            agreement=count.agreement if several else None,
            tally=count.tallies,
            degraded=tuple(run.degraded),
        )

    def _ranked(self, count: Count) -> Sequence[Candidate]:
        """Each author with what it holds at the end; with what it began with when that alone shows the plurality."""
        standing = dict(self.latest)
        if count.groups and count.groups[0].answer not in self.answers(self.latest).values():
            author = count.groups[0].agents[0]
            standing[author] = self.first[author]
        places = {group.answer: place for place, group in enumerate(count.groups)}

        def place(candidate: Candidate) -> tuple[int, int, str]:
            answer = self.read(candidate)
            if answer is not None:
                return places[answer], 0, ""
            return len(places), candidate.tokens, nonce(self.seed, candidate.id)

        return sorted(standing.values(), key=place)
