"""The HTTP response of an event stream: whole frames, heartbeats, and a bound on what a slow viewer may hold.

A stream ends with the terminal event, with `stream.reconnect`, or when its log was replaced: the viewer's next cursor
is then answered with `stream.gap`. When the viewer leaves or stalls, only its connection slot is released.

sse-starlette's response is not used: it runs several tasks for each viewer, and its close waits for a reader that may
never read.
"""

import asyncio
import socket
import sys
from asyncio import Transport
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext

import anyio
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

BUFFER_BYTES = 32_768
UNSENT_BYTES = 16_384
# The name of the ASGI extension that holds the transport of a request's connection.
EXTENSION = "deliberate.connection"
PIECE_BYTES = 16_384
NO_BUFFERING = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
COMMENT = b": \n\n"

log = structlog.get_logger(__name__)


def end_when_stalled(connection: Transport, stalled_s: float, unsent_bytes: int | None = None) -> None:
    """Have the system end a connection when its peer takes no byte for `stalled_s`: TCP_USER_TIMEOUT.

    TCP_NOTSENT_LOWAT bounds what the system takes beyond what it can send, at no cost for a fast reader.
    """
    opened = connection.get_extra_info("socket")
    if sys.platform == "linux" and opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_s * 1_000))
        if unsent_bytes is not None:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)


def limit_unsent(connection: Transport, stalled_s: float) -> None:
    """Bound the unsent bytes of a connection, unless the viewer has left already; it ends when they stay unsent."""
    if not connection.is_closing():
        connection.set_write_buffer_limits(high=BUFFER_BYTES)
        end_when_stalled(connection, stalled_s, UNSENT_BYTES)


class EventStreamResponse(Response):
    """An event stream with heartbeats after `heartbeat_s` of silence; aborted when no byte is taken for `stalled_s`.

    However the stream ends, it leaves `held`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        content: AsyncGenerator[bytes, None],
        *,
        heartbeat_s: float,
        stalled_s: float,
        headers: Mapping[str, str],
        heartbeat: bytes = COMMENT,
        held: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**NO_BUFFERING, **headers})
        self._content = content
        self._heartbeat_s = heartbeat_s
        self._frame = heartbeat
        self._held = held or nullcontext()
        self._stalled_s = stalled_s
        # Held for a whole chunk, so that no comment splits a frame.
        self._sending = asyncio.Lock()
        self._sent_at_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Transport | None = scope.get("extensions", {}).get(EXTENSION)  # None under another server
        if connection is not None:
            limit_unsent(connection, self._stalled_s)
        try:
            async with self._held, anyio.create_task_group() as group, aclosing(self._content):
                group.start_soon(self._heartbeat, receive, send, group.cancel_scope)
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

    async def _heartbeat(self, receive: Receive, send: Send, stream: anyio.CancelScope) -> None:
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
                        await self._send(send, self._frame)
                elif self._sending.locked():
                    self._sent_at_s = loop.time()
            else:
                if message["type"] == "http.disconnect":
                    stream.cancel()
                    return


class _Stalled(Exception):
    """The viewer took no byte for too long."""
