"""Route: the events of several deliberations in one stream, or in pages of JSON, over one cursor.

A browser opens six connections to one origin, so one stream carries any number of deliberations. Sequences count the
events of all deliberations together; hence one cursor resumes it.
"""

from typing import Annotated

from fastapi import Depends, Query, Response
from pydantic import Field

from app.api.schemas import Status
from app.deliberation.errors import InvalidToken, NotFound
from app.deliberation.specification import checked_token
from app.routes.dependencies import InGateway, OfTenant, api_router
from app.routes.events import ANSWERS, EventsQuery, LastEventId, OfMedia, connection_slot, events_response
from app.streaming.resume import EventsRequest

DELIBERATIONS_MAX = 64

router = api_router("events")


class MultiplexedQuery(EventsQuery):
    deltas: bool = Field(False, description="Whether `call.delta` events are wanted")
    deliberation: list[str] = Field(
        [], max_length=DELIBERATIONS_MAX, description="Only these deliberations, repeated; all of the tenant if none"
    )
    status: list[Status] = Field(
        [],
        max_length=7,
        description="Only events of deliberations that had one of these statuses, repeated, before the event or after",
    )


@router.get(
    "/events",
    summary="Watch several deliberations in one stream, or page through their events",
    responses=ANSWERS,
    dependencies=[Depends(connection_slot)],
)
async def read_events(
    gateway: InGateway,
    tenant: OfTenant,
    query: Annotated[MultiplexedQuery, Query()],
    media: OfMedia,
    last_event_id: LastEventId = None,
) -> Response:
    """Every event once, in the order of the log, over all deliberations.

    Without a cursor a stream begins with a snapshot: of each deliberation that is named, or one list of the tenant's
    newest. A stream of named deliberations ends with the last of them; one of the whole tenant never does.
    """
    cursor = query.cursor(last_event_id)
    try:
        ids = frozenset(checked_token(each, "id") for each in query.deliberation)
    except InvalidToken as exc:
        raise NotFound("No deliberation can have one of these ids: ids match [a-z0-9_-]{1,64}.") from exc
    statuses, answers = frozenset(query.status), query.text == "answer"
    request = EventsRequest(tenant, ids, query.selection(), cursor, statuses, answers=answers)
    return await events_response(gateway["streams"], request, media, query.limit)
