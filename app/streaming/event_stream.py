"""A stream on its way to one viewer: its bytes, its heartbeat, its four ends, and what it may cost.

A stream that is open ends with the terminal event; with `stream.reconnect`; because the log has become another one, so
that the viewer's next cursor is answered with `stream.gap`; or because the viewer left or takes nothing, which touches
nothing but its seat. No byte is kept for a viewer beyond what is being sent.

A response of its own, since what the library for event streams offers is a task for each concern of each viewer, bytes
of any size at once, and a close that waits for a reader that will never read.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal

import anyio
import structlog
from fastapi import Depends, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.access.keys import Caller
from app.api.event_schemas import StreamReconnect
from app.api.negotiation import Media, media_of
from app.api.problems import TooManyStreams
from app.api.schemas import dump
from app.log.paging import Patterns
from app.routes.dependencies import Gateway, InGateway
from app.streaming.connection import bounded, connection_of
from app.streaming.frames import EventFrame, Filter, FrameBatcher, control_frame, gathered
from app.streaming.resume import RETRY_MS

PIECE_BYTES = 16_384
# Events that a viewer is not shown move its cursor no more often than this.
MOVE_S = 0.5
NEGOTIATED = {"Cache-Control": "no-cache, no-transform", "Vary": "Accept"}
_UNBUFFERED = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
_HEARTBEAT = b": \n\n"

Reason = Literal["draining", "max_age", "slow_consumer"]
log = structlog.get_logger(__name__)


class EventStreamResponse(Response):
    """An event stream of whole frames. A comment is sent when nothing else was for `heartbeat_s`.

    A viewer that takes no byte for `stalled_s` loses its connection at once, with whatever waits in it.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        *,
        heartbeat_s: float,
        stalled_s: float,
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**_UNBUFFERED, **headers})
        self._content = content
        self._heartbeat_s = heartbeat_s
        self._stalled_s = stalled_s
        # Held over a whole chunk, so that no comment comes into the middle of a frame.
        self._sending = asyncio.Lock()
        self._sent_at_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        connection = connection_of(scope)
        if connection is not None:
            bounded(connection, self._stalled_s)
        try:
            async with anyio.create_task_group() as group, aclosing(self._content):
                group.start_soon(self._attend, receive, send, group.cancel_scope)
                await self._send_all(send)
                group.cancel_scope.cancel()
        except* _Stalled:
            log.info("viewer_stalled", path=scope["path"])
            if connection is not None:
                connection.abort()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._content:
            async with self._sending:
                for begin in range(0, len(chunk), PIECE_BYTES):
                    await self._send(send, chunk[begin : begin + PIECE_BYTES])
        async with self._sending:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, body: bytes) -> None:
        try:
            async with asyncio.timeout(self._stalled_s):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError as exc:
            raise _Stalled from exc
        self._sent_at_s = asyncio.get_running_loop().time()

    async def _attend(self, receive: Receive, send: Send, stream: anyio.CancelScope) -> None:
        """Notice that the viewer has left, and say something when there is nothing to say."""
        loop = asyncio.get_running_loop()
        self._sent_at_s = loop.time()
        while True:
            due_s = self._sent_at_s + self._heartbeat_s
            try:
                async with asyncio.timeout_at(due_s):
                    message = await receive()
            except TimeoutError:
                if self._sent_at_s + self._heartbeat_s <= loop.time() and not self._sending.locked():
                    async with self._sending:
                        await self._send(send, _HEARTBEAT)
                elif self._sending.locked():
                    self._sent_at_s = loop.time()
            else:
                if message["type"] == "http.disconnect":
                    stream.cancel()
                    return


class _Stalled(Exception):
    """The viewer takes nothing."""


def seat_owner(request: Request) -> str:
    """Who is bounded: the tenant where keys are asked for, and otherwise the address."""
    caller: Caller = request.scope["caller"]
    if caller.authenticated:
        return f"tenant {caller.tenant}"
    return request.client.host if request.client else ""


async def seated(
    request: Request, gateway: InGateway, media: Annotated[Media, Depends(media_of)]
) -> AsyncGenerator[None, None]:
    """A seat for the stream until its last byte is sent or its viewer has left; raises TooManyStreams."""
    if media != "text/event-stream":
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


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What a stream shows after its head: events above `start` under `live`, those that `filter` takes.

    `stored` are the patterns under which it reads the log, as narrow or narrower. `ends` is asked once for each event,
    in order, whether it is the last; nothing follows the head when it is `over` already. `deliberation_id` is None on a
    stream of several.
    """

    epoch: str
    start: int
    live: Patterns
    stored: Patterns
    filter: Filter
    ends: Callable[[EventFrame], bool]
    deliberation_id: str | None
    over: bool = False


def _farewell(showing: StreamPlan, gateway: Gateway, reason: Reason) -> bytes:
    """Tells the viewer to come back with its last id; spread out in time, so that not all come at once."""
    said = StreamReconnect(deliberation_id=showing.deliberation_id, ts=gateway["clock"].now(), reason=reason)
    return f"retry: {RETRY_MS // 2 + random.randrange(RETRY_MS)}\n".encode() + control_frame(said.type, dump(said))


async def stream_events(showing: StreamPlan, head: list[bytes], gateway: Gateway) -> AsyncGenerator[bytes, None]:
    """The stream's bytes, whole frames in each piece: the head, what is stored, then what is stored from now on.

    The head is emptied, so that no viewer holds on to a snapshot that it has been sent.
    """
    feed, settings, loop = gateway["feed"], gateway["settings"], asyncio.get_running_loop()
    ends_at_s = loop.time() + settings.stream_age_max_s * random.uniform(0.9, 1.0)
    slow_s = settings.stream_send_timeout_s / 2
    passage, move_at_s = FrameBatcher(showing.filter, showing.epoch), 0.0
    for piece in gathered(head):
        yield piece
    head.clear()
    piece = b""
    if showing.over:
        return
    async with feed.watch(showing.live) as watch:
        viewer = feed.viewer(watch, showing.start, showing.stored)
        while not watch.foreign:
            if watch.epoch not in ("", showing.epoch):
                watch.doubt()  # it outlived its log without being told, or this stream did
                break
            if feed.draining.is_set():
                yield passage.moved() + _farewell(showing, gateway, "draining")
                return
            if loop.time() >= ends_at_s:
                yield passage.moved() + _farewell(showing, gateway, "max_age")
                return
            frames = await viewer.batch(ends_at_s if passage.behind is None else min(ends_at_s, move_at_s))
            end = next((place for place, frame in enumerate(frames) if showing.ends(frame)), None)
            for chunk in passage.chunks(frames if end is None else frames[: end + 1]):
                began_s = loop.time()
                yield chunk
                if loop.time() - began_s > slow_s:
                    yield _farewell(showing, gateway, "slow_consumer")
                    return
            if end is not None:
                yield passage.moved()
                return
            if passage.behind is not None and loop.time() >= move_at_s:
                yield passage.moved()
                move_at_s = loop.time() + MOVE_S
        gateway["looks"].doubt()
