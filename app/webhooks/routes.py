"""Routes: list the deliveries of a deliberation's webhook, and request a redelivery."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from app.api.responses import answer, problems
from app.api.schemas import Resource, dump, narrowed
from app.api.webhook_payloads import delivery_id, due
from app.deliberation.errors import DeliberationError, Gone, JournalUnavailable, NotFound
from app.deliberation.ports import Record
from app.routes.dependencies import DeliberationId, Gateway, InGateway, MayRead, OfTenant, api_router
from app.webhooks.attempts import (
    DeliveryHistory,
    DeliveryKey,
    RedeliveryRequested,
    decoded,
    deliveries,
    deliveries_subject,
    receiver_gone,
)
from app.webhooks.resources import Delivery, DeliveryPage, DeliveryReceipt, delivery_resource

PAGE_MAX = 200
REDELIVERIES_MAX = 100

router = api_router("webhooks")


class TooManyRedeliveries(DeliberationError):
    code = "too_many_redeliveries"


class DeliveriesQuery(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    limit: int = Field(default=50, ge=1, le=PAGE_MAX, description="Items on a page")
    cursor: str | None = Field(default=None, pattern=r"^[0-9]{1,9}$", description="`next_cursor` of the previous page")


@dataclass(frozen=True, slots=True)
class Deliveries:
    facts: dict[str, Record]
    recorded: dict[str, DeliveryHistory]
    epoch: str

    def resource(self, id: str) -> Delivery:
        gone = any(receiver_gone(history.ended) for history in self.recorded.values())
        history = self.recorded.get(id, DeliveryHistory())
        return delivery_resource(id, self.facts[id], history, epoch=self.epoch, stopped=gone)


async def _deliveries(gateway: Gateway, tenant: str, deliberation_id: str) -> Deliveries:
    journal, epoch = gateway["journal"], gateway["catalog"].epoch
    records = await journal.facts(tenant, deliberation_id)
    if not records:
        await gateway["deliberations"].find(tenant, deliberation_id)
        raise Gone(f"The deliveries of {deliberation_id} have left the log.")
    webhook = gateway["deliberations"].state_from(tenant, deliberation_id, records).specification.webhook
    if not epoch:
        raise JournalUnavailable("This gateway has not read the log yet; the log may be unreachable.")
    facts: Sequence[Record] = [] if webhook is None else due(records, webhook)
    recorded = await journal.last([f"{deliveries_subject(tenant, deliberation_id)}.>"]) if facts else []
    return Deliveries({delivery_id(fact): fact for fact in facts}, deliveries(recorded), epoch)


def _answered(resource: Resource, status: int) -> Response:
    return Response(dump(resource), status, {"Cache-Control": "private, no-cache"}, "application/json")


@router.get(
    "/deliberations/{deliberation_id}/deliveries",
    summary="List the deliveries of a deliberation's webhook",
    responses={200: {"model": DeliveryPage, **answer("A page")}, **problems(404, 410, 422, 503)},
)
async def list_deliveries(
    gateway: InGateway, tenant: OfTenant, deliberation_id: DeliberationId, query: Annotated[DeliveriesQuery, Query()]
) -> Response:
    """One item per subscribed event that has happened, in order, with all attempts; empty without a webhook."""
    webhook_deliveries = await _deliveries(gateway, tenant, deliberation_id)
    ids, begin = list(webhook_deliveries.facts), int(query.cursor or 0)
    items = tuple(webhook_deliveries.resource(id) for id in ids[begin : begin + query.limit])
    end = begin + len(items)
    # Deliveries are only appended, so an index is a stable cursor.
    return _answered(DeliveryPage(items=items, next_cursor=str(end) if end < len(ids) else None), 200)


@router.post(
    "/deliberations/{deliberation_id}/deliveries/{delivery_id}/redeliver",
    summary="Redeliver an event now",
    status_code=202,
    responses={
        202: answer("An attempt will be made; `redelivering` is true until then", model=Delivery | DeliveryReceipt),
        **problems(404, 409, 410, 503),
    },
)
async def redeliver(
    gateway: InGateway,
    tenant: OfTenant,
    deliberation_id: DeliberationId,
    id: Annotated[str, Path(alias="delivery_id", description="The delivery's id")],
    read: MayRead,
) -> Response:
    """One attempt besides the schedule, with the same `webhook-id`. While one is pending, a request has no effect.

    Without the scope `read` the answer is a receipt, without the attempts.
    """
    webhook_deliveries = await _deliveries(gateway, tenant, deliberation_id)
    if id not in webhook_deliveries.facts:
        raise NotFound(f"Deliberation {deliberation_id} has no such delivery.")
    history = webhook_deliveries.recorded.get(id)
    # A delivery without attempts will be attempted anyway, and a pending request needs no second record.
    if history is not None and history.started and history.pending_redelivery is None:
        number = max(history.requested, default=0) + 1
        if number > REDELIVERIES_MAX:
            raise TooManyRedeliveries(f"{REDELIVERIES_MAX} redeliveries have been requested.")
        request = RedeliveryRequested(
            fact=webhook_deliveries.facts[id].subject, number=number, at=gateway["clock"].now()
        )
        subject = DeliveryKey(tenant, deliberation_id, id).subject(request)
        appended = await gateway["journal"].write(subject, dump(request))
        history.add(decoded(appended.record.data))
    delivery = webhook_deliveries.resource(id)
    return _answered(delivery if read else narrowed(delivery, DeliveryReceipt), 202)
