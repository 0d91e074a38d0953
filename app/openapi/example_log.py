"""The log behind all examples: a deliberation that has ended, the same half-way with a webhook, and one of a plan.

Two agents answer and score each other. The product's own code builds, decides and folds, so the examples cannot differ
from it.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

from app.api.headers import Submission
from app.api.requests import DeliberationRequest
from app.api.schemas import dump
from app.api.webhook_payloads import delivery_id
from app.deliberation.calls import Call, Usage
from app.deliberation.decider import RunStage
from app.deliberation.driver import drive
from app.deliberation.facts import Accepted, CallDelta, CallFinished, CallStarted, Event, View, encode, prefix, suffix
from app.deliberation.fold import State, begin, state_of
from app.deliberation.ports import Record
from app.deliberation.roles import Role, parse_roles
from app.deliberation.specification import Prices
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.specify import Identity, accepted, body_sha256, deliberation_id, specification
from app.planning.events import PlanRequest
from app.planning.plans import plan_identity
from app.webhooks.attempts import Attempt, AttemptFailed, AttemptProblem, DeliveryEnded, DeliveryKey

TENANT = "default"
KEY = "order-4711"
LIVE_KEY = "order-4712"
BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = "f9c8adc3"
MODEL = "simulated-normal"
PRICES = Prices(currency="USD", prompt=Decimal("0.5"), cached=Decimal("0.05"), completion=Decimal("1.5"))
PERSONA = "You are a senior software developer."
REQUEST: dict[str, Any] = {
    "task": "Write a function that merges two sorted lists.",
    "role": "DEV",
    "num_agents": 2,
    "strategy": "best_of_n",
    "constraints": {
        "requirements": ["linear time"],
        "rubric": [{"id": "correct", "description": "Right for every input, also for empty lists."}],
        "timeout_seconds": 300,
    },
    "seed": 7,
    "metadata": {"project": "sorting"},
}
LIVE_REQUEST: dict[str, Any] = {
    **REQUEST,
    "webhook": {
        "url": "https://hooks.example.com/deliberations",
        "events": ["stage.opened", "deliberation.completed", "deliberation.failed"],
        "metadata": {"order": "4712"},
    },
}
PLAN: dict[str, Any] = {
    "story_id": "story-17",
    "plan_id": "plan-42",
    "approved_by": "po@example.com",
    "timestamp": "2026-01-01T00:00:00Z",
    "title": "Log in by a link",
    "roles": ["DEV"],
}
_ANSWERS = {
    "dev-001": "from heapq import merge\n\n\ndef merged(a, b):\n    return list(merge(a, b))",
    "dev-002": "def merged(a, b):\n    return sorted(a + b)",
}
_REASONS = {"dev-001": "One pass over both.", "dev-002": "Timsort finds the runs."}
_SCORES = {"dev-001": 9, "dev-002": 5}
_STEP = timedelta(milliseconds=400)


def _text(call: Call) -> str:
    """An agent's text: a proposal, or scores for the candidates."""
    if call.output.kind == "answer":
        answer = {"reasoning": _REASONS[call.agent_id], "answer": _ANSWERS[call.agent_id], "confidence": 80}
        return json.dumps(answer)
    agents = {label: candidate.partition("#")[0] for label, candidate in call.labels.items()}
    scores = {
        label: {
            "criteria": [
                {"id": each, "rationale": _REASONS[agent], "score": _SCORES[agent]} for each in call.output.criteria
            ]
        }
        for label, agent in agents.items()
    }
    return json.dumps(scores)


def _calls(run: RunStage, now: datetime) -> Iterator[CallFinished | View]:
    """The events of a stage's calls: each text in two deltas, then the outcome."""
    for call in run.calls:
        text = _text(call)
        half = len(text) // 2
        common: dict[str, Any] = {
            "deliberation_id": run.opened.deliberation_id,
            "ts": now,
            "call_id": call.call_id,
            "agent_id": call.agent_id,
            "attempt": 1,
        }
        yield CallStarted(**common, role=call.role, model=MODEL)
        yield CallDelta(**common, offset=0, text=text[:half])
        yield CallDelta(**common, offset=half, text=text[half:])
        yield CallFinished(
            **common,
            role=call.role,
            stage=run.opened.stage,
            text=text,
            finish_reason="stop",
            model=MODEL,
            engine="http://127.0.0.1:8000",
            usage=Usage(prompt_tokens=180, completion_tokens=len(text) // 4, cached_tokens=64, calls=1).at(PRICES),
            duration_ms=400,
        )


def _roles() -> Mapping[str, Role]:
    return parse_roles({"roles": {"DEV": {"persona": PERSONA}}})


@cache
def events(key: str) -> tuple[Event, ...]:
    """All events of the deliberation that was accepted under `key`."""
    request = DeliberationRequest.model_validate(LIVE_REQUEST if key == LIVE_KEY else REQUEST)
    specified = specification(request, _roles(), STRATEGIES, timeout_s=300)
    id = deliberation_id(TENANT, key, BEGAN_AT)
    first = accepted(specified, Identity(id, body_sha256(request)), Submission(), now=BEGAN_AT)
    found: list[Event] = [first]

    def now() -> datetime:
        return BEGAN_AT + len(found) * _STEP

    definition = STRATEGIES[specified.strategy]
    found.extend(drive(begin(first, 1), definition, now, lambda _, run: _calls(run, now())))
    return tuple(found)


@cache
def log_records() -> tuple[Record, ...]:
    """The log: all events under KEY; then those under LIVE_KEY, up to a delta of the second agent; then PLAN."""
    live = events(LIVE_KEY)
    deltas = [index for index, event in enumerate(live) if event.type == "call.delta"]
    return tuple(
        Record(f"{prefix(TENANT, event.deliberation_id)}.{suffix(event)}", sequence, encode(event))
        for sequence, event in enumerate((*events(KEY), *live[: deltas[2] + 1], plan_acceptance()), start=1)
    )


@cache
def plan_acceptance() -> Accepted:
    """The acceptance of the one role of PLAN."""
    plan = PlanRequest.model_validate(PLAN)
    specified = specification(plan.of_role("DEV", plan.metadata(["DEV"], {})), _roles(), STRATEGIES, timeout_s=300)
    return accepted(specified, plan_identity(TENANT, plan, "DEV"), Submission(), now=BEGAN_AT)


@cache
def delivery_records() -> tuple[Record, ...]:
    """The delivery of one event under LIVE_KEY: the first attempt failed, the second succeeded."""
    fact = next(record for record in records_of(LIVE_KEY) if record.tokens[-1] == "opened")
    key = DeliveryKey(TENANT, fact.tokens[2], delivery_id(fact))
    down = Attempt(
        at=BEGAN_AT + _STEP,
        duration_ms=31,
        status_code=503,
        problem=AttemptProblem(code="http_status", detail="The receiver answered 503."),
    )
    up = Attempt(at=BEGAN_AT + timedelta(seconds=6), duration_ms=24, status_code=204)
    records = (
        AttemptFailed(fact=fact.subject, number=1, attempt=down, next_attempt_at=up.at),
        DeliveryEnded(fact=fact.subject, ending="delivered", attempt=up),
    )
    return tuple(
        Record(key.subject(each), sequence, dump(each))
        for sequence, each in enumerate(records, start=len(log_records()) + 1)
    )


def records_of(key: str) -> list[Record]:
    """The records of one deliberation."""
    id = deliberation_id(TENANT, key, BEGAN_AT)
    return [record for record in log_records() if record.tokens[2] == id]


def state(key: str, facts: int | None = None) -> State:
    """The state of one deliberation after all its facts, or after the first `facts` of them."""
    recorded = [record for record in records_of(key) if record.tokens[-1] not in ("started", "delta")]
    found = state_of(recorded[:facts])
    assert found is not None
    return found
