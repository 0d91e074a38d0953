"""Tournaments of each format, their pairs and judges."""

from collections.abc import Callable
from typing import Any

import pytest

from app.deliberation.calls import Call, Usage
from app.deliberation.specification import Budget, Specification
from app.deliberation.strategies.tournament import TournamentParameters
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, pair, specification

FORMATS = ("round_robin", "swiss", "knockout")
every_format = pytest.mark.parametrize("form", FORMATS)


def asked(
    size: int, form: str = "round_robin", *, pairs: int | None = None, budget: Budget | None = None, seed: int = 7
) -> Specification:
    parameters = TournamentParameters.model_validate({"format": form, "rounds_of_pairs": pairs})
    base = specification(size, strategy="tournament", budget=budget, seed=seed)
    return base.model_copy(update={"parameters": parameters.model_dump(mode="json")})


def shown(call: Call) -> tuple[str, str]:
    return call.labels["A"], call.labels["B"]


def brief(agent: str) -> Callable[[str], Usage]:
    def usage(call_id: str) -> Usage:
        return Usage(completion_tokens=5 if call_id == f"s1-{agent}" else 50, calls=1)

    return usage


def judged(says: Callable[[Call], str], **behaviour: Any) -> Callable[[Call], Reply]:
    council = CouncilScript(**behaviour)

    def script(call: Call) -> Reply:
        reply = council(call)
        if call.output.kind != "pair" or reply.problem is not None:
            return reply
        return Reply(text=pair(says(call)), usage=reply.usage)

    return script
