"""How a child is recognised as ready: by what it writes, by its greeting, or by an HTTP answer.

The HTTP is written by hand because one status line is all that is read; a client library would cost the start 0.2 s.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from app.cli.supervisor import Life

_ANSWER_WITHIN_S = 2.0
_UNREACHABLE = (OSError, TimeoutError, ValueError)

Probe = Callable[[Life], Awaitable[bool]]


def writes(line: str) -> Probe:
    """Ready once the output of this life holds a line that matches the pattern `line` from its start to its end."""
    pattern = re.compile(line)

    async def probe(life: Life) -> bool:
        return any(pattern.fullmatch(written) for written in life.output().splitlines())

    return probe


def greets(host: str, port: int, greeting: bytes) -> Probe:
    """Ready once a connection is greeted with bytes that begin with `greeting`."""

    async def probe(life: Life) -> bool:
        with suppress(*_UNREACHABLE):
            return (await _exchange(host, port, b"", tls=False)).startswith(greeting)
        return False

    return probe


def answers(url: str) -> Probe:
    """Ready once a GET of `url` is answered with 200."""

    async def probe(life: Life) -> bool:
        return await status_of(url) == 200

    return probe


async def status_of(url: str) -> int | None:
    """Status of a GET of `url`, without following anything; None when nobody answers in HTTP within two seconds."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
    with suppress(*_UNREACHABLE):
        line = await _exchange(parts.hostname or "", parts.port or (443 if tls else 80), request, tls=tls)
        version, status, *_ = line.split(maxsplit=2)
        return int(status) if version.startswith(b"HTTP/") else None
    return None


async def _exchange(host: str, port: int, request: bytes, *, tls: bool) -> bytes:
    """First line that a server sends after `request`."""
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls or None)
        try:
            writer.write(request)
            return await reader.readline()
        finally:
            writer.close()
