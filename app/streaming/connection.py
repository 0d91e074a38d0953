"""The connection below a request, as the server hands it to the application: an extension of ASGI.

What a viewer that takes nothing may cost is bounded here. The server buffers what the operating system does not take,
and would keep a closed connection until that is sent, which is never; the system itself would hold megabytes for it.
"""

import socket
import sys
from asyncio import Transport
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

BUFFER_BYTES = 32_768
UNSENT_BYTES = 16_384
_EXTENSION = "deliberate.connection"


class StreamingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which tells each request of its connection."""

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: cast("dict[object, object]", self.transport)}


def connection_of(scope: Scope) -> Transport | None:
    """The transport of a request's connection; None under a server that does not tell."""
    return scope.get("extensions", {}).get(_EXTENSION)


def bounded(connection: Transport, stalled_s: float) -> None:
    """Let little wait for a peer that takes nothing, and the system end its connection after `stalled_s`.

    TCP_NOTSENT_LOWAT bounds what the system takes beyond what it can send, and costs a fast reader nothing.
    TCP_USER_TIMEOUT ends a connection with bytes that are not acknowledged or not taken for that long: also of peers
    that are gone without a word, and of those for whom too little waits for the server to notice.
    """
    connection.set_write_buffer_limits(high=BUFFER_BYTES)
    opened = connection.get_extra_info("socket")
    if sys.platform == "linux" and opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_s * 1_000))
