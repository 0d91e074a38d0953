"""Routes: what became of the events that a deliberation's webhook is told, and once more, please."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.responses import answer, problems
from app.api.schemas import Resource, dump
from app.api.webhook_payloads import delivery_id, due
from app.deliberation.errors import DeliberationError, JournalUnavailable, NotFound
from app.deliberation.ports import Record
from app.routes.dependencies import DeliberationId, Gateway, InGateway, OfTenant
from app.webhooks import attempts
from app.webhooks.attempts import DeliveryKey, RedeliveryRequested, decoded, deliveries, deliveries_of, encoded, stopped
from app.webhooks.resources import Delivery, DeliveryPage, delivery_resource

PAGE_MAX = 200
REDELIVERIES_MAX = 100
_NOT_READ = "The log has not been read yet; it may not be reachable."

router = APIRouter(tags=["webhooks"])


class TooManyRedeliveries(DeliberationError):
    """One delivery was asked for more often than is good for anybody."""

    code = "too_many_redeliveries"


class DeliveriesQuery(BaseModel):
    """The query of a list of deliveries."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    limit: int = Field(default=50, ge=1, le=PAGE_MAX, description="Items on a page")
    cursor: str | None = Field(default=None, pattern=r"^[0-9]{1,9}$", description="`next_cursor` of the page before")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What a deliberation's webhook is told, in the log's order, and all that is recorded of it."""

    facts: dict[str, Record]
    recorded: dict[str, attempts.DeliveryHistory]
    epoch: str

    def resource(self, id: str) -> Delivery:
        """One of them."""
        gone = any(stopped(each.ended) for each in self.recorded.values())
        known = self.recorded.get(id, attempts.DeliveryHistory())
        return delivery_resource(id, self.facts[id], known, epoch=self.epoch, stopped=gone)


async def _deliveries(gateway: Gateway, tenant: str, deliberation_id: str) -> Deliveries:
    """All deliveries of a deliberation; none where it has no webhook. Raises NotFound, Gone, JournalUnavailable."""
    journal, epoch = gateway["journal"], gateway["catalog"].epoch
    records = await journal.facts(tenant, deliberation_id)
    webhook = gateway["deliberations"].state_from(deliberation_id, records).specification.webhook
    if not epoch:
        raise JournalUnavailable(_NOT_READ)
    told: Sequence[Record] = [] if webhook is None else due(records, webhook)
    recorded = await journal.last([f"{deliveries_of(tenant, deliberation_id)}.>"]) if told else []
    return Deliveries({delivery_id(fact): fact for fact in told}, deliveries(recorded), epoch)


def _answered(resource: Resource, status: int) -> Response:
    return Response(dump(resource), status, {"Cache-Control": "private, no-cache"}, "application/json")


@router.get(
    "/deliberations/{deliberation_id}/deliveries",
    operation_id="list_deliveries",
    summary="List what its webhook was told, and every attempt",
    response_class=Response,
    responses={200: {"model": DeliveryPage, **answer("A page")}, **problems(404, 410, 422, 503)},
)
async def list_deliveries(
    gateway: InGateway, tenant: OfTenant, deliberation_id: DeliberationId, query: Annotated[DeliveriesQuery, Query()]
) -> Response:
    """One item for each event that was asked for and has happened, in order; empty without a webhook."""
    every = await _deliveries(gateway, tenant, deliberation_id)
    ids, begin = list(every.facts), int(query.cursor or 0)
    items = tuple(every.resource(id) for id in ids[begin : begin + query.limit])
    end = begin + len(items)
    # Deliveries are only ever added at the end, so that a place among them is a cursor.
    return _answered(DeliveryPage(items=items, next_cursor=str(end) if end < len(ids) else None), 200)


@router.post(
    "/deliberations/{deliberation_id}/deliveries/{delivery_id}/redeliver",
    operation_id="redeliver",
    summary="Deliver an event once more, now",
    status_code=202,
    response_class=Response,
    responses={
        202: {"model": Delivery, **answer("An attempt will be made; `redelivering` says until when it was not")},
        **problems(404, 409, 410, 503),
    },
)
async def redeliver(
    gateway: InGateway,
    tenant: OfTenant,
    deliberation_id: DeliberationId,
    wanted: Annotated[str, Path(alias="delivery_id", description="The delivery's id, as the list has it")],
) -> Response:
    """One attempt beside the schedule, under the same `webhook-id`. Asking again before it is made changes nothing."""
    every = await _deliveries(gateway, tenant, deliberation_id)
    if wanted not in every.facts:
        raise NotFound(f"Deliberation {deliberation_id} has no such delivery.")
    known = every.recorded.get(wanted)
    # What was never tried is about to be, and what was asked for and not made yet is asked for already.
    if known is not None and known.begun and known.awaited is None:
        number = max(known.requested, default=0) + 1
        if number > REDELIVERIES_MAX:
            raise TooManyRedeliveries(f"It was asked for {REDELIVERIES_MAX} times.")
        asked = RedeliveryRequested(fact=every.facts[wanted].subject, number=number, at=gateway["clock"].now())
        place = DeliveryKey(tenant, deliberation_id, wanted)
        appended = await gateway["journal"].write(place.subject(asked), encoded(asked))
        known.take(decoded(appended.record.data))
    return _answered(every.resource(wanted), 202)
