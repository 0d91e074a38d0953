import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from app.api.schemas import Status
from app.api.webhook_payloads import (
    EVENTS,
    PAYLOAD_BYTES_MAX,
    TASK_CONTEXT,
    TASK_STATES,
    TERMINAL_EVENTS,
    delivery_id,
    due,
    is_end,
    patterns,
    payload,
)
from app.deliberation.facts import Completed, Fact, encode, prefix, suffix
from app.deliberation.ports import Record
from app.deliberation.specification import TOKEN_PATTERN
from app.deliberation.specification import Webhook as Hook
from app.webhooks.signatures import Signer, tenant_secret
from tests.fakes import subject_matches
from tests.story import Story

MASTERS = ["new-" * 10, "old-" * 10]
STORY = Story("d1")
HOOK = Hook(url="https://hooks.example/", events=TERMINAL_EVENTS, metadata={"team": "ü"})


def stored(fact: Fact, sequence: int = 7, tenant: str = "default") -> Record:
    return Record(f"{prefix(tenant, fact.deliberation_id)}.{suffix(fact)}", sequence, encode(fact))


@pytest.mark.parametrize(
    "fact", [STORY.accepted(), STORY.opened(), STORY.finished("dev-001"), STORY.closed(), STORY.completed()]
)
def test_patterns_match_the_facts_of_subscribed_events(fact: Fact) -> None:
    record, hook = stored(fact), Hook(url="", events=(fact.type,))
    assert due([record], hook) == [record]
    assert due([record], Hook(url="", events=tuple(set(EVENTS) - {fact.type}))) == []
    assert any(
        subject_matches(pattern, record.subject) for pattern in patterns("default", STORY.accepted(), hook.events)
    )


def test_patterns_always_match_the_end_and_never_views() -> None:
    for event in EVENTS:
        subjects = patterns("t", STORY.accepted(), [event])
        assert any(subject_matches(pattern, "deliberations.t.d1.end") for pattern in subjects)
        for view in ("call.s1-dev-001.delta", "call.s1-dev-001.started"):
            assert not any(subject_matches(pattern, f"deliberations.t.d1.{view}") for pattern in subjects)
    assert is_end(stored(STORY.completed())) and not is_end(stored(STORY.closed()))


def test_a_payload_wraps_the_bytes_of_the_fact() -> None:
    fact = stored(STORY.completed())
    body = payload(fact, "e1", HOOK)
    content = json.loads(body)
    assert list(content) == ["type", "timestamp", "id", "links", "metadata", "thin", "data"]
    assert (content["type"], content["timestamp"]) == ("deliberation.completed", "2026-01-01T00:00:00Z")
    assert (content["id"], content["thin"], content["metadata"]) == ("e1-7", False, {"team": "ü"})
    assert content["links"]["deliveries"] == "/deliberations/d1/deliveries"
    assert body.endswith(b',"data":' + fact.data + b"}")


def test_sends_a_large_event_thin() -> None:
    finished = STORY.finished("dev-001", "x" * PAYLOAD_BYTES_MAX)
    body = payload(stored(finished), "e1", HOOK)
    content = json.loads(body)
    assert len(body) < 1_000
    assert content["thin"] is True
    assert content["data"] == {"type": "call.finished", "deliberation_id": "d1", "ts": "2026-01-01T00:00:00Z"}
    whole = payload(stored(STORY.finished("dev-001", "x" * (PAYLOAD_BYTES_MAX - 2_000))), "e1", HOOK)
    assert json.loads(whole)["thin"] is False and len(whole) <= PAYLOAD_BYTES_MAX


@pytest.mark.parametrize(
    ("fact", "state"),
    [
        (STORY.accepted(), "SUBMITTED"),
        (STORY.opened(), "WORKING"),
        (STORY.finished("dev-001", "x" * PAYLOAD_BYTES_MAX), "WORKING"),
        (STORY.completed(), "COMPLETED"),
    ],
)
@pytest.mark.parametrize(("metadata", "context"), [({}, "d1"), ({TASK_CONTEXT: "c-1"}, "c-1")])
def test_a_payload_for_a2a_is_the_tasks_new_status(
    fact: Fact, state: str, metadata: dict[str, str], context: str
) -> None:
    hook = Hook(url="https://hooks.example/", events=EVENTS, metadata=metadata, format="a2a")
    status = {"state": f"TASK_STATE_{state}", "timestamp": "2026-01-01T00:00:00Z"}
    told = {"taskId": "d1", "contextId": context, "status": status}
    assert json.loads(payload(stored(fact), "e1", hook)) == {"statusUpdate": told}


def test_every_status_has_a_state_of_a_task() -> None:
    assert TASK_STATES.keys() == {*get_args(Status)}


def test_delivery_ids_are_stable_and_unique() -> None:
    ends = [
        stored(STORY.completed()),
        stored(STORY.completed(), tenant="other"),
        stored(Completed(deliberation_id="d1", ts=STORY.completed().ts + timedelta(seconds=1))),
        stored(Completed(deliberation_id="d2", ts=STORY.completed().ts)),
        stored(STORY.closed()),
    ]
    ids = [delivery_id(end) for end in ends]
    assert len(set(ids)) == len(ids)
    assert ids == [delivery_id(Record(end.subject, 1, end.data)) for end in ends], "the sequence does not matter"
    assert all(hmac.compare_digest(id[:4], "dlv_") and "." not in id for id in ids)
    digest = hashlib.sha256(ends[0].subject.encode() + b"\n" + ends[0].data).digest()
    assert ids[0] == f"dlv_{base64.b32hexencode(digest).decode().lower()[:26]}"
    assert TOKEN_PATTERN == r"^[a-z0-9_-]{1,64}$"


def test_the_official_library_verifies_the_signature_of_each_secret() -> None:
    body, now = payload(stored(STORY.completed()), "e1", HOOK), datetime.now(UTC)
    headers = Signer(MASTERS).headers("acme", "dlv_1", body, now)
    for master in MASTERS:
        content = Webhook(tenant_secret(master, "acme")).verify(body, headers)
        assert content["type"] == "deliberation.completed"
    assert len(headers["webhook-signature"].split(" ")) == 2
    assert headers["webhook-timestamp"] == str(int(now.timestamp()))


@pytest.mark.parametrize("change", ["tenant", "body", "id", "time", "master"])
def test_any_change_invalidates_the_signature(change: str) -> None:
    body, now = b'{"a":1}', datetime.now(UTC)
    headers = Signer(MASTERS).headers("acme", "dlv_1", body, now)
    secret = tenant_secret(MASTERS[0], "acme")
    match change:
        case "tenant":
            secret = tenant_secret(MASTERS[0], "other")
        case "master":
            secret = tenant_secret("x" * 40, "acme")
        case "body":
            body += b" "
        case "id":
            headers["webhook-id"] = "dlv_2"
        case _:
            headers["webhook-timestamp"] = str(int(now.timestamp()) - 1)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, headers)
