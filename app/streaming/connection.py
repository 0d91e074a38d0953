"""Access to the transport of a request's connection, an ASGI extension, and bounds for a viewer that reads nothing.

Without bounds the operating system holds megabytes for such a viewer, and the server never drops its closed connection.
"""

import re
import socket
import sys
from asyncio import Transport
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BUFFER_BYTES = 32_768
UNSENT_BYTES = 16_384
_ABSOLUTE = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_EXTENSION = "deliberate.connection"


def adopt_target_host(target: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Replace Host by the host of a target in absolute form, which overrules it (RFC 9112, 3.2.2)."""
    found = _ABSOLUTE.match(target)
    if found is not None:
        headers[:] = [(b"host", found[1]), *((name, value) for name, value in headers if name != b"host")]


class StreamingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with the transport in the scope of each request, and the host that its target names."""

    def on_message_begin(self) -> None:
        """Called by the parser when a request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: cast("dict[object, object]", self.transport)}

    def on_headers_complete(self) -> None:
        """Called by the parser at the end of a head."""
        adopt_target_host(self.url, self.headers)
        super().on_headers_complete()


def connection_of(scope: Scope) -> Transport | None:
    """The transport of a request's connection; None under another server."""
    return scope.get("extensions", {}).get(_EXTENSION)


def limit_unsent(connection: Transport, stalled_s: float) -> None:
    """Bound the unsent bytes of a connection, and have the system end it when they stay unsent for `stalled_s`.

    TCP_NOTSENT_LOWAT bounds what the system takes beyond what it can send, at no cost for a fast reader.
    TCP_USER_TIMEOUT ends a connection whose bytes stay unacknowledged or unread for that long. That covers peers that
    vanished, and those with too few unsent bytes for the server to notice.
    """
    connection.set_write_buffer_limits(high=BUFFER_BYTES)
    opened = connection.get_extra_info("socket")
    if sys.platform == "linux" and opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_s * 1_000))
