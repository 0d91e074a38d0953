"""The records of deliveries: attempts, requests for a redelivery, and how each delivery ended.

Each record has a unique subject, and the first write wins. A failed attempt's record is itself the queue item of the
next attempt; a request for a redelivery is a queue item too. So no second write can be lost.

| subject after `webhooks.<tenant>.<deliberation>.<delivery>.` | content |
|---|---|
| `failed.<n>` | queue item: the nth scheduled attempt failed; holds the time of the next |
| `ended` | no scheduled attempt follows: delivered, stopped by the receiver, exhausted, or the fact expired |
| `redelivery.<k>` | queue item: a client requested one more attempt |
| `redelivered.<k>` | the outcome of that attempt |
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, TypeAdapter

from app.api.schemas import Resource
from app.deliberation.ports import Record
from app.deliberation.specification import Token, checked_token

Ending = Literal["delivered", "stopped", "exhausted", "expired"]


class AttemptProblem(Resource):
    """Why an attempt failed. Of the receiver's answer only the status is kept."""

    code: str = Field(
        description="`http_status`, `timeout`, `connection_failed`, `tls_failed`, `name_unresolved`, "
        "`address_refused`, `url_refused` or `no_http`"
    )
    detail: str


class Attempt(Resource):
    """One request to the receiver, or one refused before it was sent. Without an answer `status_code` is null."""

    at: AwareDatetime
    duration_ms: int
    status_code: int | None = None
    problem: AttemptProblem | None = None

    @property
    def succeeded(self) -> bool:
        return self.problem is None


class AttemptFailed(Resource):
    """The nth scheduled attempt failed and another is due. `fact` is the subject of the delivered fact."""

    type: Literal["webhook.failed"] = "webhook.failed"
    fact: str
    number: int = Field(ge=1)
    attempt: Attempt
    next_attempt_at: AwareDatetime


class DeliveryEnded(Resource):
    """No scheduled attempt follows. `attempt` is the last one; null if the fact was gone before it."""

    type: Literal["webhook.ended"] = "webhook.ended"
    fact: str
    ending: Ending
    attempt: Attempt | None


class RedeliveryRequested(Resource):
    """A client requested one more attempt, now."""

    type: Literal["webhook.redelivery"] = "webhook.redelivery"
    fact: str
    number: int = Field(ge=1)
    at: AwareDatetime


class Redelivered(Resource):
    """The outcome of a requested redelivery; `attempt` is null if the fact was gone."""

    type: Literal["webhook.redelivered"] = "webhook.redelivered"
    fact: str
    number: int = Field(ge=1)
    attempt: Attempt | None


DeliveryRecord = AttemptFailed | DeliveryEnded | RedeliveryRequested | Redelivered
_RECORDS: TypeAdapter[DeliveryRecord] = TypeAdapter(Annotated[DeliveryRecord, Field(discriminator="type")])


def receiver_gone(record: DeliveryRecord | None) -> bool:
    return isinstance(record, DeliveryEnded) and record.ending == "stopped"


def decoded(data: bytes) -> DeliveryRecord:
    return _RECORDS.validate_json(data)


@dataclass(frozen=True, slots=True)
class DeliveryKey:
    tenant: Token
    deliberation_id: Token
    delivery_id: Token

    @classmethod
    def of(cls, record: Record) -> "DeliveryKey":
        _, tenant, deliberation_id, delivery_id, *_ = record.tokens
        return cls(tenant, deliberation_id, delivery_id)

    def subject(self, record: DeliveryRecord) -> str:
        stem = f"{deliveries_subject(self.tenant, self.deliberation_id)}.{checked_token(self.delivery_id, 'delivery')}"
        kind = record.type.removeprefix("webhook.")
        return f"{stem}.{kind}" if isinstance(record, DeliveryEnded) else f"{stem}.{kind}.{record.number}"


def deliveries_subject(tenant: str, deliberation_id: str) -> str:
    return f"webhooks.{checked_token(tenant, 'tenant')}.{checked_token(deliberation_id, 'id')}"


@dataclass(slots=True)
class DeliveryHistory:
    """The fold of one delivery's records; their order does not matter."""

    failed: dict[int, AttemptFailed] = field(default_factory=dict[int, AttemptFailed])
    ended: DeliveryEnded | None = None
    requested: dict[int, RedeliveryRequested] = field(default_factory=dict[int, RedeliveryRequested])
    redelivered: dict[int, Redelivered] = field(default_factory=dict[int, Redelivered])

    def add(self, record: DeliveryRecord) -> None:
        match record:
            case AttemptFailed():
                self.failed[record.number] = record
            case DeliveryEnded():
                self.ended = record
            case RedeliveryRequested():
                self.requested[record.number] = record
            case Redelivered():
                self.redelivered[record.number] = record

    @property
    def started(self) -> bool:
        """Whether a first attempt was made, or never will be."""
        return bool(self.failed) or self.ended is not None

    @property
    def succeeded(self) -> bool:
        scheduled = self.ended is not None and self.ended.ending == "delivered"
        return scheduled or any(
            redelivery.attempt is not None and redelivery.attempt.succeeded for redelivery in self.redelivered.values()
        )

    @property
    def finished(self) -> bool:
        return self.ended is not None or self.succeeded

    @property
    def next_attempt_at(self) -> datetime | None:
        if self.finished or not self.failed:
            return None
        return self.failed[max(self.failed)].next_attempt_at

    @property
    def pending_redelivery(self) -> int | None:
        return min(self.requested.keys() - self.redelivered.keys(), default=None)


def deliveries(records: Iterable[Record]) -> dict[str, DeliveryHistory]:
    histories: dict[str, DeliveryHistory] = {}
    for record in records:
        histories.setdefault(DeliveryKey.of(record).delivery_id, DeliveryHistory()).add(decoded(record.data))
    return histories
