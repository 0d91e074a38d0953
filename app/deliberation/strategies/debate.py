"""`debate`: independent drafts; where too few agree, dissenters read others and switch only for a concrete error.

Voting brings most of the gain of debates (arXiv:2508.17536), and free debate turns right answers wrong
(arXiv:2509.05396). So agreeing drafts are not debated (DOWN, arXiv:2504.05047), and holders of the plurality's answer
do not speak. A dissenter reads a few neighbours (sparse: arXiv:2406.11776) with distinct answers (S²-MAD,
arXiv:2502.04790). First and final answers have a vote each (Free-MAD, arXiv:2509.11035).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import Field

from app.deliberation.answers import FORMS, OPTIONS, Normaliser, Options
from app.deliberation.calls import Call
from app.deliberation.choice.anonymity import in_one_order, lettered
from app.deliberation.choice.neighbours import neighbours
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.outputs import DebateTurn, Output
from app.deliberation.prompts.debate import turn
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies.steps.counts import asking_for
from app.deliberation.strategies.steps.positions import Positions
from app.deliberation.strategies.steps.strategy_run import Candidate, Step, StrategyRun

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


def _debate(specification: Specification) -> Strategy:
    parameters = DebateParameters.model_validate(specification.parameters)
    run = StrategyRun(asking_for(specification, parameters.normaliser, parameters.options))
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
    positions = Positions(specification.seed, asked.normaliser, asked.options, first, dict(first))
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
        prompt = turn(specification, texts, own)
        calls.append(run.call(run.agent(speaker), prompt, Output(kind="turn"), labelled=labelled))
    stages_left = specification.rounds - round + 1
    quorum = min(specification.quorum, len(calls))
    outcomes = yield from run.ask("debate", round, calls, quorum=quorum, stages_left=stages_left)
    results = Counter[str]()
    for call, taken in outcomes.answers(calls, DebateTurn):
        tokens = outcomes.seen[call.call_id].usage.completion_tokens
        results[positions.take(call.agent_id, taken, tokens, call.call_id)] += 1
    if outcomes.admitted:
        results["missing"] = len(calls) - results.total()
    for found, words in _NOT_COUNTED.items():
        run.report(results[found], len(calls), f"turns of round {round} {words}")
    return results["switched"] > 0


DEBATE = StrategyDefinition(
    name="debate",
    version=5,
    summary="Draft; unless enough agree, dissenters read a few others and switch for an error; count first and final.",
    steps=("propose", "debate × R"),
    formula="N + dissenters of each round ≤ N(1+R); N when the drafts agree",
    source="arXiv:2508.17536, arXiv:2504.05047, arXiv:2406.11776, arXiv:2502.04790, arXiv:2509.05396",
    run=_debate,
    parameters=DebateParameters,
    rounds=True,
)
