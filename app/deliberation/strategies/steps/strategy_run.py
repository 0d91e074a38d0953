"""Steps that strategies share: propose, score listwise, judge a pair, and conclude from ballots.

Each step is a generator that yields at most one Ask, so that a strategy reads `drafts = yield from run.propose(…)`.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from app.deliberation.calls import Ask, Call, ChatMessage, Reserve
from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.anonymity import arrangements, call_seed, labels, nonce
from app.deliberation.choice.ballots import Ballot, Ranked, agreement, ballot, dissent, effective_votes, rank
from app.deliberation.engine import Conclusion, Outcomes
from app.deliberation.errors import BudgetExhausted, QuorumNotReached
from app.deliberation.facts import Dissent, Standing
from app.deliberation.outputs import Answer, Output, Pair, Scores
from app.deliberation.prompts.council import judge_pair, propose, score
from app.deliberation.specification import AgentSpec, Purpose, Specification

# Ballots and critiques should vary little between runs, and still differ when one is asked for again.
JUDGING_TEMPERATURE_MAX = 0.3
# What a listwise ballot takes: braces, labels and ids, and a rationale of two or three sentences for each score.
BALLOT_TOKENS = 128
SCORE_TOKENS = 128
COMPLETION_TOKENS_MAX = 32_768
NO_RESERVE = Reserve()

_T = TypeVar("_T")
Step = Generator[Ask, Outcomes, _T]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may win: an author's version, what it cost to write, the call that wrote it, and why it says so."""

    author: str
    version: int
    text: str
    tokens: int
    call_id: str
    reasoning: str = ""

    @property
    def id(self) -> str:
        """The candidate's id: the author for a first version, `author#n` for later ones."""
        return self.author if self.version == 0 else f"{self.author}#{self.version}"


def ballot_tokens(reviewer: AgentSpec, candidates: int, criteria: int) -> int:
    """How many tokens a listwise ballot of so many candidates may take."""
    return _completion_tokens(reviewer, BALLOT_TOKENS + SCORE_TOKENS * candidates * criteria)


def _completion_tokens(agent: AgentSpec, least: int) -> int:
    return min(COMPLETION_TOKENS_MAX, max(agent.sampling.max_tokens, least))


def author_of(candidate_id: str) -> str:
    """The author behind a candidate's id."""
    return candidate_id.partition("#")[0]


@dataclass
class StrategyRun:
    """One run of a strategy: its specification, the number of the next stage, and what went less than well."""

    specification: Specification
    stage: int = 1
    degraded: list[str] = field(default_factory=list[str])

    def agent(self, agent_id: str) -> AgentSpec:
        """The council's member with this id."""
        return next(agent for agent in self.specification.agents if agent.agent_id == agent_id)

    def call(
        self,
        agent: AgentSpec,
        messages: tuple[ChatMessage, ...],
        output: Output,
        *,
        labelled: Mapping[str, str] | None = None,
        judging: bool = False,
        part: int | None = None,
        tokens_least: int = 0,
    ) -> Call:
        """A call of the stage that comes next; `part` numbers several calls of one agent.

        A form that cannot be filled in with fewer tokens than `tokens_least` is given so many, whatever answers get.
        """
        call_id = f"s{self.stage}-{agent.agent_id}" + ("" if part is None else f"-{part}")
        sampling = agent.sampling
        return Call(
            call_id=call_id,
            agent_id=agent.agent_id,
            role=agent.role,
            model=agent.model,
            messages=messages,
            output=output,
            temperature=min(sampling.temperature, JUDGING_TEMPERATURE_MAX) if judging else sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=_completion_tokens(agent, tokens_least),
            seed=call_seed(self.specification.seed, call_id, 1),
            labels=dict(labelled or {}),
        )

    def ask(
        self,
        purpose: Purpose,
        round: int,
        calls: Sequence[Call],
        *,
        quorum: int,
        stages_left: int,
        reserve: Reserve = NO_RESERVE,
    ) -> Step[Outcomes]:
        """Ask for a stage; a stage that the budget refuses takes no number and is told in `degraded` by the engine.

        It is refused too where the budget would not hold the `reserve` besides.
        """
        ask = Ask(
            purpose=purpose, round=round, calls=tuple(calls), quorum=quorum, stages_left=stages_left, reserve=reserve
        )
        outcomes = yield ask
        if outcomes.admitted:
            self.stage += 1
        return outcomes

    def propose(self, stages_left: int) -> Step[list[Candidate]]:
        """Every agent answers alone. Raises QuorumNotReached when none does, BudgetExhausted when none may."""
        agents = self.specification.agents
        calls = [
            self.call(agent, propose(self.specification, place), Output(kind="answer"))
            for place, agent in enumerate(agents)
        ]
        outcomes = yield from self.ask("propose", 0, calls, quorum=self.specification.quorum, stages_left=stages_left)
        if not outcomes.admitted:
            raise BudgetExhausted("the budget does not admit the first stage")
        drafts = [
            Candidate(call.agent_id, 0, answer.answer, outcomes.completion_tokens(call), call.call_id, answer.reasoning)
            for call in calls
            if isinstance(answer := outcomes.answer(call), Answer)
        ]
        if not drafts:
            raise QuorumNotReached(f"none of {len(agents)} agents answered: {first_problem(calls, outcomes)}")
        if len(drafts) < len(agents):
            self.degraded.append(f"{len(drafts)} of {len(agents)} agents answered")
        return drafts

    def is_pair(self, authors: Sequence[str]) -> bool:
        """Whether so few authors are left that they are compared as one pair: two, below the quorum."""
        return len(authors) == 2 and len(authors) < self.specification.quorum

    def select(
        self, candidates: Sequence[Candidate], round: int, stages_left: int = 1, aggregation: Aggregation = "borda"
    ) -> Step[Conclusion]:
        """Choose among candidates: listwise by their authors, or as the quorum rules say when too few are left.

        Two authors below the quorum, with a candidate each, are compared as one pair in both orders by members who
        have no candidate; one author is taken unreviewed. `stages_left` counts the choice and what may follow it.
        """
        authors = list(dict.fromkeys(candidate.author for candidate in candidates))
        if len(authors) == 1:
            if self.specification.size > 1:
                self.degraded.append("unreviewed")
            return self.concluded(candidates, [])
        if self.is_pair(authors):
            return (yield from self._pair(candidates, round))
        ballots = yield from self.scored(candidates, round, stages_left)
        return self.concluded(candidates, ballots, aggregation)

    def scored(self, candidates: Sequence[Candidate], round: int, stages_left: int = 1) -> Step[list[Ballot]]:
        """Each author scores the others' candidates, all at once. A missing ballot is told and is not in the list."""
        specification = self.specification
        authors = list(dict.fromkeys(candidate.author for candidate in candidates))
        by_id = {candidate.id: candidate for candidate in candidates}
        criteria = tuple(criterion.id for criterion in specification.constraints.rubric)
        shown_to = arrangements(list(by_id), authors, specification.seed, round)
        calls: list[Call] = []
        for reviewer in authors:
            shown = shown_to[reviewer]
            letters = labels(len(shown))
            mark = nonce(specification.seed, "score", round, reviewer)
            texts = [(letter, by_id[shown_id].text) for letter, shown_id in zip(letters, shown, strict=True)]
            calls.append(
                self.call(
                    self.agent(reviewer),
                    score(specification, texts, mark),
                    Output(kind="score", labels=letters, criteria=criteria),
                    labelled=dict(zip(letters, shown, strict=True)),
                    judging=True,
                    tokens_least=ballot_tokens(self.agent(reviewer), len(letters), len(criteria)),
                )
            )
        outcomes = yield from self.ask(
            "score", round, calls, quorum=min(specification.quorum, len(calls)), stages_left=stages_left
        )
        ballots = [
            ballot(call.agent_id, call.labels, sheet)
            for call in calls
            if isinstance(sheet := outcomes.answer(call), Scores)
        ]
        if outcomes.admitted and len(ballots) < len(calls):
            self.degraded.append(f"{len(calls) - len(ballots)} of {len(calls)} ballots are missing")
        return ballots

    def judged(
        self, first: Candidate, second: Candidate, judges: Sequence[str], round: int
    ) -> Step[list[tuple[str, str | None]]]:
        """Compare two candidates in both orders, the last stage: (judge, winner's id) of each ballot, None for a tie.

        The judges take turns; one alone judges both orders. A missing ballot is told and is not in the list.
        """
        calls: list[Call] = []
        for part, (a, b) in enumerate([(first, second), (second, first)], start=1):
            judge = self.agent(judges[(part - 1) % len(judges)])
            mark = nonce(self.specification.seed, "judge", round, part)
            messages = judge_pair(self.specification, a.text, b.text, mark)
            labelled = {"A": a.id, "B": b.id}
            calls.append(self.call(judge, messages, Output(kind="pair"), labelled=labelled, judging=True, part=part))
        outcomes = yield from self.ask("judge", round, calls, quorum=len(calls), stages_left=1)
        ballots = [
            (call.agent_id, call.labels[pair.winner] if pair.winner != "tie" else None)
            for call in calls
            if isinstance(pair := outcomes.answer(call), Pair)
        ]
        if outcomes.admitted and len(ballots) < len(calls):
            self.degraded.append(f"{len(calls) - len(ballots)} of {len(calls)} ballots are missing")
        return ballots

    def _pair(self, candidates: Sequence[Candidate], round: int) -> Step[Conclusion]:
        first, second = sorted(candidates, key=lambda candidate: candidate.author)
        authors = (first.author, second.author)
        outsiders = [agent.agent_id for agent in self.specification.agents if agent.agent_id not in authors]
        ballots = yield from self.judged(first, second, outsiders, round)
        winners = [winner for _, winner in ballots]
        if not winners:
            return self.concluded(candidates, [])
        self.degraded.append("pair judged: below the quorum")
        agreed = winners[0] if len(winners) == 2 and winners[0] == winners[1] else None
        points = {c.id: (0.5 if agreed is None else float(c.id == agreed)) for c in (first, second)}
        return self._standing([first, second], points)

    def _standing(self, candidates: Sequence[Candidate], points: Mapping[str, float]) -> Conclusion:
        ranked = sorted(candidates, key=lambda c: (-points[c.id], c.tokens, nonce(self.specification.seed, c.id)))
        margin = points[ranked[0].id] - points[ranked[1].id]
        ranking = tuple(
            Standing(agent_id=c.author, score=points[c.id], rank=place, version=c.version)
            for place, c in enumerate(ranked, start=1)
        )
        return Conclusion(
            winner=ranked[0].author,
            content=ranked[0].text,
            call_id=ranked[0].call_id,
            ranking=ranking,
            margin=margin,
            tie=margin == 0,
            degraded=tuple(self.degraded),
        )

    def ranked(
        self, candidates: Sequence[Candidate], ballots: Sequence[Ballot], aggregation: Aggregation = "borda"
    ) -> Ranked:
        """The candidates in order, with the specification's rubric and seed."""
        tokens = {candidate.id: candidate.tokens for candidate in candidates}
        specification = self.specification
        return rank(list(tokens), ballots, specification.constraints.rubric, tokens, specification.seed, aggregation)

    def concluded(
        self, candidates: Sequence[Candidate], ballots: Sequence[Ballot], aggregation: Aggregation = "borda"
    ) -> Conclusion:
        """Rank candidates by the ballots; each author stands where its best version does."""
        criteria = self.specification.constraints.rubric
        by_id = {candidate.id: candidate for candidate in candidates}
        ranked = self.ranked(candidates, ballots, aggregation)
        self.degraded.extend(ranked.degraded)
        best: dict[str, str] = {}
        for candidate_id in ranked.order:
            best.setdefault(author_of(candidate_id), candidate_id)
        scores = [ranked.scores.get(candidate_id) for candidate_id in best.values()]
        margin = scores[0] - scores[1] if len(scores) > 1 and scores[0] is not None and scores[1] is not None else None
        winner, winning = next(iter(best.items()))
        if not ballots and len(best) > 1:
            self.degraded.append("unscored")
        return Conclusion(
            winner=winner,
            content=by_id[winning].text,
            call_id=by_id[winning].call_id,
            ranking=tuple(
                Standing(
                    agent_id=author,
                    score=ranked.scores.get(candidate_id),
                    rank=place,
                    version=by_id[candidate_id].version,
                )
                for place, (author, candidate_id) in enumerate(best.items(), start=1)
            ),
            margin=margin,
            tie=margin == 0,
            dissent=tuple(
                Dissent(agent_id=reviewer, preferred=preferred)
                for reviewer, preferred in dissent(ballots, winner, criteria, author_of)
            ),
            agreement=agreement(ballots, ranked.order, criteria),
            effective_votes=effective_votes(ballots, criteria),
            degraded=tuple(self.degraded),
        )


def first_problem(calls: Sequence[Call], outcomes: Outcomes) -> str:
    """Why the first of the calls has no answer, where that is known."""
    for call in calls:
        finished = outcomes.seen.get(call.call_id)
        if finished is not None and finished.problem is not None:
            return f"{finished.problem.code}: {finished.problem.detail}"
    return "no answer has the form that was asked for"
