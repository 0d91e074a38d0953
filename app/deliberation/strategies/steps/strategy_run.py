"""Steps that strategies share: propose, score listwise, judge a pair, and conclude from ballots.

Each step is a generator that yields at most one Ask: `drafts = yield from run.propose(…)`.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from app.deliberation.calls import Ask, Call, ChatMessage, Reserve
from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.anonymity import arrangements, call_seed, labels, nonce
from app.deliberation.choice.ballots import Ballot, Ranked, agreement, author, ballot, dissent, effective_votes, rank
from app.deliberation.engine import Conclusion, Outcomes
from app.deliberation.errors import BudgetExhausted, QuorumNotReached
from app.deliberation.facts import Dissent, Standing
from app.deliberation.outputs import Answer, Output, Pair, Program, Scores
from app.deliberation.prompts.council import judge_pair, propose, score
from app.deliberation.specification import AgentSpec, Purpose, Specification

# Ballots and critiques should vary little between runs, yet differ when a call is repeated.
JUDGING_TEMPERATURE_MAX = 0.3
# Tokens of a listwise ballot: braces, labels and ids, and a rationale of two or three sentences for each score.
BALLOT_TOKENS = 128
SCORE_TOKENS = 128
COMPLETION_TOKENS_MAX = 32_768
NO_RESERVE = Reserve()

_T = TypeVar("_T")
Step = Generator[Ask, Outcomes, _T]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may win: author, version, completion tokens, the call that wrote it, and the author's reasons."""

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
    """The most tokens that a listwise ballot of so many candidates may take."""
    return _completion_tokens(reviewer, BALLOT_TOKENS + SCORE_TOKENS * candidates * criteria)


def _completion_tokens(agent: AgentSpec, least: int) -> int:
    return min(COMPLETION_TOKENS_MAX, max(agent.sampling.max_tokens, least))


@dataclass
class StrategyRun:
    """One run of a strategy: its specification, the number of the next stage, and reasons why it is degraded."""

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
        """A call of the next stage; `part` numbers several calls of one agent.

        `tokens_least` raises the agent's `max_tokens` where a form needs more.
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
        """Ask for a stage. The engine refuses it, and reports so in `degraded`, when the budget does not hold it.

        The budget must hold the `reserve` besides. A refused stage takes no number.
        """
        ask = Ask(
            purpose=purpose, round=round, calls=tuple(calls), quorum=quorum, stages_left=stages_left, reserve=reserve
        )
        outcomes = yield ask
        if outcomes.admitted:
            self.stage += 1
        return outcomes

    def propose(self, stages_left: int) -> Step[list[Candidate]]:
        """Every agent answers alone. Raises as `draft` does."""
        agents = enumerate(self.specification.agents)
        calls = [self.call(agent, propose(self.specification, place), Output(kind="answer")) for place, agent in agents]
        return (yield from self.draft(calls, stages_left))

    def draft(self, calls: Sequence[Call], stages_left: int) -> Step[list[Candidate]]:
        """The first stage: one call per agent, for an answer or a program. `degraded` reports missing drafts.

        Raises QuorumNotReached without any draft, BudgetExhausted when the budget does not admit the stage.
        """
        outcomes = yield from self.ask("propose", 0, calls, quorum=self.specification.quorum, stages_left=stages_left)
        if not outcomes.admitted:
            raise BudgetExhausted("the budget does not admit the first stage")
        drafts: list[Candidate] = []
        for call in calls:
            answer = outcomes.answer(call)
            if isinstance(answer, Answer | Program):
                text = answer.answer if isinstance(answer, Answer) else answer.code
                tokens = outcomes.completion_tokens(call)
                drafts.append(Candidate(call.agent_id, 0, text, tokens, call.call_id, answer.reasoning))
        if not drafts:
            raise QuorumNotReached(f"none of {len(calls)} agents answered: {_first_problem(calls, outcomes)}")
        if len(drafts) < len(calls):
            self.degraded.append(f"{len(drafts)} of {len(calls)} agents answered")
        return drafts

    def is_pair(self, authors: Sequence[str]) -> bool:
        """Whether so few authors are left that they are compared as one pair: two, below the quorum."""
        return len(authors) == 2 and len(authors) < self.specification.quorum

    def select(
        self, candidates: Sequence[Candidate], round: int, stages_left: int = 1, aggregation: Aggregation = "borda"
    ) -> Step[Conclusion]:
        """Choose among candidates: listwise by their authors, unless too few authors are left.

        Members without a candidate compare two authors below the quorum as a pair in both orders. A single author wins
        unreviewed. `stages_left` counts the choice and the stages that may follow it.
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
        """Each author scores the others' candidates, all at once. `degraded` reports missing ballots."""
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

        The judges take turns; a single one judges both orders. `degraded` reports missing ballots.
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
        """Rank candidates by the ballots; each author takes the place of its best version."""
        criteria = self.specification.constraints.rubric
        by_id = {candidate.id: candidate for candidate in candidates}
        ranked = self.ranked(candidates, ballots, aggregation)
        self.degraded.extend(ranked.degraded)
        best: dict[str, str] = {}
        for candidate_id in ranked.order:
            best.setdefault(author(candidate_id), candidate_id)
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
                    agent_id=agent_id,
                    score=ranked.scores.get(candidate_id),
                    rank=place,
                    version=by_id[candidate_id].version,
                )
                for place, (agent_id, candidate_id) in enumerate(best.items(), start=1)
            ),
            margin=margin,
            tie=margin == 0,
            dissent=tuple(
                Dissent(agent_id=reviewer, preferred=preferred)
                for reviewer, preferred in dissent(ballots, winner, criteria)
            ),
            agreement=agreement(ballots, ranked.order, criteria),
            effective_votes=effective_votes(ballots, criteria),
            degraded=tuple(self.degraded),
        )


def _first_problem(calls: Sequence[Call], outcomes: Outcomes) -> str:
    """The recorded problem of the first call that has one."""
    for call in calls:
        finished = outcomes.seen.get(call.call_id)
        if finished is not None and finished.problem is not None:
            return f"{finished.problem.code}: {finished.problem.detail}"
    return "no answer has the form that was asked for"
