"""`auto`: three drafts first; if they are unanimous, they are the answer; else a stronger strategy continues.

Debate corrects few answers; triggered only where it may help, it takes up to 92 % fewer tokens (iMAD,
arXiv:2511.11306). ESC also stops sampling at a unanimous window (arXiv:2401.10480). The drafts are kept: the rest of
the council proposes, and the chosen strategy continues as if it had asked for all of them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from app.deliberation.answers import FORMS, OPTIONS, READ_AS, Count, Normaliser, Options
from app.deliberation.decider import Conclusion, Strategy, StrategyDefinition
from app.deliberation.specification import Parameters, Specification
from app.deliberation.strategies import best_of_n, council, debate, fuse, tournament
from app.deliberation.strategies.strategy_run import (
    Candidate,
    Samples,
    Step,
    StrategyRun,
    asking_for,
    by_votes,
    reader,
)

DRAFTS_FIRST = 3
_REPEATED = " × R"
# How answers are read, in parameters of a strategy that counts them.
_READING = ("normaliser", "options")


@dataclass(frozen=True, slots=True)
class Escalation:
    definition: StrategyDefinition
    continue_from: Callable[[StrategyRun, Sequence[Candidate]], Step[Conclusion]]

    def stages(self, rounds: int) -> int:
        return sum(rounds if step.endswith(_REPEATED) else 1 for step in self.definition.steps if step != "propose")


ESCALATIONS: Mapping[str, Escalation] = MappingProxyType(
    {
        "best_of_n": Escalation(best_of_n.BEST_OF_N, best_of_n.continue_from),
        "council": Escalation(council.COUNCIL, council.continue_from),
        "debate": Escalation(debate.DEBATE, debate.continue_from),
        "fuse": Escalation(fuse.FUSE, fuse.continue_from),
        "tournament": Escalation(tournament.TOURNAMENT, tournament.continue_from),
    }
)


class AutoParameters(Parameters):
    """The comparison of drafts, and the strategy that follows when they are not unanimous."""

    normaliser: Normaliser = Field(default="text", description=FORMS)
    options: Options = Field(default=(), description=OPTIONS)
    escalate_to: Literal["best_of_n", "council", "debate", "fuse", "tournament"] = Field(
        default="council", description="The strategy that goes on from the drafts when they are not unanimous"
    )
    escalation: dict[str, Any] = Field(
        default={},
        validate_default=True,
        description="The parameters of that strategy, as its own schema has them; where it counts answers, "
        "`normaliser` and `options` are those above",
    )

    @field_validator("escalation")
    @classmethod
    def _of_the_strategy(cls, parameters: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """The parameters with the strategy's defaults; a strategy that counts answers reads them as the drafts were."""
        chosen = ESCALATIONS.get(info.data.get("escalate_to", ""))
        if chosen is None:
            return parameters
        own = chosen.definition.parameters
        shared = {name: info.data[name] for name in _READING if name in own.model_fields and name in info.data}
        for name, value in shared.items():
            if name in parameters and json.dumps(parameters[name]) != json.dumps(value):
                raise _conflict(name, parameters[name])
        return own.model_validate(parameters | shared).model_dump(mode="json")


def _conflict(name: str, parameter: object) -> ValidationError:
    error = ValueError(f"answers are read in one way: leave it out here, or give the same {name} to auto itself")
    return ValidationError.from_exception_data(
        "escalation", [{"type": "value_error", "loc": (name,), "input": parameter, "ctx": {"error": error}}]
    )


def _auto(specification: Specification) -> Strategy:
    parameters = AutoParameters.model_validate(specification.parameters)
    escalation = ESCALATIONS[parameters.escalate_to]
    asked = asking_for(specification, parameters.normaliser, parameters.options)
    continued = {"strategy": parameters.escalate_to, "parameters": parameters.escalation}
    run = StrategyRun(asked.model_copy(update=continued), read=reader(parameters.normaliser, parameters.options))
    samples = Samples(run)
    stages_left = 1 + escalation.stages(specification.rounds)

    def count() -> Count:
        return run.count(samples.drafts)

    def unanimous() -> bool:
        """Whether all who were asked agree, and are as many as must."""
        return count().first == samples.asked and samples.asked >= run.needed(samples.drafts[0].text)

    first = min(DRAFTS_FIRST, specification.size)
    yield from samples.ask(first, stages_left + (specification.size > first))
    if unanimous():
        return by_votes(run, samples.completed(), count())
    agree = count().first == first
    if samples.left:
        yield from samples.ask(samples.left, stages_left)
        if agree and unanimous():
            return by_votes(run, samples.completed(), count())
    drafts = samples.completed()
    form = READ_AS[parameters.normaliser]
    run.report(len(drafts) - count().votes, len(drafts), f"answers could not be read as {form}")
    conclusion = yield from escalation.continue_from(run, drafts)
    return _best(run, drafts, conclusion, count())


def _best(run: StrategyRun, drafts: Sequence[Candidate], conclusion: Conclusion, count: Count) -> Conclusion:
    """The escalation's verdict, or the plurality of the drafts when that verdict rests on no score."""
    scored = any(standing.score is not None for standing in conclusion.ranking)
    if scored or count.first < 2 or count.tie:
        return conclusion
    run.degraded.append("decided by votes")
    return by_votes(run, drafts, count)


def _steps() -> tuple[str, ...]:
    steps = {"propose": "propose"}
    for escalation in ESCALATIONS.values():
        for step in escalation.definition.steps:
            purpose = step.partition(" ")[0]
            steps.setdefault(purpose, purpose + _REPEATED if step.endswith(_REPEATED) else purpose)
    return tuple(steps.values())


AUTO = StrategyDefinition(
    name="auto",
    version=6,
    summary="Three drafts; unanimous: done; else the rest propose and the chosen strategy goes on from all drafts.",
    steps=_steps(),
    formula="min(3, N) when unanimous, else exactly what the chosen strategy makes",
    source="arXiv:2511.11306, arXiv:2401.10480",
    tool_calls="those of the chosen strategy",
    run=_auto,
    parameters=AutoParameters,
    rounds=True,
)
