"""Programs, their authors, their checks and reports."""

from typing import Any

from app.deliberation import outputs
from app.deliberation.calls import Call
from app.deliberation.outputs import CheckOutcome, SandboxReport
from app.deliberation.specification import Budget, Specification
from app.deliberation.strategies.execute import (
    NO_REPORT,
    Checked,
    ProgramParameters,
    Suite,
)
from app.deliberation.strategies.strategy_run import Candidate
from tests.unit.facts_of import specification

GIVEN: list[dict[str, object]] = [
    {"name": "given one", "call": "one", "expected": 1},
    {"name": "given two", "call": "two", "expected": 2},
]


def asked(size: int = 3, *, rounds: int = 0, budget: Budget | None = None, **parameters: Any) -> Specification:
    made = specification(size, strategy="execute", rounds=rounds, budget=budget)
    return made.model_copy(update={"parameters": ProgramParameters.model_validate(parameters).model_dump(mode="json")})


def case(name: str) -> outputs.TestCase:
    return outputs.TestCase(name=name, call="f", arguments=[name], expected=1)


def checked(author: str, passes: str | None, fault: str = "", tokens: int = 10) -> Checked:
    """A program with a report that has an outcome for each letter; None: NO_REPORT.

    `+` passed, `?` was not run; anything else failed.
    """
    report = NO_REPORT if passes is None else reported(passes, fault)
    return Checked(Candidate(author, 0, f"code of {author}", tokens, f"s1-{author}"), report)


def reported(passes: str, fault: str) -> SandboxReport:
    outcomes = [CheckOutcome(name="t", passed=letter == "+", reason="", duration_ms=1) for letter in passes]
    not_run = frozenset(place for place, letter in enumerate(passes) if letter == "?")
    return SandboxReport(fault=fault, outcomes=tuple(outcomes), not_run=not_run)


def suite_of(size: int, gates: int = 0) -> Suite:
    return Suite(tuple(case(f"t{place}") for place in range(size)), gates)


def author_number(call: Call) -> int:
    return int(call.agent_id[-3:])


def code_of(call: Call) -> str:
    assert call.check is not None
    return call.check.code
