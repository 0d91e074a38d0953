"""Deliberations on questions with known answers: each marked, and all of one strategy summed into an account."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from app.api.schemas import Deliberation
from app.deliberation.answers import tally
from app.quality.dataset import Question
from app.quality.figures import wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedAnswer:
    """One ended deliberation against the right answer.

    `majority_right` and `first_right` tell of the first drafts, None where there is none: whether the answer that most
    of them give is right, and whether the council's first member's is. `read` of `answers` (first drafts and verdict)
    had the form that was asked for. `seconds` are from acceptance to the end.
    """

    id: str
    status: str
    right: bool
    majority_right: bool | None
    first_right: bool | None
    answers: int
    read: int
    calls: int
    tokens: int
    seconds: float
    degraded: bool


def first_drafts(found: Deliberation) -> dict[str, str]:
    """What each member answered first, in the council's order; without those who did not."""
    drafts: dict[str, str] = {}
    for proposal in found.proposals:
        earlier = {version.version: version.content for version in proposal.revisions}
        text = earlier.get(0, proposal.content)
        if text is not None:
            drafts[proposal.agent_id] = text
    return {agent.agent_id: drafts[agent.agent_id] for agent in found.agents if agent.agent_id in drafts}


def mark(question: Question, found: Deliberation) -> MarkedAnswer:
    """A deliberation that has ended, marked. Failed ones are wrong, and so is what cannot be read."""
    drafts = first_drafts(found)
    verdict = found.verdict.content if found.verdict is not None else None
    first = drafts.get(found.agents[0].agent_id)
    texts = [*drafts.values(), *([] if verdict is None else [verdict])]
    ended_at = found.ended_at or found.created_at
    return MarkedAnswer(
        id=found.id,
        status=found.status,
        right=question.is_right(verdict),
        majority_right=_majority_right(question, drafts, found.seed),
        first_right=None if first is None else question.is_right(first),
        answers=len(texts),
        read=sum(question.read(text) is not None for text in texts),
        calls=found.usage.calls,
        tokens=found.usage.tokens,
        seconds=(ended_at - found.created_at).total_seconds(),
        degraded=found.degraded is not None,
    )


def _majority_right(question: Question, drafts: dict[str, str], seed: int) -> bool | None:
    if not drafts:
        return None
    count = tally(((agent_id, question.read(text)) for agent_id, text in drafts.items()), seed)
    return bool(count.groups) and question.is_right(count.groups[0].answer)


@dataclass(frozen=True, slots=True)
class Flips:
    """How often deliberating spoilt what had been right, and mended what had been wrong."""

    spoilt: int
    mended: int


def flips(pairs: Iterable[tuple[bool | None, bool]]) -> Flips:
    """Flips from (right before, right in the end); None is no flip."""
    known = [(before, after) for before, after in pairs if before is not None]
    return Flips(
        spoilt=sum(before and not after for before, after in known),
        mended=sum(after and not before for before, after in known),
    )


@dataclass(frozen=True, slots=True)
class Account:
    """All questions as one strategy answered them. Needs one at least."""

    strategy: str
    agents: int
    marked: Sequence[MarkedAnswer]

    @property
    def questions(self) -> int:
        """How many were asked."""
        return len(self.marked)

    @property
    def right(self) -> int:
        """Right verdicts."""
        return sum(each.right for each in self.marked)

    @property
    def accuracy(self) -> float:
        """Right verdicts of all questions, failed deliberations among them."""
        return self.right / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy, over the questions."""
        return wilson(self.right, self.questions)

    @property
    def calls(self) -> int:
        """Engine requests over all questions."""
        return sum(each.calls for each in self.marked)

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens over all questions."""
        return sum(each.tokens for each in self.marked)

    def per_right(self, spent: int) -> float | None:
        """What one right answer took of something that was spent; None without any."""
        return spent / self.right if self.right else None

    @property
    def against_majority(self) -> Flips:
        """Flips against the answer that most first drafts give."""
        return flips((each.majority_right, each.right) for each in self.marked)

    @property
    def against_first(self) -> Flips:
        """Flips against the first member's first draft: what one call would have answered."""
        return flips((each.first_right, each.right) for each in self.marked)

    @property
    def answers(self) -> int:
        """First drafts and verdicts."""
        return sum(each.answers for each in self.marked)

    @property
    def unread(self) -> int:
        """First drafts and verdicts in which no answer of the form was found."""
        return self.answers - sum(each.read for each in self.marked)

    @property
    def seconds(self) -> float:
        """Mean seconds from acceptance to the end."""
        return fmean(each.seconds for each in self.marked)

    @property
    def degraded(self) -> int:
        """Deliberations that were completed as less than was asked for."""
        return sum(each.degraded for each in self.marked)

    @property
    def failed(self) -> int:
        """Deliberations that ended without a verdict."""
        return sum(each.status != "completed" for each in self.marked)
