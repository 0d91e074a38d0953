"""One small deliberation, whole and half-way, as the product's own code tells it: what every example is made of.

Two agents answer and score each other. The acceptance is made of `REQUEST` as the gateway makes it, what follows is
decided by the engine, and all that is shown of it is folded from its facts: an example cannot differ from the product.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from app.api.requests import DeliberationRequest
from app.api.webhook_payloads import delivery_id
from app.catalog.projection import state_of
from app.deliberation.calls import Call, Usage
from app.deliberation.driver import drive
from app.deliberation.engine import RunStage
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, Event, View, encode, prefix, suffix
from app.deliberation.fold import State, begin
from app.deliberation.ports import Record
from app.deliberation.roles import parse_roles
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.specify import accepted, deliberation_id, specification
from app.webhooks.attempts import Attempt, AttemptFailed, AttemptFault, DeliveryEnded, DeliveryKey, encoded

TENANT = "default"
KEY = "order-4711"
LIVE_KEY = "order-4712"
BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH = "f9c8adc3"
MODEL = "simulated-normal"
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
_ANSWERS = {
    "dev-001": "from heapq import merge\n\n\ndef merged(a, b):\n    return list(merge(a, b))",
    "dev-002": "def merged(a, b):\n    return sorted(a + b)",
}
_REASONS = {"dev-001": "One pass over both.", "dev-002": "Timsort finds the runs."}
_SCORES = {"dev-001": 9, "dev-002": 5}
_STEP = timedelta(milliseconds=400)


def _text(call: Call) -> str:
    """What an agent answers: a proposal, or a ballot over the others'."""
    if call.output.kind == "answer":
        said = {"reasoning": _REASONS[call.agent_id], "answer": _ANSWERS[call.agent_id], "confidence": 80}
        return json.dumps(said)
    rows = {label: (agent.partition("#")[0], call.output.criteria) for label, agent in call.labels.items()}
    ballot = {
        label: {"criteria": [{"id": each, "rationale": _REASONS[agent], "score": _SCORES[agent]} for each in criteria]}
        for label, (agent, criteria) in rows.items()
    }
    return json.dumps(ballot)


def _written(run: RunStage, now: datetime) -> Iterator[CallFinished | View]:
    """What the agents write while a stage is open: each call's text in two pieces, then its outcome."""
    for call in run.calls:
        text = _text(call)
        half = len(text) // 2
        about: dict[str, Any] = {
            "deliberation_id": run.opened.deliberation_id,
            "ts": now,
            "call_id": call.call_id,
            "agent_id": call.agent_id,
            "attempt": 1,
        }
        yield CallStarted(**about, role=call.role, model=MODEL)
        yield CallDelta(**about, offset=0, text=text[:half])
        yield CallDelta(**about, offset=half, text=text[half:])
        yield CallFinished(
            **about,
            role=call.role,
            stage=run.opened.stage,
            text=text,
            finish_reason="stop",
            model=MODEL,
            engine="http://127.0.0.1:8000",
            usage=Usage(prompt_tokens=180, completion_tokens=len(text) // 4, cached_tokens=64, calls=1),
            duration_ms=400,
        )


@cache
def story(key: str) -> tuple[Event, ...]:
    """Everything that happens to a deliberation accepted under `key`, from the first event to the last."""
    asked = DeliberationRequest.model_validate(LIVE_REQUEST if key == LIVE_KEY else REQUEST)
    roles = parse_roles({"roles": {"DEV": {"persona": PERSONA}}})
    specified = specification(asked, roles, STRATEGIES, timeout_s=300)
    id = deliberation_id(TENANT, key, BEGAN_AT)
    first = accepted(specified, asked, id=id, now=BEGAN_AT, request_id=None, traceparent=None)
    events: list[Event] = [first]

    def now() -> datetime:
        return BEGAN_AT + len(events) * _STEP

    definition = STRATEGIES[specified.strategy]
    for event in drive(begin(first, 1), definition, now, lambda _, run: _written(run, now())):
        events.append(event)
    return tuple(events)


def _half(told: tuple[Event, ...]) -> tuple[Event, ...]:
    """A story up to the moment in which the first agent has answered and the second one is writing."""
    deltas = [place for place, event in enumerate(told) if event.type == "call.delta"]
    return told[: deltas[2] + 1]


@cache
def log() -> tuple[Record, ...]:
    """What the log holds: the whole story under KEY, then half of the one under LIVE_KEY."""
    events = (*story(KEY), *_half(story(LIVE_KEY)))
    subjects = [f"{prefix(TENANT, event.deliberation_id)}.{suffix(event)}" for event in events]
    return tuple(
        Record(subject, sequence, encode(event))
        for sequence, (subject, event) in enumerate(zip(subjects, events, strict=True), start=1)
    )


@cache
def told() -> tuple[Record, ...]:
    """What the log holds of the webhook of the one under LIVE_KEY: its receiver was down, and then was not."""
    fact = next(record for record in records_of(LIVE_KEY) if record.tokens[-1] == "opened")
    place = DeliveryKey(TENANT, fact.tokens[2], delivery_id(fact))
    down = Attempt(
        at=BEGAN_AT + _STEP,
        duration_ms=31,
        status_code=503,
        problem=AttemptFault(code="http_status", detail="The receiver answered 503."),
    )
    up = Attempt(at=BEGAN_AT + timedelta(seconds=6), duration_ms=24, status_code=204)
    records = (
        AttemptFailed(fact=fact.subject, number=1, attempt=down, next_attempt_at=up.at),
        DeliveryEnded(fact=fact.subject, ending="delivered", attempt=up),
    )
    return tuple(Record(place.subject(each), len(log()) + 1 + n, encoded(each)) for n, each in enumerate(records))


def records_of(key: str) -> list[Record]:
    """What the log holds of one of the two."""
    id = deliberation_id(TENANT, key, BEGAN_AT)
    return [record for record in log() if record.tokens[2] == id]


def state(key: str, facts: int | None = None) -> State:
    """The state of one of the two, after all its facts or the first `facts` of them."""
    recorded = [record for record in records_of(key) if record.tokens[-1] not in ("started", "delta")]
    told = state_of(recorded[:facts])
    assert told is not None
    return told
