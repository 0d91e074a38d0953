"""Routes: events of one deliberation, or of several over one cursor, as a stream (SSE) or as JSON pages.

Every error is answered before the stream opens. A browser opens six connections to one origin, so one stream carries
any number of deliberations: sequences count the events of all of them together.
"""

from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import Depends, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from app.api.cursor import CURSOR_PATTERN, Cursor, parse_cursor
from app.api.event_schemas import EventPage
from app.api.headers import Media, media_of
from app.api.problems import ValidationFailed, query_fault
from app.api.responses import answer, headers, problems
from app.api.schemas import Status
from app.api.suggestions import did_you_mean
from app.deliberation.errors import InvalidToken, NotFound
from app.deliberation.specification import checked_token
from app.routes.dependencies import DeliberationId, InGateway, OfTenant, api_router, stream_slot
from app.streaming.frames import EVENT_TYPES, EventSelection
from app.streaming.resume import EventsRequest
from app.streaming.streams import Streams

NEGOTIATED = {"Cache-Control": "no-cache, no-transform", "Vary": "Accept"}
ANSWERS = {
    200: {
        "model": EventPage,
        "description": "A stream that replays, then goes on live; or a page, as `Accept` asks",
        "headers": headers("Vary", "X-Accel-Buffering"),
        "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/DeliberationEvent"}}},
    },
    204: answer("The cursor is at the terminal event: there is nothing left to stream", "Vary"),
    **problems(400, 404, 406, 410, 422, 429, 503),
}

DELIBERATIONS_MAX = 64

router = api_router("events")

OfMedia = Annotated[Media, Depends(media_of)]
LastEventId = Annotated[
    str | SkipJsonSchema[None],
    Header(
        alias="Last-Event-ID",
        description="Cursor to continue after; beats `after`, because a reconnect repeats the old URL",
        json_schema_extra={"pattern": f"^$|{CURSOR_PATTERN}"},
    ),
]


class EventsQuery(BaseModel):
    """The query of a stream or page. A reconnect repeats it, because it is part of the URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | SkipJsonSchema[None] = Field(
        None,
        description="Cursor to continue after; 0 reads from the beginning",
        json_schema_extra={"pattern": CURSOR_PATTERN},
    )
    deltas: bool = Field(True, description="Whether `call.delta` events are wanted")
    types: list[Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(EVENT_TYPES)})]] = Field(
        [], max_length=32, description="Only logged events of these types, separated by commas or repeated"
    )
    text: Literal["raw", "answer"] = Field(
        "raw",
        description="What calls show: the engine's raw structured output, or with `answer` the growing answer in it",
    )
    limit: int = Field(200, ge=1, le=1_000, description="Events on a JSON page; streams have no limit")

    def selection(self) -> EventSelection:
        if not self.types:
            return EventSelection(self.deltas)
        named = frozenset(kind.strip() for entry in self.types for kind in entry.split(","))
        unknown = sorted(named - EVENT_TYPES)
        if unknown:
            detail = f"No logged event has the type {', '.join(map(repr, unknown))}"[:500]
            remedy = f"{did_you_mean(unknown[0], EVENT_TYPES)}Give some of {', '.join(sorted(EVENT_TYPES))}."
            raise ValidationFailed([query_fault("types", "unknown_type", detail, remedy)])
        return EventSelection(self.deltas, named)

    def cursor(self, last_event_id: str | None) -> Cursor | None:
        """The client's cursor, if any: Last-Event-ID takes precedence over `after`. Raises InvalidEventCursor."""
        cursor = None if self.after is None else parse_cursor(self.after, "after")
        return parse_cursor(last_event_id, "Last-Event-ID") if last_event_id else cursor


async def connection_slot(request: Request, gateway: InGateway, media: OfMedia) -> AsyncGenerator[None, None]:
    """Hold a stream slot of the tenant (of the address in development mode) until the stream ends; TooManyStreams."""
    if media != "text/event-stream":
        yield
        return
    client = f"tenant {request.scope['caller'].tenant}"
    if gateway["access"].development:
        client = request.client.host if request.client else ""
    with stream_slot(gateway, client, "read JSON pages"):
        yield


async def events_response(streams: Streams, request: EventsRequest, media: Media, limit: int) -> Response:
    """The stream or page that answers a request; raises NotFound, Gone and JournalUnavailable."""
    point = await streams.resume(request, patient=media == "text/event-stream")
    if media == "application/json":
        return Response(await streams.page(point, limit), media_type=media, headers=NEGOTIATED)
    if point.over and point.cursor is not None:
        return Response(status_code=204, headers=NEGOTIATED)
    return await streams.response(point, NEGOTIATED)


@router.get(
    "/deliberations/{deliberation_id}/events",
    summary="Watch a deliberation, or page through its events",
    responses=ANSWERS,
    dependencies=[Depends(connection_slot)],
)
async def read_deliberation_events(
    gateway: InGateway,
    tenant: OfTenant,
    deliberation_id: DeliberationId,
    query: Annotated[EventsQuery, Query()],
    media: OfMedia,
    last_event_id: LastEventId = None,
) -> Response:
    """Every event once, in the order of the log. A page after the terminal event is empty, and says that it ended."""
    selection, cursor = query.selection(), query.cursor(last_event_id)
    request = EventsRequest(
        tenant, frozenset({deliberation_id}), selection, cursor, single=True, answers=query.text == "answer"
    )
    return await events_response(gateway["streams"], request, media, query.limit)


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
        ids = frozenset(checked_token(id, "id") for id in query.deliberation)
    except InvalidToken as exc:
        raise NotFound("No deliberation can have one of these ids: ids match [a-z0-9_-]{1,64}.") from exc
    statuses, answers = frozenset(query.status), query.text == "answer"
    request = EventsRequest(tenant, ids, query.selection(), cursor, statuses, answers=answers)
    return await events_response(gateway["streams"], request, media, query.limit)
