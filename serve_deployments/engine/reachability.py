"""Whether an engine can be connected to: why a connection failed, and a check that sends no request."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

import aiohttp
import httpx
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]

from app.deliberation.engine_troubles import TroubleCause

# RFC 8305 recommends it, and aiohttp keeps it.
HAPPY_EYEBALLS_DELAY_S = 0.25
NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, aiohttp.ClientConnectorError)


@dataclass(frozen=True, slots=True)
class Outage:
    """An engine's time without a connection: `since_s` on the monotonic clock; `words` say why."""

    since: datetime
    since_s: float
    cause: TroubleCause
    words: str


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def cause_of(error: Exception) -> tuple[TroubleCause, str]:
    """The cause of a failed connection and its words, without the engine's URL, which may hold credentials."""
    # The deepest error is the system's own: HTTP clients wrap it, and call most of them time-outs.
    for inner in reversed(list(_chain(error))):
        match inner:
            case socket.gaierror():
                return "unresolved", f"its host name is not resolved: {inner.strerror}"
            case ssl.SSLError():
                return "tls", f"TLS failed: {inner.strerror}"
            case OSError(errno=int(number)):
                return "refused" if number == errno.ECONNREFUSED else "unconnected", os.strerror(number).lower()
            case TimeoutError():
                return "unconnected", "no connection in time"
            case _:
                continue
    return "unconnected", type(error).__name__


def never_connected(error: Exception) -> bool:
    """Whether no connection was made; the transport calls connections that the engine closed by the same names."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ClientError):
        return isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return isinstance(error, NOT_CONNECTED)


async def check_connection(url: str, within_s: float) -> None:
    """Open a TCP connection to the engine and close it; raises OSError, and ValueError for an invalid URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    async with asyncio.timeout(within_s):
        addresses = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        # The probe connects as aiohttp does: uvloop, on which Ray's replicas run, has no happy eyeballs (RFC 8305) of
        # its own.
        connected = await start_connection(addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S)
    connected.close()
