"""Councils that criticise, by their rules for stopping."""

from typing import Any

from app.deliberation.calls import Call
from app.deliberation.choice.ballots import author
from app.deliberation.choice.critiques import CritiqueStopRule
from app.deliberation.specification import Budget, Specification
from app.deliberation.strategies.council import CouncilParameters
from tests.unit.facts_of import specification

STOPS: tuple[CritiqueStopRule, ...] = ("no_major", "accepted", "settled", "none")


def asked(size: int = 3, rounds: int = 1, budget: Budget | None = None, **parameters: Any) -> Specification:
    base = specification(size, rounds=rounds, budget=budget)
    return base.model_copy(update={"parameters": CouncilParameters(**parameters).model_dump(mode="json")})


def criticised(call: Call) -> str:
    return author(call.labels["A"])
