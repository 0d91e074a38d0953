"""The request to receivers, as an operation under `webhooks` of the OpenAPI document."""

from typing import Any

from app.openapi.examples import DELIVERY, composed

_SIGNATURE = "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    declared = {"in": "header", "name": name, "required": True, "description": description}
    return {**declared, "schema": {"type": "string"}, "example": example}


def receiver_operation(schemas: dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/WebhookPayload"}
    return {
        "operationId": "receive_event",
        "summary": "An event of a deliberation with a webhook",
        "description": "Sent at least once per subscribed event, signed by Standard Webhooks 1.0.0. Verify the "
        "signature over the bytes as received. Repeated deliveries of an event have the same `webhook-id`.",
        "tags": ["webhooks"],
        "security": [],
        "parameters": [
            _header("webhook-id", "The delivery's id, the same at every attempt", DELIVERY),
            _header("webhook-timestamp", "Seconds since 1970 of this attempt", "1767225600"),
            _header("webhook-signature", "`v1,` and HMAC-SHA256 in base64, for each secret", _SIGNATURE),
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": composed(schema, schemas)}},
        },
        "responses": {
            "2XX": {"description": "Accepted"},
            "410": {"description": "Gone: no more events of this deliberation are sent"},
            "default": {"description": "Failed: the delivery is retried later"},
        },
    }
