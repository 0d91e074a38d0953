"""One HTTP exchange over ASGI: read the body, wait without missing that the client leaves, answer in few steps."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Self

from serve_deployments.simulator.errors import Refusal

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_JSON_TYPE = (b"content-type", b"application/json")
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


class Exchange:
    """A context manager around one request; inside it `sleep_until` and its like raise ClientGone at once."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._watcher: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.query: bytes = scope["query_string"]
        self.arrived_s = time.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    async def body(self, bytes_max: int) -> bytes:
        """The request's body. Refusal (413) when it is longer than `bytes_max`."""
        pieces: list[bytes] = []
        size = 0
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                raise ClientGone
            piece: bytes = event.get("body", b"")
            size += len(piece)
            if size > bytes_max:
                # The rest is not read, so the connection cannot be used again.
                raise Refusal(413, f"The body exceeds {bytes_max} bytes.", headers={"connection": "close"})
            pieces.append(piece)
            if not event.get("more_body"):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def sleep_until(self, due_s: float) -> None:
        """Return when `time.monotonic()` has reached `due_s`; ClientGone as soon as the client leaves."""
        # uvloop's timers count in whole milliseconds from a clock that it truncates, so one may fire early: look again.
        while (delay_s := due_s - time.monotonic()) > 0.0:
            waiter = self._wait_for_client()
            timer = self._loop.call_later(math.ceil(delay_s * 1_000.0) / 1_000.0, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
            if self._gone:
                break
        if self._gone:
            raise ClientGone

    async def until(self, turn: "asyncio.Future[None]") -> None:
        """Return when `turn` is set; ClientGone as soon as the client leaves."""
        waiter = self._wait_for_client()
        try:
            await asyncio.wait((turn, waiter), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiter = None
        if self._gone:
            raise ClientGone

    async def until_gone(self) -> None:
        """Wait for the client to leave, then raise ClientGone."""
        await self._wait_for_client()
        raise ClientGone

    def _wait_for_client(self) -> "asyncio.Future[None]":
        if self._watcher is None:
            # A task of its own, cancelled on leaving: a time-out around receive() would cost 4 µs more per chunk.
            self._watcher = self._loop.create_task(self._watch())
        self._waiter = self._loop.create_future()
        if self._gone:
            _wake(self._waiter)
        return self._waiter

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._waiter is not None:
            _wake(self._waiter)

    async def answer(
        self, status: int, body: bytes, *, content_type: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole answer, JSON unless told otherwise."""
        await self._start_sized(status, len(body), content_type, headers or {})
        await self._send({"type": "http.response.body", "body": body})

    async def answer_half(self, body: bytes) -> None:
        """Promise `body` and send its first half only: the connection is then closed by the server."""
        await self._start_sized(200, len(body), None, {})
        await self.write(body[: len(body) // 2])

    async def _start_sized(
        self, status: int, size: int, content_type: bytes | None, headers: Mapping[str, str]
    ) -> None:
        head = [
            _JSON_TYPE if content_type is None else (b"content-type", content_type),
            (b"content-length", b"%d" % size),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": head})

    async def start_stream(self) -> None:
        """Send the head of an event stream."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
