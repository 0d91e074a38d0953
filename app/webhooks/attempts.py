"""What is recorded of deliveries: every attempt, and what follows from it. The log of deliveries is nothing else.

Like the facts of deliberations, each record has a subject that is its own, and the first write wins. A failed attempt's
record is itself the queue item of the next attempt, and so is a request to deliver once more: there is no second write
to lose.

| subject after `webhooks.<tenant>.<deliberation>.<delivery>.` | says |
|---|---|
| `failed.<n>` | the nth attempt by schedule failed, and when the next is due: a queue item |
| `ended` | the last attempt by schedule: delivered, the receiver is gone, there were enough, or the fact is gone |
| `redelivery.<k>` | somebody asked to deliver once more: a queue item |
| `redelivered.<k>` | what came of it |
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from app.deliberation.ports import Record
from app.deliberation.specification import Token, checked_token

Ending = Literal["delivered", "stopped", "exhausted", "expired"]


class _DeliveryRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class AttemptFault(_DeliveryRecord):
    """Why an attempt was no success: a stable code, and a sentence without anything that the receiver said."""

    code: str
    detail: str


class Attempt(_DeliveryRecord):
    """One request to the receiver, or one that was refused before it began. `status_code` is null without an answer."""

    at: AwareDatetime
    duration_ms: int
    status_code: int | None = None
    problem: AttemptFault | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the receiver took it."""
        return self.problem is None


class AttemptFailed(_DeliveryRecord):
    """The nth attempt failed; the next one is due. `fact` is the subject of what is told."""

    type: Literal["webhook.failed"] = "webhook.failed"
    fact: str
    number: int = Field(ge=1)
    attempt: Attempt
    next_attempt_at: AwareDatetime


class DeliveryEnded(_DeliveryRecord):
    """No attempt follows by schedule. `attempt` is the last one, null where the fact was gone before it."""

    type: Literal["webhook.ended"] = "webhook.ended"
    fact: str
    ending: Ending
    attempt: Attempt | None


class RedeliveryRequested(_DeliveryRecord):
    """Somebody asked for one attempt more, now."""

    type: Literal["webhook.redelivery"] = "webhook.redelivery"
    fact: str
    number: int = Field(ge=1)
    at: AwareDatetime


class Redelivered(_DeliveryRecord):
    """What came of a request for one attempt more; `attempt` is null where the fact was gone."""

    type: Literal["webhook.redelivered"] = "webhook.redelivered"
    fact: str
    number: int = Field(ge=1)
    attempt: Attempt | None


Told = AttemptFailed | DeliveryEnded | RedeliveryRequested | Redelivered
_TOLD: TypeAdapter[Told] = TypeAdapter(Annotated[Told, Field(discriminator="type")])


def stopped(told: Told | None) -> bool:
    """Whether the receiver has said that it is gone, and is to be told nothing more of the same deliberation."""
    return isinstance(told, DeliveryEnded) and told.ending == "stopped"


def encoded(told: Told) -> bytes:
    """The bytes that the log keeps."""
    return told.model_dump_json().encode()


def decoded(data: bytes) -> Told:
    """A stored record; raises pydantic's ValidationError."""
    return _TOLD.validate_json(data)


@dataclass(frozen=True, slots=True)
class DeliveryKey:
    """Which delivery: of which deliberation, and whose."""

    tenant: Token
    deliberation_id: Token
    delivery_id: Token

    @classmethod
    def of(cls, record: Record) -> "DeliveryKey":
        """The place that a record's subject names."""
        _, tenant, deliberation_id, delivery_id, *_ = record.tokens
        return cls(tenant, deliberation_id, delivery_id)

    def subject(self, told: Told) -> str:
        """The subject of a record."""
        stem = f"{deliveries_of(self.tenant, self.deliberation_id)}.{checked_token(self.delivery_id, 'delivery')}"
        match told:
            case AttemptFailed():
                return f"{stem}.failed.{told.number}"
            case DeliveryEnded():
                return f"{stem}.ended"
            case RedeliveryRequested():
                return f"{stem}.redelivery.{told.number}"
            case Redelivered():
                return f"{stem}.redelivered.{told.number}"

    @property
    def pattern(self) -> str:
        """Matches every record of the delivery."""
        return f"{deliveries_of(self.tenant, self.deliberation_id)}.{self.delivery_id}.>"


def deliveries_of(tenant: str, deliberation_id: str) -> str:
    """The subject under which all deliveries of one deliberation are recorded."""
    return f"webhooks.{checked_token(tenant, 'tenant')}.{checked_token(deliberation_id, 'id')}"


@dataclass(slots=True)
class DeliveryHistory:
    """The fold of one delivery's records; they may come in any order."""

    failed: dict[int, AttemptFailed] = field(default_factory=dict[int, AttemptFailed])
    ended: DeliveryEnded | None = None
    requested: dict[int, RedeliveryRequested] = field(default_factory=dict[int, RedeliveryRequested])
    redelivered: dict[int, Redelivered] = field(default_factory=dict[int, Redelivered])

    def take(self, told: Told) -> None:
        """Add one record."""
        match told:
            case AttemptFailed():
                self.failed[told.number] = told
            case DeliveryEnded():
                self.ended = told
            case RedeliveryRequested():
                self.requested[told.number] = told
            case Redelivered():
                self.redelivered[told.number] = told

    @property
    def begun(self) -> bool:
        """Whether there was a first attempt, or will never be one."""
        return bool(self.failed) or self.ended is not None

    @property
    def succeeded(self) -> bool:
        """Whether the receiver has taken it, by schedule or when asked for."""
        by_schedule = self.ended is not None and self.ended.ending == "delivered"
        return by_schedule or any(
            each.attempt is not None and each.attempt.succeeded for each in self.redelivered.values()
        )

    @property
    def settled(self) -> bool:
        """Whether no attempt follows by schedule."""
        return self.ended is not None or self.succeeded

    @property
    def next_attempt_at(self) -> datetime | None:
        """When the next attempt by schedule is due; None when none is, or none was made yet."""
        if self.settled or not self.failed:
            return None
        return self.failed[max(self.failed)].next_attempt_at

    @property
    def awaited(self) -> int | None:
        """The number of the oldest request for one attempt more that nothing has come of yet."""
        return min(self.requested.keys() - self.redelivered.keys(), default=None)


def deliveries(records: Iterable[Record]) -> dict[str, DeliveryHistory]:
    """Every delivery that the records tell of, by id; raises pydantic's ValidationError."""
    found: dict[str, DeliveryHistory] = {}
    for record in records:
        found.setdefault(DeliveryKey.of(record).delivery_id, DeliveryHistory()).take(decoded(record.data))
    return found
