"""Proposals in waves, and the verdict by their count."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.deliberation.answers import READ_AS, Count, Normaliser, normalise, requirement, tally
from app.deliberation.choice.anonymity import nonce
from app.deliberation.engine import Conclusion
from app.deliberation.errors import BudgetExhausted, QuorumNotReached
from app.deliberation.facts import Dissent, Standing
from app.deliberation.outputs import Answer, Output
from app.deliberation.prompts.council import propose
from app.deliberation.specification import Specification
from app.deliberation.strategies.steps.strategy_run import Candidate, Step, StrategyRun


@dataclass
class Samples:
    """Proposals of a council in waves: each agent is asked once, in the council's order, with its own approach."""

    run: StrategyRun
    drafts: list[Candidate] = field(default_factory=list[Candidate])
    asked: int = 0
    _problem: str = "no answer has the form that was asked for"

    @property
    def left(self) -> int:
        """How many agents have not been asked."""
        return self.run.specification.size - self.asked

    def ask(self, size: int, stages_left: int) -> Step[bool]:
        """Let the next `size` agents propose; False when the budget refuses it, BudgetExhausted for the first wave."""
        run, specification = self.run, self.run.specification
        calls = [
            run.call(agent, propose(specification, place), Output(kind="answer"))
            for place, agent in list(enumerate(specification.agents))[self.asked : self.asked + size]
        ]
        quorum = min(specification.quorum, len(calls))
        outcomes = yield from run.ask("propose", 0, calls, quorum=quorum, stages_left=stages_left)
        if not outcomes.admitted:
            if not self.asked:
                raise BudgetExhausted("the budget does not admit the first stage")
            return False
        self.asked += len(calls)
        for call in calls:
            answer = outcomes.answer(call)
            finished = outcomes.seen.get(call.call_id)
            if isinstance(answer, Answer):
                tokens = outcomes.completion_tokens(call)
                self.drafts.append(Candidate(call.agent_id, 0, answer.answer, tokens, call.call_id, answer.reasoning))
            elif finished is not None and finished.problem is not None:
                self._problem = f"{finished.problem.code}: {finished.problem.detail}"
        return True

    def completed(self) -> list[Candidate]:
        """All drafts of the waves; `degraded` reports missing ones. Raises QuorumNotReached without any."""
        if not self.drafts:
            raise QuorumNotReached(f"none of {self.asked} agents answered: {self._problem}")
        if len(self.drafts) < self.asked:
            self.run.degraded.append(f"{len(self.drafts)} of {self.asked} agents answered")
        return self.drafts


def asking_for(specification: Specification, normaliser: Normaliser, options: tuple[str, ...]) -> Specification:
    """The specification with the requirement, if any, that makes its answers readable."""
    form = requirement(normaliser, options)
    if form is None:
        return specification
    constraints = specification.constraints
    stricter = constraints.model_copy(update={"requirements": (*constraints.requirements, form)})
    return specification.model_copy(update={"constraints": stricter})


def counted(drafts: Sequence[Candidate], normaliser: Normaliser, options: tuple[str, ...], seed: int) -> Count:
    """The drafts' answers, read and counted."""
    return tally(((draft.author, normalise(draft.text, normaliser, options)) for draft in drafts), seed)


def report_unread(run: StrategyRun, drafts: Sequence[Candidate], count: Count, normaliser: Normaliser) -> None:
    """Report in `degraded` how many answers could not be read and are not counted."""
    unread = len(drafts) - count.votes
    if unread:
        run.degraded.append(f"{unread} of {len(drafts)} answers could not be read as {READ_AS[normaliser]}")


def by_votes(
    run: StrategyRun, drafts: Sequence[Candidate], count: Count, picked: Candidate | None = None
) -> Conclusion:
    """The verdict of a count: agents rank by the votes for their answer, in the council's order among equals.

    The text of an answer is its first author's, wherever the vote stops. `picked` wins regardless of the count.
    Uncounted drafts come last, without a score: fewer tokens first, then a seeded hash.
    """
    seed = run.specification.seed
    group_of = {agent: group for group in count.groups for agent in group.agents}
    place = {agent: place for place, group in enumerate(count.groups) for agent in group.agents}

    def standing(draft: Candidate) -> tuple[bool, int, int, str]:
        if draft.author in place:
            return draft is not picked, place[draft.author], 0, ""
        return draft is not picked, len(place), draft.tokens, nonce(seed, draft.id)

    ranked = sorted(drafts, key=standing)
    first = ranked[0]
    return Conclusion(
        winner=first.author,
        content=first.text,
        call_id=first.call_id,
        ranking=tuple(
            Standing(
                agent_id=draft.author,
                score=count.share(group_of[draft.author].votes) if draft.author in group_of else None,
                rank=rank,
            )
            for rank, draft in enumerate(ranked, start=1)
        ),
        margin=count.margin,
        tie=count.tie or (not count.groups and picked is None and len(drafts) > 1),
        dissent=tuple(
            Dissent(agent_id=draft.author, preferred=group_of[draft.author].agents[0])
            for draft in drafts
            if draft.author in group_of and group_of[draft.author] is not group_of.get(first.author)
        ),
        agreement=count.share(group_of[first.author].votes) if count.votes > 1 else None,
        tally=count.tallies,
        degraded=tuple(run.degraded),
    )
