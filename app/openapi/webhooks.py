"""What receivers get, as the OpenAPI document tells it under `webhooks`."""

import json
from typing import Any

from app.api.webhook_payloads import TERMINAL_EVENTS, delivery_id, payload
from app.deliberation.specification import Webhook
from app.openapi.example_log import EPOCH, KEY, records_of

_SIGNATURE = "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="
_HOOK = Webhook(url="https://hooks.example.com/deliberations", events=TERMINAL_EVENTS, metadata={"order": "4711"})


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    """A header of every request to a receiver."""
    told = {"in": "header", "name": name, "required": True, "description": description}
    return {**told, "schema": {"type": "string"}, "examples": {"ended": {"value": example}}}


def receiver_operation() -> dict[str, Any]:
    """The request that a receiver gets, as an operation; its body is the schema WebhookPayload."""
    end = records_of(KEY)[-1]
    shown = {"summary": "It has ended with a verdict", "value": json.loads(payload(end, EPOCH, _HOOK))}
    schema = {"$ref": "#/components/schemas/WebhookPayload"}
    return {
        "operationId": "receive_event",
        "summary": "An event of a deliberation whose request named a webhook",
        "description": "Sent at least once for each event that was asked for, and signed as Standard Webhooks 1.0.0 "
        "has it: check the signature on the bytes as they came. Whoever has seen the `webhook-id` has seen the event.",
        "tags": ["webhooks"],
        "security": [],
        "parameters": [
            _header("webhook-id", "The delivery's id, the same at every attempt", delivery_id(end)),
            _header("webhook-timestamp", "Seconds since 1970 of this attempt", "1767225600"),
            _header("webhook-signature", "`v1,` and HMAC-SHA256 in base64, for each secret", _SIGNATURE),
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "examples": {"ended": shown}}},
        },
        "responses": {
            "2XX": {"description": "Taken"},
            "410": {"description": "Gone: nothing more of this deliberation is sent"},
            "default": {"description": "Not taken: it is sent again later"},
        },
    }
