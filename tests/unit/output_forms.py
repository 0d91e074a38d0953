"""One output of each form, and a valid answer in it."""

from typing import Any

from app.deliberation.outputs import (
    Output,
)

OUTPUTS: dict[str, Output] = {
    "answer": Output(kind="answer"),
    "critique": Output(kind="critique"),
    "revision": Output(kind="revision", issues=2),
    "score": Output(kind="score", labels=("A", "B"), criteria=("right", "clear")),
    "pair": Output(kind="pair"),
}


def criterion(name: str, score: object = 7) -> dict[str, Any]:
    return {"id": name, "rationale": "seen", "score": score}


def candidate() -> dict[str, Any]:
    return {"criteria": [criterion("right"), criterion("clear", 3)]}


ISSUE = {"severity": "major", "where": "line 1", "claim": "wrong", "evidence": "seen", "fix": "mend"}
RESPONSE = {"issue": 1, "decision": "accept", "reason": "true"}
VALID: dict[str, dict[str, Any]] = {
    "answer": {"reasoning": "r", "answer": "a", "confidence": 50},
    "critique": {"issues": [ISSUE, {**ISSUE, "severity": "minor"}], "verdict": "revise"},
    "revision": {"responses": [RESPONSE, {**RESPONSE, "issue": 2}], "answer": "a", "confidence": 0},
    "score": {"A": candidate(), "B": candidate()},
    "pair": {"notes_a": "a", "notes_b": "b", "winner": "tie", "margin": 3},
}
