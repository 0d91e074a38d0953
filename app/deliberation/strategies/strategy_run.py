"""Steps that strategies share: propose, score listwise, judge a pair, and conclude from ballots or a count of answers.

Each step is a generator that yields at most one Ask: `drafts = yield from run.propose(…)`.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from app.deliberation.actions import compared_action, dissent_told, members_needed, read_action, told
from app.deliberation.answers import Count, Normaliser, normalise, requirement, tally
from app.deliberation.budget import needs_of_first_stage, priced
from app.deliberation.calls import Ask, Call, ChatMessage, Cost
from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.anonymity import arrangements, call_seed, lettered, nonce
from app.deliberation.choice.ballots import (
    Ballot,
    Ranked,
    agreement,
    author,
    ballot,
    candidate_id,
    dissent,
    effective_votes,
    rank,
)
from app.deliberation.decider import Conclusion, Outcomes
from app.deliberation.errors import BudgetExhausted, NoAgreement, QuorumNotReached
from app.deliberation.facts import Action, Dissent, Standing, Tally
from app.deliberation.outputs import Answer, Output, OutputKind, Pair, Program, Revision, Scores
from app.deliberation.prompts.council import judge_pair, propose, score
from app.deliberation.prompts.form import Labelled
from app.deliberation.specification import AgentSpec, Purpose, Specification

# Ballots and critiques should vary little between runs, yet differ when a call is repeated.
JUDGING_TEMPERATURE_MAX = 0.3
# Tokens of a listwise ballot: braces, labels and ids, and a rationale of two or three sentences for each score.
BALLOT_TOKENS = 128
SCORE_TOKENS = 128
COMPLETION_TOKENS_MAX = 32_768

Reader = Callable[[str], str | None]
"""An answer as it is compared; None when it cannot be read."""

_T = TypeVar("_T")
Step = Generator[Ask, Outcomes, _T]


@dataclass(frozen=True, slots=True)
class Candidate:
    author: str
    version: int
    text: str
    tokens: int
    call_id: str
    reasoning: str = ""

    @property
    def id(self) -> str:
        return candidate_id(self.author, self.version)


def written(outcomes: Outcomes, call: Call, version: int = 0) -> Candidate | None:
    match outcomes.answer(call):
        case Answer(answer=text, reasoning=reasoning) | Program(code=text, reasoning=reasoning):
            pass
        case Revision(answer=text):
            reasoning = ""
        case _:
            return None
    tokens = outcomes.seen[call.call_id].usage.completion_tokens
    return Candidate(call.agent_id, version, text, tokens, call.call_id, reasoning)


def ballot_tokens(reviewer: AgentSpec, candidates: int, criteria: int) -> int:
    return _completion_tokens(reviewer, BALLOT_TOKENS + SCORE_TOKENS * candidates * criteria)


def _completion_tokens(agent: AgentSpec, least: int) -> int:
    return min(COMPLETION_TOKENS_MAX, max(agent.sampling.max_tokens, least))


def tool_uses(agent: AgentSpec) -> int:
    return agent.tools.uses if agent.tools is not None else 0


@dataclass
class StrategyRun:
    """`read` compares answers, where the strategy counts them or they are actions."""

    specification: Specification
    stage: int = 1
    # For strategies in which prompts of other stages begin with the candidates (docs/decisions/0074).
    texts_first: bool = False
    degraded: list[str] = field(default_factory=list[str])
    read: Reader | None = None

    def __post_init__(self) -> None:
        constraints = self.specification.constraints
        if constraints.actions is not None:
            replies = "text" if constraints.answer_schema is None else "json"
            self.read = partial(compared_action, constraints.actions, replies=replies)

    def agent(self, agent_id: str) -> AgentSpec:
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
        tools: bool = False,
    ) -> Call:
        """A call of the next stage; `part` numbers several calls of one agent.

        `tokens_least` raises the agent's `max_tokens` where a form needs more. With `tools` it may use the agent's.
        """
        call_id = f"s{self.stage}-{agent.agent_id}" + ("" if part is None else f"-{part}")
        sampling, constraints = agent.sampling, self.specification.constraints
        return Call(
            call_id=call_id,
            agent_id=agent.agent_id,
            role=agent.role,
            persona=agent.persona,
            model=agent.model,
            messages=messages,
            output=output.with_answers_of(constraints.answer_form, is_action=constraints.actions is not None),
            temperature=min(sampling.temperature, JUDGING_TEMPERATURE_MAX) if judging else sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=_completion_tokens(agent, tokens_least),
            seed=call_seed(self.specification.seed, call_id, 1),
            labels=dict(labelled or {}),
            tools=agent.tools if tools else None,
        )

    def shown(self, label: str, candidate: Candidate) -> Labelled:
        """A candidate under a letter. The nonce is drawn for this text, which was written before any prompt held it."""
        return Labelled(label, self.in_words(candidate.text), nonce(self.specification.seed, "text", candidate.id))

    def in_words(self, answer: str) -> str:
        return answer if self.specification.constraints.actions is None else told(read_action(answer))

    def needed(self, answer: str | None = None) -> int:
        """How many members must give this answer; without one, how many any answer needs at least."""
        return members_needed(self.specification.constraints, self.specification.size, answer)

    def count(self, candidates: Iterable[Candidate]) -> Count:
        """The answers of candidates, counted as they are compared."""
        read = self.read or str
        return tally(((candidate.author, read(candidate.text)) for candidate in candidates), self.specification.seed)

    def ask(
        self,
        purpose: Purpose,
        round: int,
        calls: Sequence[Call],
        *,
        quorum: int,
        stages_left: int,
        reserve: Cost | None = None,
    ) -> Step[Outcomes]:
        """Ask for a stage. The decider refuses it, and reports so in `degraded`, when the budget or the time is over.

        The budget must hold the `reserve` besides. A refused stage takes no number.
        """
        calls, reserve = tuple(calls), reserve or Cost()
        ask = Ask(purpose=purpose, round=round, calls=calls, quorum=quorum, stages_left=stages_left, reserve=reserve)
        outcomes = yield ask
        if outcomes.admitted:
            self.stage += 1
        return outcomes

    def reading(self, readers: Iterable[str], tokens: int) -> Cost:
        """The cost of so many unwritten tokens in the prompts of these agents, at the price of the dearest role.

        Reserves err upwards, as `budget.predicted` does: a text counts at its author's bound.
        """
        roles = sorted({self.agent(reader).role for reader in readers})
        budget = self.specification.budget
        return max((priced(budget, role, tokens) for role in roles), key=lambda cost: cost.amount)

    def report(self, count: int, total: int, words: str) -> None:
        if count:
            self.degraded.append(f"{count} of {total} {words}")

    def propose(self, stages_left: int) -> Step[list[Candidate]]:
        samples = Samples(self)
        yield from samples.ask(self.specification.size, stages_left)
        return samples.completed()

    def is_pair(self, authors: Sequence[str]) -> bool:
        """Whether so few authors are left that they are compared as one pair: two, below the quorum."""
        return len(authors) == 2 and len(authors) < self.specification.quorum

    def select(
        self,
        candidates: Sequence[Candidate],
        round: int,
        stages_left: int = 1,
        aggregation: Aggregation = "borda",
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

    def scored(self, candidates: Sequence[Candidate], round: int, stages_left: int) -> Step[list[Ballot]]:
        """Each author scores the others' candidates, all at once. `degraded` reports missing ballots."""
        specification = self.specification
        authors = list(dict.fromkeys(candidate.author for candidate in candidates))
        by_id = {candidate.id: candidate for candidate in candidates}
        criteria = tuple(criterion.id for criterion in specification.constraints.rubric)
        shown_to = arrangements(list(by_id), authors, specification.seed, round)
        calls: list[Call] = []
        for reviewer in authors:
            labelled = lettered(shown_to[reviewer])
            texts = [self.shown(letter, by_id[shown]) for letter, shown in labelled.items()]
            calls.append(
                self.call(
                    self.agent(reviewer),
                    score(specification, texts, texts_first=self.texts_first),
                    Output(kind="score", labels=tuple(labelled), criteria=criteria),
                    labelled=labelled,
                    judging=True,
                    tokens_least=ballot_tokens(self.agent(reviewer), len(labelled), len(criteria)),
                )
            )
        outcomes = yield from self.ask(
            "score", round, calls, quorum=min(specification.quorum, len(calls)), stages_left=stages_left
        )
        ballots = [ballot(call.agent_id, call.labels, sheet) for call, sheet in outcomes.answers(calls, Scores)]
        if outcomes.admitted:
            self.report(len(calls) - len(ballots), len(calls), "ballots are missing")
        return ballots

    def judged(
        self, first: Candidate, second: Candidate, judges: Sequence[str], round: int
    ) -> Step[list[tuple[str, str | None]]]:
        """Compare two candidates in both orders, the last stage: (judge, winner's id) of each ballot, None for a tie.

        The judges take turns; a single one judges both orders. `degraded` reports missing ballots.
        """
        calls: list[Call] = []
        for part, (a, b) in enumerate([(first, second), (second, first)], start=1):
            judge = judges[(part - 1) % len(judges)]
            calls.append(self.pair_call(judge, a, b, part))
        outcomes = yield from self.ask("judge", round, calls, quorum=len(calls), stages_left=1)
        ballots = [
            (call.agent_id, call.labels[pair.winner] if pair.winner != "tie" else None)
            for call, pair in outcomes.answers(calls, Pair)
        ]
        if outcomes.admitted:
            self.report(len(calls) - len(ballots), len(calls), "ballots are missing")
        return ballots

    def pair_call(self, judge: str, a: Candidate, b: Candidate, part: int) -> Call:
        prompt = judge_pair(self.specification, self.shown("A", a), self.shown("B", b), texts_first=self.texts_first)
        labelled = {"A": a.id, "B": b.id}
        return self.call(self.agent(judge), prompt, Output(kind="pair"), labelled=labelled, judging=True, part=part)

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
        points = [(c, 0.5 if agreed is None else float(c.id == agreed)) for c in (first, second)]
        points.sort(key=lambda entry: (-entry[1], entry[0].tokens, nonce(self.specification.seed, entry[0].id)))
        margin = points[0][1] - points[1][1]
        return self.conclude(points, margin=margin, tie=margin == 0)

    def ranked(
        self, candidates: Sequence[Candidate], ballots: Sequence[Ballot], aggregation: Aggregation = "borda"
    ) -> Ranked:
        tokens = {candidate.id: candidate.tokens for candidate in candidates}
        specification = self.specification
        return rank(list(tokens), ballots, specification.constraints.rubric, tokens, specification.seed, aggregation)

    def concluded(
        self, candidates: Sequence[Candidate], ballots: Sequence[Ballot], aggregation: Aggregation = "borda"
    ) -> Conclusion:
        """Rank candidates by the ballots; each author takes the place of its best version."""
        criteria = self.specification.constraints.rubric
        ranked = self.ranked(candidates, ballots, aggregation)
        self.degraded.extend(ranked.degraded)
        by_id = {candidate.id: candidate for candidate in candidates}
        best: dict[str, tuple[Candidate, float | None]] = {}
        for ranked_id in ranked.order:
            best.setdefault(author(ranked_id), (by_id[ranked_id], ranked.scores[ranked_id]))
        standings = list(best.values())
        if not ballots and len(standings) > 1:
            self.degraded.append("unscored")
        margin = lead(standings)
        return self.conclude(
            standings,
            margin=margin,
            tie=margin == 0,
            dissent=dissent(ballots, standings[0][0].author, criteria),
            agreement=agreement(ballots, ranked.order, criteria),
            effective_votes=effective_votes(ballots, criteria),
        )

    def conclude(
        self,
        ranked: Sequence[tuple[Candidate, float | None]],
        *,
        margin: float | None,
        tie: bool,
        dissent: Iterable[tuple[str, str]] = (),
        agreement: float | None = None,
        effective_votes: float | None = None,
        tally: tuple[Tally, ...] = (),
    ) -> Conclusion:
        """The conclusion of a ranking, best first, with scores; `dissent` holds (agent, preferred agent) pairs.

        Where equal answers can be told, it is held to the agreement that is demanded. Raises NoAgreement.
        """
        winner, _ = ranked[0]
        content, call_id, agreed, action = winner.text, winner.call_id, None, None
        if self.specification.constraints.actions is not None:
            action = read_action(winner.text)
            content = told(action)
        needed = self.needed(winner.text)
        if action is not None or needed:
            count = self.count(candidate for candidate, _ in ranked)
            tally = tally or count.tallies
            agreed = count.votes_of(winner.author) >= needed if needed else None
            if agreed is False and (said := self._disagreed(count, needed)) is not None:
                content, call_id, action = said, None, None if action is None else Action(reply=said)
        return Conclusion(
            winner=winner.author,
            content=content,
            call_id=call_id,
            action=action,
            agreed=agreed,
            ranking=tuple(
                Standing(agent_id=candidate.author, score=score, rank=rank, version=candidate.version)
                for rank, (candidate, score) in enumerate(ranked, start=1)
            ),
            margin=margin,
            tie=tie,
            dissent=tuple(Dissent(agent_id=agent, preferred=preferred) for agent, preferred in dissent),
            agreement=agreement,
            effective_votes=effective_votes,
            tally=tally,
            degraded=tuple(self.degraded),
        )

    def _disagreed(self, count: Count, needed: int) -> str | None:
        """The reply in place of an answer on which too few agree; None keeps the answer. Raises NoAgreement."""
        size, constraints = self.specification.size, self.specification.constraints
        said = dissent_told(count.tallies, needed, size)
        if constraints.on_disagreement == "fail":
            raise NoAgreement(said)
        self.degraded.append(f"no agreement: {count.first} of {size} members give one answer, and {needed} must")
        return said if constraints.on_disagreement == "reply" else None


@dataclass
class Samples:
    """Drafts of a council in waves: each agent is asked once, in the council's order, with its own approach.

    `kind` is the draft's form; `prompt` returns the prompt for an agent's place, that of an answer if absent. `alike`
    gives all agents the first one's prompt.
    """

    run: StrategyRun
    prompt: Callable[[int], tuple[ChatMessage, ...]] | None = None
    kind: OutputKind = "answer"
    alike: bool = False
    drafts: list[Candidate] = field(default_factory=list[Candidate])
    asked: int = 0
    _problem: str = "no answer has the form that was asked for"

    @property
    def left(self) -> int:
        return self.run.specification.size - self.asked

    def ask(self, size: int, stages_left: int) -> Step[bool]:
        """Let the next `size` agents write; False when the stage is refused, BudgetExhausted for the first wave."""
        run, specification = self.run, self.run.specification
        prompt = self.prompt or partial(propose, specification)
        wave = list(enumerate(specification.agents))[self.asked : self.asked + size]
        calls = [
            run.call(agent, prompt(0 if self.alike else place), Output(kind=self.kind), tools=True)
            for place, agent in wave
        ]
        quorum = min(specification.quorum, len(calls))
        outcomes = yield from run.ask("propose", 0, calls, quorum=quorum, stages_left=stages_left)
        if not outcomes.admitted:
            if not self.asked:
                raise BudgetExhausted(needs_of_first_stage(specification.budget, calls))
            return False
        self.asked += len(calls)
        self.drafts += [draft for call in calls if (draft := written(outcomes, call))]
        self._problem = first_problem(calls, outcomes) or self._problem
        return True

    def completed(self) -> list[Candidate]:
        """All drafts of the waves; `degraded` reports missing ones. Raises QuorumNotReached without any."""
        if not self.drafts:
            raise QuorumNotReached(f"none of {self.asked} agents answered: {self._problem}")
        if len(self.drafts) < self.asked:
            self.run.degraded.append(f"{len(self.drafts)} of {self.asked} agents answered")
        return self.drafts


def lead(ranked: Sequence[tuple[Candidate, float | None]]) -> float | None:
    match [score for _, score in ranked[:2]]:
        case [float(first), float(second)]:
            return first - second
        case _:
            return None


def first_problem(calls: Sequence[Call], outcomes: Outcomes) -> str | None:
    for call in calls:
        finished = outcomes.seen.get(call.call_id)
        if finished is not None and finished.problem is not None:
            return f"{finished.problem.code}: {finished.problem.detail}"
    return None


def asking_for(specification: Specification, normaliser: Normaliser, options: tuple[str, ...]) -> Specification:
    """The specification with the requirement, if any, that makes its answers readable."""
    form = requirement(normaliser, options)
    if form is None:
        return specification
    constraints = specification.constraints
    stricter = constraints.model_copy(update={"requirements": (*constraints.requirements, form)})
    return specification.model_copy(update={"constraints": stricter})


def reader(normaliser: Normaliser, options: tuple[str, ...]) -> Reader:
    return partial(normalise, normaliser=normaliser, options=options)


def by_votes(
    run: StrategyRun, drafts: Sequence[Candidate], count: Count, picked: Candidate | None = None
) -> Conclusion:
    """The conclusion of a count of drafts. `picked` wins regardless of the count."""
    answer_of = {agent: group.answer for group in count.groups for agent in group.agents}
    read = [(draft, answer_of.get(draft.author)) for draft in drafts]
    return by_answers(run, read, {draft.author: answer for draft, answer in read}, count, picked)


def by_answers(
    run: StrategyRun,
    candidates: Sequence[tuple[Candidate, str | None]],
    final: Mapping[str, str | None],
    count: Count,
    picked: Candidate | None = None,
) -> Conclusion:
    """The conclusion of a count: candidates rank by the votes for their answer, in the given order among equals.

    `final` holds each author's final answer; an author with another one than the first dissents. Candidates without a
    counted answer come last, without a score: fewer tokens first, then a seeded hash. `picked` wins regardless of the
    count.
    """
    group_of = {group.answer: group for group in count.groups}
    places = {group.answer: place for place, group in enumerate(count.groups)}

    def place(entry: tuple[Candidate, str | None]) -> tuple[bool, int, int, str]:
        candidate, answer = entry
        if answer is not None:
            return candidate is not picked, places[answer], 0, ""
        return candidate is not picked, len(places), candidate.tokens, nonce(run.specification.seed, candidate.id)

    ranked = sorted(candidates, key=place)
    # One voter has two votes after a debate, but cannot agree with itself.
    several = len(count.voters) > 1
    return run.conclude(
        [(candidate, None if answer is None else count.share(group_of[answer].votes)) for candidate, answer in ranked],
        margin=count.margin if several else None,
        tie=count.tie or (not count.groups and picked is None and len(candidates) > 1),
        dissent=[
            (author, group_of[answer].agents[0])
            for author, answer in final.items()
            if answer is not None and answer != ranked[0][1]
        ],
        agreement=count.agreement if several else None,
        tally=count.tallies,
    )
