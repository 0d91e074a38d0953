"""`debate`: independent drafts; where too few agree, dissenters read others and switch only for a concrete error.

Voting brings most of the gain of debates (arXiv:2508.17536), and free debate turns right answers wrong
(arXiv:2509.05396). So agreeing drafts are not debated (DOWN, arXiv:2504.05047), and holders of the plurality's answer
do not speak. A dissenter reads a few neighbours (sparse: arXiv:2406.11776) with distinct answers (S²-MAD,
arXiv:2502.04790). First and final answers have a vote each (Free-MAD, arXiv:2509.11035).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from pydantic import Field

from app.deliberation.answers import FORMS, OPTIONS, READ_AS, Count, Normaliser, Options, tally
from app.deliberation.calls import Call, ChatMessage
from app.deliberation.choice.anonymity import fence, in_one_order, lettered, ring
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.outputs import DebateTurn, Output
from app.deliberation.prompts.form import Labelled, messages
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.strategy_run import (
    Candidate,
    Reader,
    Step,
    StrategyRun,
    asking_for,
    by_answers,
    reader,
)

_NOT_COUNTED = {
    "missing": "are missing",
    "unread": "could not be read",
    "unfounded": "switched without an error and do not count",
}


class DebateParameters(Parameters):
    """When enough agree, how much a dissenter reads, and how answers are compared."""

    agreement: float = Field(
        default=0.8, gt=0.5, le=1, description="Share of the answers that must be equal for the debate to stop"
    )
    neighbours: int = Field(default=2, ge=1, le=8, description="Other answers that a dissenter reads, at most")
    normaliser: Normaliser = Field(default="text", description=FORMS)
    options: Options = Field(default=(), description=OPTIONS)


TurnEffect = Literal["switched", "kept", "unfounded", "unread"]
"""A turn's result: another answer with a cited error, the same answer, another without one, or an unreadable one."""


@dataclass(slots=True)
class Positions:
    seed: int
    reader: Reader
    form: str
    first: Mapping[str, Candidate]
    latest: dict[str, Candidate]
    turns: Counter[str] = field(default_factory=Counter[str])

    def read(self, candidate: Candidate) -> str | None:
        return self.reader(candidate.text)

    def answers(self, candidates: Mapping[str, Candidate]) -> dict[str, str | None]:
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

    def apply(self, author: str, turn: DebateTurn, tokens: int, call_id: str) -> TurnEffect:
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
        run.report(unread, len(final), f"answers could not be read as {self.form}")
        standing = dict(self.latest)
        if count.groups and count.groups[0].answer not in final.values():
            author = count.groups[0].agents[0]
            standing[author] = self.first[author]
        return by_answers(run, [(candidate, self.read(candidate)) for candidate in standing.values()], final, count)


def _debate(specification: Specification) -> Strategy:
    parameters = DebateParameters.model_validate(specification.parameters)
    run = StrategyRun(
        asking_for(specification, parameters.normaliser, parameters.options),
        read=reader(parameters.normaliser, parameters.options),
    )
    drafts = yield from run.propose(stages_left=1 + specification.rounds)
    return (yield from continue_from(run, drafts))


def continue_from(run: StrategyRun, drafts: Sequence[Candidate]) -> Step[Conclusion]:
    """The strategy after its drafts, one per author, at least one.

    The run's specification states the form in which answers can be read (`counts.asking_for`). Two drafts below the
    quorum that differ are judged as a pair instead.
    """
    specification = run.specification
    asked = DebateParameters.model_validate(specification.parameters)
    first = {draft.author: draft for draft in drafts}
    read = run.read or reader(asked.normaliser, asked.options)
    positions = Positions(specification.seed, read, READ_AS[asked.normaliser], first, dict(first))
    if run.is_pair(list(first)) and len(set(positions.answers(first).values())) > 1:
        return (yield from run.select(drafts, round=1))
    if len(drafts) == 1 < specification.size:
        run.degraded.append("unreviewed")
    for round in range(1, specification.rounds + 1):
        answers = positions.answers(positions.latest)
        dissenters = positions.dissenters(asked.agreement)
        reading = neighbours(answers, dissenters, asked.neighbours, specification.seed, round)
        if not reading or not (yield from _switched(run, positions, reading, round)):
            break
    return positions.conclude(run)


def neighbours(
    answers: Mapping[str, str | None], speakers: Collection[str], most: int, seed: int, round: int
) -> dict[str, tuple[str, ...]]:
    """The authors that each speaker reads: up to `most`, with distinct answers, none its own.

    `answers` are the compared forms by author; an unreadable one is None and not shown. A speaker reads on from its own
    seat of a ring, in the next round from `most` seats on (sparse topologies: arXiv:2406.11776).
    """
    reading: dict[str, tuple[str, ...]] = {}
    for speaker, seats in ring(list(answers), len(answers) - 1, seed, 0).items():
        start = (round - 1) * most % max(1, len(seats))
        met = {answers[speaker], None}
        row: list[str] = []
        for other in (*seats[start:], *seats[:start]):
            if answers[other] not in met:
                met.add(answers[other])
                row.append(other)
        if speaker in speakers and row:
            reading[speaker] = tuple(row[:most])
    return reading


def _switched(run: StrategyRun, positions: Positions, reading: Mapping[str, Sequence[str]], round: int) -> Step[bool]:
    """One round of turns by the speakers in `reading`; True when at least one switched."""
    specification = run.specification
    calls: list[Call] = []
    for speaker, others in reading.items():
        authors = lettered(in_one_order((speaker, *others), specification.seed))
        shown = {letter: positions.latest[author] for letter, author in authors.items()}
        texts = [(run.shown(letter, candidate), candidate.reasoning) for letter, candidate in shown.items()]
        (own,) = (letter for letter, author in authors.items() if author == speaker)
        labelled = {letter: candidate.id for letter, candidate in shown.items()}
        prompt = _prompt(specification, texts, own)
        calls.append(run.call(run.agent(speaker), prompt, Output(kind="turn"), labelled=labelled, tools=True))
    stages_left = specification.rounds - round + 1
    quorum = min(specification.quorum, len(calls))
    outcomes = yield from run.ask("debate", round, calls, quorum=quorum, stages_left=stages_left)
    results = Counter[str]()
    for call, taken in outcomes.answers(calls, DebateTurn):
        tokens = outcomes.seen[call.call_id].usage.completion_tokens
        results[positions.apply(call.agent_id, taken, tokens, call.call_id)] += 1
    if outcomes.admitted:
        results["missing"] = len(calls) - results.total()
    for cause, words in _NOT_COUNTED.items():
        run.report(results[cause], len(calls), f"turns of round {round} {words}")
    return results["switched"] > 0


def _prompt(specification: Specification, shown: Sequence[tuple[Labelled, str]], own: str) -> tuple[ChatMessage, ...]:
    """Check the answer with the letter `own` against the others, each with its reasons; switch for an error only.

    The prompt hides how many agents hold which answer: debaters follow agreement, which is no evidence
    (arXiv:2509.05396).
    """
    texts = [
        section
        for candidate, because in shown
        for section in (candidate.section, f"Its reasons:\n{fence(because, candidate.nonce)}" if because else "")
    ]
    return messages(
        specification,
        # First, since debaters who read different answers share no text.
        "# Your work: debate\nBelow are answers that differ. One of them is your own earlier answer; its letter comes "
        "last. Any of them may be right, yours too. Work the task through again and look for the step at which they "
        "part. Change your answer only when you find a concrete error in your own: say in `error` where it stands and "
        "why it is wrong, so that a reader can check it. That others think otherwise, or sound sure, is no error. "
        "Without one leave `error` empty and give your answer again as it is.",
        '# Your reply\n{"reasoning": what you checked, briefly; "error": the error in your earlier answer, or ""; '
        '"answer": the complete answer, changed or not; "confidence": 0 to 100}',
        *texts,
        # Last, since prompts that show the same answers differ in this line alone.
        f"# Your own answer\nCandidate {own} is your own earlier answer.",
    )


DEBATE = StrategyDefinition(
    name="debate",
    version=6,
    summary="Draft; unless enough agree, dissenters read a few others and switch for an error; count first and final.",
    steps=("propose", "debate × R"),
    formula="N + dissenters of each round ≤ N(1+R); N when the drafts agree",
    source="arXiv:2508.17536, arXiv:2504.05047, arXiv:2406.11776, arXiv:2502.04790, arXiv:2509.05396",
    tool_calls="N(1+R)",
    run=_debate,
    parameters=DebateParameters,
    rounds=True,
)
