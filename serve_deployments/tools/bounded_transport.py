"""Bounds what a tool server sends: the bytes and values of a message, and the sums of some seconds.

The package reads lines and responses without a bound, and handles any number of messages. It gets the very bytes that
are checked here: whole events, whose lines end alike.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import httpx2

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
MESSAGE_VALUES_MAX = 20_000
"""The objects, lists and single values of one message."""
SENT_WITHIN_S = 5.0
SENT_MAX = {"messages": 500, "values": 400_000, "bytes": 64 * 1024 * 1024, "pieces of responses": 10_000}
"""The most that a server sends within SENT_WITHIN_S; a line or an event without a message counts as one."""
TOO_LONG = f"the server sent more than {MESSAGE_BYTES_MAX:,} bytes at once"
TOO_MANY_VALUES = f"the server sent more than {MESSAGE_VALUES_MAX:,} values in one message"
COOKIES_BYTES_MAX = 8_192
_COUNTED_VALUES_MIN = 1_000
_PIECES_AT_ONCE = 64
_REFUSED_KEY = (401, 403)
_NO_SESSION = (400, 404)
_SESSION = "mcp-session-id"
_EVENTS = "text/event-stream"
_GIVEN_UP = "the use was given up"


class SentBound:
    """The bound on what a server sends within a time, over all of its connections."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._sent = Counter[str]()

    def exceeded_by(self, amount: int, what: str) -> str:
        """Count what was sent; returns the bound that it exceeds, empty if none."""
        now_s = time.monotonic()
        if now_s - self._since_s > SENT_WITHIN_S:
            self._since_s = now_s
            self._sent.clear()
        self._sent[what] += amount
        if self._sent[what] <= SENT_MAX[what]:
            return ""
        return f"the server sent more than {SENT_MAX[what]:,} {what} within {SENT_WITHIN_S:.0f} s"

    def exceeded_by_message(self, message: bytes | bytearray) -> str:
        """Count a message before its validation; returns the bound that it exceeds, empty if none."""
        if len(message) > MESSAGE_BYTES_MAX:
            return TOO_LONG
        values = number_of_values(message)
        if values > MESSAGE_VALUES_MAX:
            return TOO_MANY_VALUES
        return self.exceeded_by(1, "messages") or self.exceeded_by(values, "values")


@dataclass(slots=True)
class Wire:
    """The state of a connection, or of one use over HTTP, that the package does not report.

    `exceeded` tells what the server has sent too much of. `status` is that of a response that refused a request, which
    belonged to a session where `in_session`. `ended` tells how a command ended. `end` ends a connection.
    """

    exceeded: str = ""
    status: int = 0
    in_session: bool = False
    ended: str = ""
    sent: SentBound = field(default_factory=SentBound)
    end: Callable[[], None] = lambda: None
    given_up: bool = False
    _waits: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])

    def exceed(self, bound: str, use: "Wire | None" = None) -> None:
        """End this connection, over which a server has sent too much, in answer to a use or without any."""
        self.exceeded = bound
        if use is not None:
            use.exceeded = bound
        self.end()

    def give_up(self) -> None:
        """Read no further response of this use: the package would, for as long as its server sends."""
        self.given_up = True
        for wait in self._waits:
            wait.cancel()

    @contextmanager
    def waiting(self) -> Generator[anyio.CancelScope]:
        """A scope that is cancelled once the use is given up. What begins after that is the notice of it."""
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                yield scope
            finally:
                self._waits.discard(scope)

    @property
    def lost(self) -> bool:
        """Whether only a new connection helps, because the session or the key is not valid any more."""
        return self.status in _REFUSED_KEY or (self.in_session and self.status in _NO_SESSION)


current_use: ContextVar[Wire] = ContextVar("current_use")


def number_of_values(message: bytes | bytearray) -> int:
    """The values of a message, also those of repeated keys; above MESSAGE_VALUES_MAX, or of no JSON, an upper bound.

    Counting takes a third of the time that validation takes.
    """
    # Each value but the first follows one of these characters, or the colon after a key that does.
    most = 1 + sum(map(message.count, (b",", b"[", b"{")))
    if most <= _COUNTED_VALUES_MIN:
        return most
    members = 0

    def values_of(pairs: list[tuple[str, Any]]) -> list[Any]:
        nonlocal members
        members += len(pairs)
        if members > MESSAGE_VALUES_MAX:
            raise ValueError
        return [value for _, value in pairs]

    try:
        pending: list[Any] = [json.loads(message, object_pairs_hook=values_of)]
    except (ValueError, RecursionError):
        return most
    values = 0
    while pending and values <= MESSAGE_VALUES_MAX:
        value = pending.pop()
        values += 1
        if isinstance(value, list):
            pending.extend(cast("list[Any]", value))
    return values


def _data_of(event: bytes | bytearray) -> bytes:
    return b"\n".join(line.removeprefix(b"data:") for line in event.split(b"\n") if line.startswith(b"data:"))


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response; of a stream of events the whole events, each with the bounds."""

    def __init__(self, inner: httpx2.AsyncByteStream, connection: Wire, use: Wire, *, events: bool) -> None:
        self._inner = inner
        self._connection = connection
        self._use = use
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        unread = bytearray()
        async for chunk in self._pieces():
            # An end may come in two pieces.
            searched = max(0, len(unread) - 1)
            unread += chunk
            if self._events and (end := unread.rfind(b"\n\n", searched)) >= 0:
                events = bytes(unread[: end + 2])
                del unread[: end + 2]
                for event in events.removesuffix(b"\n\n").split(b"\n\n"):
                    self._check(_data_of(event))
                yield events
            if len(unread) > MESSAGE_BYTES_MAX:
                self._refuse(TOO_LONG)
        # An event without its end is none.
        if not self._events:
            self._check(unread)
            yield bytes(unread)

    async def _pieces(self) -> AsyncIterator[bytes]:
        """The body in pieces; lines of events end with a line feed alone."""
        inner, number, after_return, piece = aiter(self._inner), 0, False, None
        while True:
            with self._use.waiting():
                piece = await anext(inner, None)
            if self._use.given_up:
                raise httpx2.StreamError(_GIVEN_UP)
            if piece is None:
                return
            number += 1
            self._refuse(self._connection.sent.exceeded_by(1, "pieces of responses"))
            self._refuse(self._connection.sent.exceeded_by(len(piece), "bytes"))
            if number % _PIECES_AT_ONCE == 0:
                # Many may have come at once.
                await asyncio.sleep(0)
            if self._events:
                whole = piece[1:] if after_return and piece.startswith(b"\n") else piece
                after_return = piece.endswith(b"\r") or (after_return and not piece)
                piece = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield piece

    def _check(self, message: bytes | bytearray) -> None:
        self._refuse(self._connection.sent.exceeded_by_message(message))

    def _refuse(self, exceeded: str) -> None:
        if exceeded:
            self._connection.exceed(exceeded, self._use)
            raise httpx2.ReadError(exceeded)

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Responses of a bounded size, none of them encoded: a few bytes may decode to any number.

    A use that is given up waits for none of them. Cookies are kept up to a bound.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        use = current_use.get(self._wire)
        if request.method == "GET":
            # The package asks again as often as the server ends its stream.
            if use.given_up:
                raise httpx2.ReadError(_GIVEN_UP)
            if exceeded := self._wire.sent.exceeded_by(1, "messages"):
                self._wire.exceed(exceeded, use)
                raise httpx2.ReadError(exceeded)
        with use.waiting() as wait:
            response = await super().handle_async_request(request)
        if wait.cancelled_caught:
            return httpx2.Response(httpx2.codes.REQUEST_TIMEOUT, request=request)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError("an encoded response, although none was asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if request.method == "POST":
            use.status = response.status_code if response.status_code >= 400 else 0
            use.in_session = _SESSION in request.headers
        cookies = [request.headers.get("Cookie", ""), *response.headers.get_list("Set-Cookie")]
        if sum(map(len, cookies)) > COOKIES_BYTES_MAX:
            del response.headers["Set-Cookie"]
        events = response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == _EVENTS
        if events:
            # Another charset than that of JSON would make other text of the bytes that are checked.
            response.headers["Content-Type"] = _EVENTS
        response.stream = _BoundedStream(response.stream, self._wire, use, events=events)
        return response
