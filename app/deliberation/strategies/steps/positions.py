"""Tracks the answers in a debate, applies turns, and counts first and final answers."""

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
        unread = sum(answer is None for answer in final.values())
        if unread:
            run.degraded.append(f"{unread} of {len(final)} answers could not be read as {READ_AS[self.normaliser]}")
        winning = count.groups[0] if count.groups else None
        # One voter has two votes after a debate, but cannot agree with itself.
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
        """Each author's final candidate, or its first one where only that one shows the plurality."""
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
