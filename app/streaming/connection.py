"""Access to the transport of a request's connection, an ASGI extension, and bounds for a viewer that reads nothing.

Without bounds the operating system holds megabytes for such a viewer, and the server never drops its closed connection.
"""

import socket
import sys
from asyncio import Transport

from starlette.types import Scope

BUFFER_BYTES = 32_768
UNSENT_BYTES = 16_384
EXTENSION = "deliberate.connection"


def connection_of(scope: Scope) -> Transport | None:
    """The transport of a request's connection; None under another server."""
    return scope.get("extensions", {}).get(EXTENSION)


def limit_unsent(connection: Transport, stalled_s: float) -> None:
    """Bound the unsent bytes of a connection, and have the system end it when they stay unsent for `stalled_s`.

    TCP_NOTSENT_LOWAT bounds what the system takes beyond what it can send, at no cost for a fast reader.
    TCP_USER_TIMEOUT ends a connection when its bytes stay unacknowledged or unread for that long. That covers peers
    that vanished, and those with too few unsent bytes for the server to notice.
    """
    connection.set_write_buffer_limits(high=BUFFER_BYTES)
    opened = connection.get_extra_info("socket")
    if sys.platform == "linux" and opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stalled_s * 1_000))
