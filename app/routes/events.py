"""Routes: a deliberation's events, as a stream (SSE) or as JSON pages over the same cursor.

Everything that can be refused is refused before the stream opens.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.api.cursor import Cursor
from app.api.event_schemas import EventPage
from app.api.responses import answer, headers, problems
from app.api.schemas import dump
from app.log.paging import of_deliberation
from app.routes.dependencies import Gateway, InGateway
from app.streaming.event_stream import NEGOTIATED, EventStreamResponse, StreamPlan, seated, stream_events
from app.streaming.frames import Filter, event_in, frame_of
from app.streaming.resume import EventsRequest, ResumePoint, events_request, head_of, resume_point, snapshot_of

PAGE_RECORDS = 256
EXAMINED_MAX = 10_000

router = APIRouter(tags=["events"])


def item(cursor: Cursor, event: bytes) -> bytes:
    """The event's JSON with its cursor as the first field."""
    return f'{{"id":"{cursor}",'.encode() + event[1:]


def page_of(items: list[bytes], next_: Cursor, *, ended: bool) -> bytes:
    """An EventPage as JSON."""
    last = f'],"next":"{next_}","ended":{"true" if ended else "false"}}}'
    return b'{"items":[' + b",".join(items) + last.encode()


async def page(opened: ResumePoint, wanted: Filter, gateway: Gateway, limit: int) -> bytes:
    """An EventPage as JSON. Events are put in as they are stored, each with its cursor; nothing is parsed.

    Without a cursor it begins at the beginning. A page may hold less than `limit` although there is more: only so many
    events are looked at.
    """
    items: list[bytes] = []
    look, epoch = opened.look, opened.epoch
    position = look.begin_sequence - 1 if opened.cursor is None and opened.gap is None else opened.start
    ended = opened.over
    if opened.gap is not None:
        snapshot = event_in(await snapshot_of(look, gateway))
        items = [item(Cursor(epoch, position), each) for each in (dump(opened.gap), snapshot)]
    examined, more = 0, opened.gap is None and not ended
    (pattern,) = of_deliberation(look.tenant, look.deliberation_id)
    while more and len(items) < limit and examined < EXAMINED_MAX:
        reading = gateway["journal"].read(pattern, position, limit=PAGE_RECORDS)
        records = [record async for record in reading]
        more = len(records) == PAGE_RECORDS
        examined += len(records)
        for record in records:
            position = record.sequence
            frame = frame_of(epoch, record)
            if frame is not None and wanted.takes(frame):
                items.append(item(Cursor(epoch, position), record.data))
            if frame is not None and frame.ends:
                ended, more = True, False
                break
            if len(items) == limit:
                break
    return page_of(items, Cursor(epoch, position), ended=ended)


def stream_of(opened: ResumePoint, wanted: Filter, head: list[bytes], gateway: Gateway) -> EventStreamResponse:
    """The answer to a viewer of one deliberation."""
    settings, look = gateway["settings"], opened.look
    patterns = of_deliberation(look.tenant, look.deliberation_id)
    showing = StreamPlan(
        epoch=opened.epoch,
        start=opened.start,
        live=patterns,
        stored=patterns,
        filter=wanted,
        ends=lambda frame: frame.ends,
        deliberation_id=look.deliberation_id,
    )
    return EventStreamResponse(
        stream_events(showing, head, gateway),
        heartbeat_s=settings.heartbeat_s,
        stalled_s=settings.stream_send_timeout_s,
        headers=NEGOTIATED,
    )


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


@router.get(
    "/deliberations/{deliberation_id}/events",
    operation_id="read_deliberation_events",
    summary="Watch a deliberation, or page through its events",
    response_class=Response,
    responses=ANSWERS,
    dependencies=[Depends(seated)],
)
async def read_deliberation_events(
    gateway: InGateway,
    wanted: Annotated[EventsRequest, Depends(events_request)],
    opened: Annotated[ResumePoint, Depends(resume_point)],
) -> Response:
    """Every event once, in the order of the log. A page after the terminal event is empty, and says that it ended."""
    if wanted.media == "application/json":
        content = await page(opened, wanted.selection, gateway, wanted.limit)
        return Response(content, media_type=wanted.media, headers=NEGOTIATED)
    if opened.over:
        return Response(status_code=204, headers=NEGOTIATED)
    return stream_of(opened, wanted.selection, await head_of(opened, gateway), gateway)
