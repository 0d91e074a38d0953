"""Bounds of connections, before a request exists: the size and duration of a head, and how many are open.

A head that another parser may read differently is refused, so that no proxy's view of a connection differs from ours.
"""

import asyncio
import re
import resource
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal, cast

from starlette.requests import Request
from uvicorn.middleware.proxy_headers import _TrustedHosts  # pyright: ignore[reportPrivateUsage]
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.api.problems import PROBLEM_DOCUMENTS, RETRY_AFTER_S, BodyTooLarge, answer_to
from app.api.refusals import ConnectionClosed
from app.api.request_body import BODY_BYTES_MAX, BODY_TIMEOUT_S
from app.api.upload import UPLOAD_TIMEOUT_S
from app.streaming.event_stream import EXTENSION, end_when_stalled

HEAD_BYTES_MAX = 65_536
HEADERS_MAX = 100
TARGET_BYTES_MAX = 8_192
HEAD_TIMEOUT_S = 10.0
# A body as it is sent, with the frames of its chunks: one byte in each takes six. The parser itself bounds neither the
# extensions of chunks nor trailers, and copies all of a trailer with each of its pieces.
SENT_BODY_BYTES_MAX = 2 * BODY_BYTES_MAX
# A route that waits for its body answers at BODY_TIMEOUT_S; this closes the connection of a body that no route reads.
BODY_CLOSE_S = BODY_TIMEOUT_S + 2.0
# The same for the routes that take a file, which read with bounds of their own.
UPLOAD_PATHS = (b"/files", b"/v1/files")
SENT_UPLOAD_BYTES_MAX = 2 << 30
UPLOAD_CLOSE_S = UPLOAD_TIMEOUT_S + 2.0
# An answer that its client does not read would else stay with its connection, as the closing of both waits for it.
UNREAD_S = 30.0
# Descriptors that the process needs beside its clients' connections.
RESERVED_DESCRIPTORS = 256
# A refused client may still be sending: what it sends is discarded for this long, so that it can read the answer.
LINGER_S = 2.0
LINGER_BYTES_MAX = 131_072
_ABSOLUTE_TARGET = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)


class HeadTooLarge(ConnectionClosed):
    code = "head_too_large"


class TargetTooLong(ConnectionClosed):
    code = "target_too_long"


class HeadTimeout(ConnectionClosed):
    code = "head_timeout"
    retryable = True


class MalformedRequest(ConnectionClosed):
    """The bytes are no HTTP/1.1 request, or one that another parser may read differently."""

    code = "malformed_request"


class TooManyConnections(ConnectionClosed):
    """The limit of open connections is reached, and each of them carries a request."""

    code = "too_many_connections"
    retryable = True
    headers = MappingProxyType({**ConnectionClosed.headers, "Retry-After": str(RETRY_AFTER_S)})


def available_connections(wanted: int) -> int:
    """`wanted`, or what the descriptors of this process allow; raises their soft limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - RESERVED_DESCRIPTORS))


def ambiguity(version: str, headers: Collection[tuple[bytes, bytes]]) -> str | None:
    """The reason why a proxy may read a head differently (RFC 9112, sections 3.2 and 6.1); None without one."""
    if version not in ("1.0", "1.1"):
        return f"HTTP/{version} is not supported here."
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return f"The head has {hosts} Host headers instead of one."
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings and (codings != [b"chunked"] or version == "1.0"):
        return "The only transfer coding is chunked, once, and not in HTTP/1.0."
    return None


class ConnectionTable:
    """The open connections of the process, bounded in all and per client address.

    At a bound a new connection replaces the oldest idle one, and is refused when all of them carry a request. `proxies`
    may open any number, because many clients share their address. Behind a proxy, a client is the last address in
    X-Forwarded-For that is no proxy; its open requests are bounded. With `*` they are not, since the header may lie.
    """

    def __init__(self, connections_max: int, per_client_max: int, proxies: Collection[str] = ()) -> None:
        self.connections_max = connections_max
        self.per_client_max = per_client_max
        self.refused: Counter[str] = Counter()
        # Of uvicorn, so that the client is the one that requests report.
        self._proxies = _TrustedHosts(list(proxies))
        self._addresses: dict[BoundedProtocol, str] = {}
        self._opened: Counter[str] = Counter()
        # The client of each connection that carries a request, and how many carry one of each client.
        self._clients: dict[BoundedProtocol, str] = {}
        self._serving: Counter[str] = Counter()
        # Per address, the oldest first; under "" those of all addresses.
        self._idle: defaultdict[str, dict[BoundedProtocol, None]] = defaultdict(dict)

    @property
    def opened(self) -> int:
        return len(self._addresses)

    @property
    def idle(self) -> int:
        return len(self._idle[""])

    def enter(self, connection: "BoundedProtocol", address: str) -> bool:
        """Count a new connection, which is idle; False where it must be refused."""
        admitted = True
        if self._opened[address] >= self.per_client_max and address not in self._proxies:
            admitted = self._evict(address)
        elif self.opened >= self.connections_max:
            admitted = self._evict("")
        self._addresses[connection] = address
        self._opened[address] += 1
        if admitted:
            self.rest(connection)
        return admitted

    def leave(self, connection: "BoundedProtocol") -> None:
        address = self._addresses.get(connection)
        if address is not None:
            self._end_request(connection)
            self._end_rest(connection)
            del self._addresses[connection]
            self._opened[address] -= 1
            if self._opened[address] == 0:
                del self._opened[address]
                self._idle.pop(address, None)

    def rest(self, connection: "BoundedProtocol") -> None:
        self._end_request(connection)
        for address in ("", self._addresses.get(connection)):
            if address is not None:
                self._idle[address][connection] = None

    def begin_request(self, connection: "BoundedProtocol", headers: Iterable[tuple[bytes, bytes]] = ()) -> bool:
        """Note that a connection carries a request; False, and it stays idle, where its client has too many."""
        address = self._addresses.get(connection)
        if address is None:
            return True
        client = self._client(address, headers)
        if self._serving[client] >= self.per_client_max and client not in self._proxies:
            return False
        self._end_request(connection)
        self._end_rest(connection)
        self._clients[connection] = client
        self._serving[client] += 1
        return True

    def _client(self, address: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        if address not in self._proxies:
            return address
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        return self._proxies.get_trusted_client_address(forwarded)[0] or address

    def _end_request(self, connection: "BoundedProtocol") -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            self._serving[client] -= 1
            if self._serving[client] == 0:
                del self._serving[client]

    def _end_rest(self, connection: "BoundedProtocol") -> None:
        for address in ("", self._addresses.get(connection)):
            if address is not None:
                self._idle[address].pop(connection, None)

    def _evict(self, address: str) -> bool:
        oldest = next(iter(self._idle[address]), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.transport.abort()
        return True


def _adopt_target_host(target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    match = _ABSOLUTE_TARGET.match(target)
    if match is not None:
        headers[:] = [(b"host", match[1]), *((name, value) for name, value in headers if name != b"host")]


class BoundedProtocol(HttpToolsProtocol):
    def __init__(self, table: ConnectionTable, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        super().__init__(*args, **kwargs)
        self._table = table
        self._part: Literal["idle", "head", "body"] = "idle"
        self._uploads = False
        # Of the head or of the body, whichever is being received.
        self._part_bytes = 0
        self._refusal: ConnectionClosed | None = None
        self._discarded_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        end_when_stalled(transport, UNREAD_S)
        if self._table.enter(self, self.client[0] if self.client else ""):
            self._start_timer()
        else:
            self._refuse(TooManyConnections(f"{self._table.opened} connections are open, all of them in use."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._table.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and self._refusal is None:
            size = (self._body_bytes_max if self._part == "body" else HEAD_BYTES_MAX) - self._part_bytes
            piece, data = data[:size], data[size:]
            self._part_bytes += len(piece)
            super().data_received(piece)
            if self._refusal is None:
                self._check_part()
        if self._refusal is not None:
            self._discard(len(data))
        elif self._timer is None and self._part == "body":
            close_s = UPLOAD_CLOSE_S if self._uploads else BODY_CLOSE_S
            self._timer = self.loop.call_later(close_s, self.transport.close)
        elif self._timer is None and (self._part == "head" or self._part_bytes > 0):
            self._start_timer()

    @property
    def _body_bytes_max(self) -> int:
        return SENT_UPLOAD_BYTES_MAX if self._uploads else SENT_BODY_BYTES_MAX

    def _check_part(self) -> None:
        if self._part == "body":
            if self._part_bytes >= self._body_bytes_max:
                self._refuse(BodyTooLarge(f"The body takes more than {self._body_bytes_max} bytes as it is sent."))
        elif self._part_bytes >= HEAD_BYTES_MAX:
            self._refuse(HeadTooLarge(f"The head has more than {HEAD_BYTES_MAX} bytes."))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part = "head"
        self.scope["extensions"] = {EXTENSION: cast("dict[object, object]", self.transport)}

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > TARGET_BYTES_MAX:
            self._abandon(TargetTooLong(f"The request target has more than {TARGET_BYTES_MAX} bytes."))

    def on_header(self, name: bytes, value: bytes) -> None:
        # The blanks around a value are no part of it (RFC 9110, section 5.5); the parser leaves the blanks after it.
        super().on_header(name, value.strip(b" \t"))
        if len(self.headers) > HEADERS_MAX:
            self._abandon(HeadTooLarge(f"The head has more than {HEADERS_MAX} headers."))

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        fault = ambiguity(self.parser.get_http_version(), self.headers)
        if fault is not None:
            self._abandon(MalformedRequest(fault))
        if not self._table.begin_request(self, self.headers):
            self._abandon(TooManyConnections("Too many requests of this client are under way."))
        _adopt_target_host(self.url, self.headers)
        super().on_headers_complete()
        self._part, self._part_bytes = "body", 0
        self._uploads = self.url.partition(b"?")[0] in UPLOAD_PATHS
        self._stop_timer()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part, self._part_bytes = "idle", 0
        self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._responding():
            self._table.rest(self)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that the parser refused, or that a bound made it abandon."""
        self._refuse(self._refusal or MalformedRequest("The bytes are no HTTP/1.1 request."))

    def _abandon(self, refusal: ConnectionClosed) -> None:
        """Stop the parser; uvicorn then calls `send_400_response`."""
        self._refusal = refusal
        raise refusal

    def _responding(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not cycle.response_complete

    def _awaits_body(self) -> bool:
        return self._part == "body" and not self.pipeline and not self.cycle.response_started

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_late(self) -> None:
        if self._responding():
            self._start_timer()
        elif self._part == "head":
            self._refuse(HeadTimeout(f"The head did not arrive within {HEAD_TIMEOUT_S:g} seconds."))
        else:
            self.transport.close()

    def _refuse(self, refusal: ConnectionClosed) -> None:
        """Answer and close, once for a request; a response under way is finished instead.

        Unread bytes would make the system drop the answer.
        """
        self._refusal = refusal
        self._stop_timer()
        self._table.refused[refusal.code] += 1
        if self._responding() and not self._awaits_body():
            self.cycle.keep_alive = False
            return
        if self._responding():
            # The route waits for a body that will not end: it learns that, and what it answers is dropped.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._part != "body" or not self.cycle.response_complete:
            self.transport.write(_answer(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > LINGER_BYTES_MAX:
            self.transport.abort()


def _answer(refusal: ConnectionClosed) -> bytes:
    request = Request({"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": []})
    response = PROBLEM_DOCUMENTS.render(request, answer_to(refusal, PROBLEM_DOCUMENTS, ""))
    head = [b"HTTP/1.1 %d %s" % (response.status_code, HTTPStatus(response.status_code).phrase.encode())]
    head += [b"%s: %s" % header for header in response.raw_headers]
    return b"\r\n".join([*head, b"", bytes(response.body)])
