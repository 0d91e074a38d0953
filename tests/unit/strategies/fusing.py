"""Councils that fuse answers, and who does what in them."""

from app.deliberation.specification import Budget, Specification
from tests.unit.facts_of import Run, specification

BEST = "dev-001"


def asked(size: int = 5, *, seed: int = 7, budget: Budget | None = None) -> Specification:
    return specification(size, strategy="fuse", seed=seed, budget=budget)


def role_calls(ended: Run) -> dict[str, str]:
    (analyst,), (writer,), (one, other) = (ended.asked(purpose) for purpose in ("analyse", "fuse", "judge"))
    return {"analyst": analyst.call_id, "writer": writer.call_id, "one": one.call_id, "other": other.call_id}
