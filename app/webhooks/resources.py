"""Deliveries as resources of the API, and the body of a webhook."""

from typing import Literal

from pydantic import AwareDatetime, Field

from app.api.schemas import Resource
from app.api.webhook_payloads import WebhookEvent, event_id
from app.deliberation.facts import Envelope
from app.deliberation.ports import Record
from app.deliberation.specification import Token
from app.webhooks.attempts import AttemptProblem, DeliveryHistory

DeliveryStatus = Literal["pending", "retrying", "delivered", "failed", "stopped"]


class DeliveryAttempt(Resource):
    """One request to the receiver, or one that was refused before it was sent."""

    number: int
    at: AwareDatetime
    duration_ms: int
    status_code: int | None = Field(description="HTTP status; null without an answer")
    problem: AttemptProblem | None = Field(description="Null if the attempt succeeded")
    requested: bool = Field(description="True for a redelivery that a client requested, false for a scheduled attempt")


class DeliveryLinks(Resource):
    """Links of a delivery."""

    deliberation: str
    redeliver: str


class DeliveryReceipt(Resource):
    """The delivery of one event without the receiver's answers: all that a credential without the scope `read` sees."""

    id: Token = Field(description="The `webhook-id` of every attempt")
    type: WebhookEvent
    event_id: str = Field(description="The event's cursor")
    status: DeliveryStatus = Field(
        description="`pending`: no attempt yet; `retrying`: another attempt is due; `failed`: no scheduled attempt is "
        "left. `stopped`: the receiver answered 410 to an event of this deliberation"
    )
    redelivering: bool = Field(description="Whether a requested redelivery is still to be made")
    links: DeliveryLinks


class Delivery(DeliveryReceipt):
    """The delivery of one event to the receiver: its attempts, and when the next one is due."""

    attempts: tuple[DeliveryAttempt, ...] = Field(description="Oldest first")
    next_attempt_at: AwareDatetime | None = Field(description="The next scheduled attempt; null when none is due")


class DeliveryPage(Resource):
    """Deliveries in the order of their events; `next_cursor` is null on the last page."""

    items: tuple[Delivery, ...]
    next_cursor: str | None


class WebhookPayload(Resource):
    """The body of each request to a receiver, signed by Standard Webhooks 1.0.0."""

    type: WebhookEvent
    timestamp: AwareDatetime = Field(description="When the event happened, not when it is sent")
    id: str = Field(description="The event's cursor; cursors order the events of a deliberation")
    links: dict[str, str] = Field(description="Paths: `self`, `events`, `deliveries`")
    metadata: dict[str, str] = Field(description="The metadata of the webhook in the request")
    thin: bool = Field(description="Whether `data` is only the event's envelope, because the full event is too large")
    data: Envelope = Field(description="The event, as in the event stream")


def _status(delivery: DeliveryHistory, stopped: bool) -> DeliveryStatus:
    if delivery.succeeded:
        return "delivered"
    if delivery.ended is not None:
        return "stopped" if delivery.ended.ending == "stopped" else "failed"
    if stopped:
        return "stopped"
    return "retrying" if delivery.failed else "pending"


def _attempts(delivery: DeliveryHistory) -> tuple[DeliveryAttempt, ...]:
    made = [(failure.attempt, False) for _, failure in sorted(delivery.failed.items())]
    if delivery.ended is not None and delivery.ended.attempt is not None:
        made.append((delivery.ended.attempt, False))
    made += [
        (redelivery.attempt, True) for redelivery in delivery.redelivered.values() if redelivery.attempt is not None
    ]
    return tuple(
        DeliveryAttempt(number=number, requested=requested, **attempt.model_dump())
        for number, (attempt, requested) in enumerate(sorted(made, key=lambda attempt: attempt[0].at), start=1)
    )


def delivery_resource(id: str, fact: Record, delivery: DeliveryHistory, *, epoch: str, stopped: bool) -> Delivery:
    """The delivery of a fact; `stopped` if the receiver answered 410 to any event of the deliberation."""
    envelope = Envelope.model_validate_json(fact.data)
    path = f"/deliberations/{envelope.deliberation_id}"
    status = _status(delivery, stopped)
    return Delivery(
        id=id,
        type=envelope.type,  # pyright: ignore[reportArgumentType] -- only subscribed events are delivered
        event_id=event_id(epoch, fact),
        status=status,
        attempts=_attempts(delivery),
        next_attempt_at=delivery.next_attempt_at if status == "retrying" else None,
        redelivering=delivery.pending_redelivery is not None,
        links=DeliveryLinks(deliberation=path, redeliver=f"{path}/deliveries/{id}/redeliver"),
    )
