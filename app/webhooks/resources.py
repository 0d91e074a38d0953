"""Deliveries as clients read them."""

from typing import Literal

from pydantic import AwareDatetime, Field

from app.api.schemas import Resource
from app.api.webhook_payloads import WebhookEvent, event_id
from app.deliberation.facts import Envelope
from app.deliberation.ports import Record
from app.deliberation.specification import Token
from app.webhooks import attempts

DeliveryStatus = Literal["pending", "retrying", "delivered", "failed", "stopped"]


class AttemptProblem(Resource):
    """Why an attempt was no success; nothing of what the receiver said is kept but its status."""

    code: str = Field(
        description="`http_status`, `timeout`, `connection_failed`, `tls_failed`, `name_unresolved`, "
        "`address_refused`, `url_refused` or `no_http`"
    )
    detail: str


class DeliveryAttempt(Resource):
    """One request to the receiver, or one that was refused before it began."""

    number: int
    at: AwareDatetime
    duration_ms: int
    status_code: int | None = Field(description="Of HTTP; null where no answer came")
    problem: AttemptProblem | None = Field(description="Null where the receiver took it")
    requested: bool = Field(description="Whether somebody asked for it; others were made by schedule")


class DeliveryLinks(Resource):
    """Where to go from a delivery."""

    deliberation: str
    redeliver: str


class Delivery(Resource):
    """One event on its way to the receiver: everything that was tried, and when it is tried again."""

    id: Token = Field(description="The `webhook-id` of every attempt")
    type: WebhookEvent
    event_id: str = Field(description="The event's cursor")
    status: DeliveryStatus = Field(
        description="`pending`: not tried yet; `retrying`: another attempt is due; `failed`: there were enough; "
        "`stopped`: the receiver answered 410, to this or to another event of the same deliberation"
    )
    attempts: tuple[DeliveryAttempt, ...] = Field(description="Oldest first")
    next_attempt_at: AwareDatetime | None = Field(description="By schedule; null when none is due")
    redelivering: bool = Field(description="Whether an attempt was asked for that is not made yet")
    links: DeliveryLinks


class DeliveryPage(Resource):
    """Deliveries in the order of the events; `next_cursor` is null on the last page."""

    items: tuple[Delivery, ...]
    next_cursor: str | None


class WebhookPayload(Resource):
    """The body of each request to a receiver, signed as Standard Webhooks 1.0.0 has it."""

    type: WebhookEvent
    timestamp: AwareDatetime = Field(description="When it happened, whenever it is told")
    id: str = Field(description="The event's cursor: it orders the events of a deliberation")
    links: dict[str, str] = Field(description="Paths: `self`, `events`, `deliveries`")
    metadata: dict[str, str] = Field(description="The webhook's own")
    thin: bool = Field(description="Whether `data` is only the event's envelope, because the whole is too large")
    data: Envelope = Field(description="The event, as the stream of events has it")


def _status(delivery: attempts.DeliveryHistory, stopped: bool) -> DeliveryStatus:
    if delivery.succeeded:
        return "delivered"
    if delivery.ended is not None:
        return "stopped" if delivery.ended.ending == "stopped" else "failed"
    if stopped:
        return "stopped"
    return "retrying" if delivery.failed else "pending"


def _attempts(delivery: attempts.DeliveryHistory) -> tuple[DeliveryAttempt, ...]:
    made = [(each.attempt, False) for _, each in sorted(delivery.failed.items())]
    if delivery.ended is not None and delivery.ended.attempt is not None:
        made.append((delivery.ended.attempt, False))
    made += [(each.attempt, True) for each in delivery.redelivered.values() if each.attempt is not None]
    return tuple(
        DeliveryAttempt(
            number=number,
            at=attempt.at,
            duration_ms=attempt.duration_ms,
            status_code=attempt.status_code,
            problem=attempt.problem and AttemptProblem(code=attempt.problem.code, detail=attempt.problem.detail),
            requested=requested,
        )
        for number, (attempt, requested) in enumerate(sorted(made, key=lambda each: each[0].at), start=1)
    )


def delivery_resource(
    id: str, fact: Record, delivery: attempts.DeliveryHistory, *, epoch: str, stopped: bool
) -> Delivery:
    """The delivery of a fact; `stopped` when the receiver has said of any of the deliberation's that it is gone."""
    envelope = Envelope.model_validate_json(fact.data)
    path = f"/deliberations/{envelope.deliberation_id}"
    status = _status(delivery, stopped)
    return Delivery(
        id=id,
        type=envelope.type,  # pyright: ignore[reportArgumentType] -- what is wanted is one of these
        event_id=event_id(epoch, fact),
        status=status,
        attempts=_attempts(delivery),
        next_attempt_at=delivery.next_attempt_at if status == "retrying" else None,
        redelivering=delivery.awaited is not None,
        links=DeliveryLinks(deliberation=path, redeliver=f"{path}/deliveries/{id}/redeliver"),
    )
