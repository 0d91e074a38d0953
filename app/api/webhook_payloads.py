"""Webhook deliveries: which events are sent, their ids and their bodies.

A delivery is one event of one deliberation. Its id is a hash of its fact, so it is the same at every attempt and in
every process. If a deliberation's id is used again, its deliveries have other ids. The body holds the fact's bytes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pydantic_core import to_json

from app.api.cursor import Cursor
from app.deliberation.facts import TERMINAL_STATUS, Accepted, Envelope, event_type, prefix, suffix
from app.deliberation.ports import Record
from app.deliberation.specification import Webhook

WebhookEvent = Literal[
    "deliberation.accepted",
    "stage.opened",
    "tool.started",
    "tool.used",
    "call.finished",
    "stage.closed",
    "deliberation.cancelling",
    "deliberation.resumed",
    "deliberation.completed",
    "deliberation.failed",
    "deliberation.cancelled",
    "deliberation.timeout",
]
EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)
TERMINAL_EVENTS: tuple[WebhookEvent, ...] = tuple(event for event in EVENTS if event in TERMINAL_STATUS)
# Standard Webhooks advises small bodies, and receivers have limits; a larger payload is sent thin.
PAYLOAD_BYTES_MAX = 65_536
ID_CHARS = 26
_ID_PREFIX = "dlv_"
_END = "end"
# The key of an A2A context among metadata, and the state of a task in A2A 1.0 by the deliberation's status.
TASK_CONTEXT = "a2a.contextId"
TASK_STATES: Mapping[str, str] = {
    "pending": "TASK_STATE_SUBMITTED",
    **dict.fromkeys(("in_progress", "cancelling"), "TASK_STATE_WORKING"),
    "completed": "TASK_STATE_COMPLETED",
    **dict.fromkeys(("failed", "timeout"), "TASK_STATE_FAILED"),
    "cancelled": "TASK_STATE_CANCELED",
}
_TAILS = {
    "stage.opened": "stage.*.opened",
    "tool.started": "call.*.tool.*.started",
    "tool.used": "call.*.tool.*.used",
    "call.finished": "call.*.finished",
    "stage.closed": "stage.*.closed",
    "deliberation.cancelling": "cancel",
    "deliberation.resumed": "takeover.*",
}


def patterns(tenant: str, accepted: Accepted, events: Sequence[str]) -> list[str]:
    known = {**_TAILS, accepted.type: suffix(accepted)}
    tails = {known.get(event, _END) for event in events} | {_END}
    subject = prefix(tenant, accepted.deliberation_id)
    return [f"{subject}.{tail}" for tail in sorted(tails)]


def ordered(events: Sequence[str]) -> tuple[str, ...]:
    return tuple(event for event in EVENTS if event in events)


def is_end(record: Record) -> bool:
    return record.tokens[3:] == [_END]


def due(facts: Sequence[Record], webhook: Webhook) -> list[Record]:
    end = next((index for index, fact in enumerate(facts) if is_end(fact)), len(facts))
    return [fact for fact in facts[: end + 1] if event_type(fact.data) in webhook.events]


def delivery_id(fact: Record) -> str:
    digest = hashlib.sha256(fact.subject.encode() + b"\n" + fact.data).digest()
    return _ID_PREFIX + base64.b32hexencode(digest).decode().lower()[:ID_CHARS]


def event_id(epoch: str, record: Record) -> str:
    return str(Cursor(epoch, record.sequence))


def _task_update(envelope: Envelope, webhook: Webhook) -> bytes:
    running = "pending" if envelope.type == "deliberation.accepted" else "in_progress"
    status, id = TERMINAL_STATUS.get(envelope.type, running), envelope.deliberation_id
    place = {"taskId": id, "contextId": webhook.metadata.get(TASK_CONTEXT, id)}
    return to_json({"statusUpdate": {**place, "status": {"state": TASK_STATES[status], "timestamp": envelope.ts}}})


def payload(record: Record, epoch: str, webhook: Webhook) -> bytes:
    """The body of a delivery: `{type, timestamp, id, links, metadata, thin, data}`, `data` being the event's bytes.

    `id` is the event's cursor. If the body would exceed PAYLOAD_BYTES_MAX, `thin` is true and `data` is only the
    event's envelope; the receiver reads the rest through `links`. For `a2a` it is A2A's push notification.
    """
    envelope = Envelope.model_validate_json(record.data)
    if webhook.format == "a2a":
        return _task_update(envelope, webhook)
    path = f"/deliberations/{envelope.deliberation_id}"
    head: dict[str, object] = {
        "type": envelope.type,
        "timestamp": envelope.model_dump(mode="json")["ts"],
        "id": event_id(epoch, record),
        "links": {"self": path, "events": f"{path}/events", "deliveries": f"{path}/deliveries"},
        "metadata": webhook.metadata,
    }
    full = _body(head, thin=False, data=record.data)
    return full if len(full) <= PAYLOAD_BYTES_MAX else _body(head, thin=True, data=envelope.model_dump_json().encode())


def _body(head: dict[str, object], *, thin: bool, data: bytes) -> bytes:
    fields = json.dumps({**head, "thin": thin}, ensure_ascii=False, separators=(",", ":")).encode()
    return fields[:-1] + b',"data":' + data + b"}"
