"""Routes: a deliberation's events, as a stream (SSE) or as JSON pages over the same cursor.

Everything that can be refused is refused before the stream opens. A stream that is open ends in one of four ways: with
the terminal event; with `stream.reconnect`; because the log has become another one, so that the viewer's next cursor
is answered with `stream.gap`; or because the viewer left, which touches nothing but its seat.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

import structlog
from fastapi import APIRouter, Depends, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from app.answers import answer, headers, problems
from app.cursor import Cursor
from app.frames import Selection, chunks, control_frame, frame_of
from app.gateway import Gateway, InGateway
from app.openings import RETRY_MS, Asked, Opening, asked, head_of, opening, snapshot_of
from app.problems import TooManyStreams
from app.schemas import EventPage, StreamReconnect, dump

PAGE_RECORDS = 256
EXAMINED_MAX = 10_000
SHUTDOWN_GRACE_S = 5.0
_HEADERS = {"Cache-Control": "no-cache, no-transform", "Vary": "Accept"}
_HEARTBEAT = ServerSentEvent(comment="", sep="\n")

router = APIRouter(tags=["events"])
log = structlog.get_logger(__name__)


class EventStream(EventSourceResponse):
    """sse-starlette's response; a viewer that takes no bytes is an event of the day, not a defect of the gateway."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("viewer_stalled", path=scope["path"])


def seat_owner(request: Request) -> str:
    """Who is bounded: the tenant where keys are asked for, and otherwise the address."""
    if "caller_until_s" in request.scope:
        return f"tenant {request.scope['caller'].tenant}"
    return request.client.host if request.client else ""


async def seated(
    request: Request, gateway: InGateway, wanted: Annotated[Asked, Depends(asked)]
) -> AsyncGenerator[None, None]:
    """A seat for the stream until its last byte is sent or its viewer has left; raises TooManyStreams."""
    if wanted.media != "text/event-stream":
        yield
        return
    feed, viewers = gateway["feed"], gateway["metrics"].sse_viewers
    client = seat_owner(request)
    if not feed.admit(client):
        raise TooManyStreams("Too many event streams are open; close some, or read JSON pages.")
    viewers.inc()
    try:
        yield
    finally:
        viewers.dec()
        feed.dismiss(client)


def _farewell(opened: Opening, gateway: Gateway, reason: Literal["draining", "max_age", "slow_consumer"]) -> bytes:
    """Tells the viewer to come back with its last id; spread out in time, so that not all come at once."""
    said = StreamReconnect(deliberation_id=opened.deliberation_id, ts=gateway["clock"].now(), reason=reason)
    return f"retry: {RETRY_MS // 2 + random.randrange(RETRY_MS)}\n".encode() + control_frame(said.type, dump(said))


async def stream(opened: Opening, head: bytes, selection: Selection, gateway: Gateway) -> AsyncGenerator[bytes, None]:
    """The stream's bytes, whole frames in each piece: the head, what is stored, then what is stored from now on."""
    feed, settings, loop = gateway["feed"], gateway["settings"], asyncio.get_running_loop()
    ends_at_s = loop.time() + settings.stream_age_max_s * random.uniform(0.9, 1.0)
    slow_s = settings.stream_send_timeout_s / 2
    yield head
    async with feed.watch(opened.tenant, opened.deliberation_id) as watch:
        viewer = feed.viewer(watch, opened.start)
        while not watch.foreign:
            if watch.epoch not in ("", opened.log.epoch):
                watch.doubt()  # it outlived its log without being told
                return
            if feed.draining.is_set():
                yield _farewell(opened, gateway, "draining")
                return
            if loop.time() >= ends_at_s:
                yield _farewell(opened, gateway, "max_age")
                return
            frames = await viewer.batch(ends_at_s)
            end = next((place for place, frame in enumerate(frames) if frame.ends), None)
            for chunk in chunks(frames if end is None else frames[: end + 1], selection, opened.log.epoch):
                began_s = loop.time()
                yield chunk
                if loop.time() - began_s > slow_s:
                    yield _farewell(opened, gateway, "slow_consumer")
                    return
            if end is not None:
                return


async def page(opened: Opening, selection: Selection, gateway: Gateway, limit: int) -> bytes:
    """An EventPage as JSON. Events are put in as they are stored, each with its cursor; nothing is parsed.

    Without a cursor it begins at the beginning. A page may hold less than `limit` although there is more: only so many
    events are looked at.
    """
    items: list[bytes] = []
    position = 0 if opened.cursor is None and opened.gap is None else opened.start
    ended, epoch = opened.over, opened.log.epoch
    if opened.gap is not None:
        snapshot = await snapshot_of(opened, gateway)
        items = [_item(Cursor(epoch, position), dump(opened.gap)), _item(Cursor(epoch, position), dump(snapshot))]
    examined, more = 0, opened.gap is None and not ended
    while more and len(items) < limit and examined < EXAMINED_MAX:
        reading = gateway["journal"].read(f"{opened.subject}.>", position, limit=PAGE_RECORDS)
        records = [record async for record in reading]
        more = len(records) == PAGE_RECORDS
        examined += len(records)
        for record in records:
            position = record.sequence
            frame = frame_of(epoch, record)
            if frame is not None and selection.takes(frame.type):
                items.append(_item(Cursor(epoch, position), record.data))
            if frame is not None and frame.ends:
                ended, more = True, False
                break
            if len(items) == limit:
                break
    last = f'],"next":"{Cursor(epoch, position)}","ended":{"true" if ended else "false"}}}'
    return b'{"items":[' + b",".join(items) + last.encode()


def _item(cursor: Cursor, event: bytes) -> bytes:
    """The event's JSON with its cursor as the first field."""
    return f'{{"id":"{cursor}",'.encode() + event[1:]


_ANSWERS = {
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
    responses=_ANSWERS,
    dependencies=[Depends(seated)],
)
async def read_events(
    gateway: InGateway,
    wanted: Annotated[Asked, Depends(asked)],
    opened: Annotated[Opening, Depends(opening)],
) -> Response:
    """Every event once, in the order of the log. A page after the terminal event is empty, and says that it ended."""
    if wanted.media == "application/json":
        content = await page(opened, wanted.selection, gateway, wanted.limit)
        return Response(content, media_type=wanted.media, headers=_HEADERS)
    if opened.over:
        return Response(status_code=204, headers=_HEADERS)
    settings = gateway["settings"]
    return EventStream(
        stream(opened, await head_of(opened, gateway), wanted.selection, gateway),
        headers=_HEADERS,
        sep="\n",
        ping=settings.heartbeat_s,
        ping_message_factory=lambda: _HEARTBEAT,
        send_timeout=settings.stream_send_timeout_s,
        shutdown_event=gateway["feed"].draining,
        shutdown_grace_period=SHUTDOWN_GRACE_S,
    )
