"""How a child is recognised as ready, and as living: by what it writes, by its greeting, or by an HTTP answer.

The HTTP is written by hand because one status line is all that is read; a client library would cost the start 0.2 s.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from app.cli.stack.restarts import Sign, Silent, Well
from app.cli.stack.supervisor import Life

_ANSWER_WITHIN_S = 2.0
_SIGN_WITHIN_S = 3.0
_ANSWER_BYTES_MAX = 65_536
_UNREACHABLE = (OSError, TimeoutError, ValueError)

Probe = Callable[[Life], Awaitable[bool]]
LifeProbe = Callable[[Life], Awaitable[Sign]]


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
            async with _connected(host, port, b"", tls=False, within_s=_ANSWER_WITHIN_S) as reader:
                return (await reader.readline()).startswith(greeting)
        return False

    return probe


def answers(url: str) -> Probe:
    """Ready once a GET of `url` is answered with 200."""

    async def probe(life: Life) -> bool:
        return await status_of(url) == 200

    return probe


def serves(url: str) -> LifeProbe:
    """Well as long as a GET of `url` is answered in HTTP in time, whatever its status says; else Silent."""

    async def probe(life: Life) -> Sign:
        return Silent() if await status_of(url, within_s=_SIGN_WITHIN_S) is None else Well()

    return probe


def replies(host: str, port: int, request: bytes) -> LifeProbe:
    """Well as long as a connection gets at least one byte for `request` in time; else Silent."""

    async def probe(life: Life) -> Sign:
        with suppress(*_UNREACHABLE):
            async with _connected(host, port, request, tls=False, within_s=_SIGN_WITHIN_S) as reader:
                return Well() if await reader.read(1) else Silent()
        return Silent()

    return probe


def all_live(*probes: LifeProbe) -> LifeProbe:
    """The first sign, in the order of the probes, that is not Well; Well when all are."""

    async def probe(life: Life) -> Sign:
        signs = await asyncio.gather(*(one(life) for one in probes))
        return next((sign for sign in signs if not isinstance(sign, Well)), Well())

    return probe


async def status_of(url: str, *, within_s: float = _ANSWER_WITHIN_S) -> int | None:
    """Status of a GET of `url`, without following anything; None when nobody answers in HTTP within that time."""
    with suppress(*_UNREACHABLE):
        async with _got(url, within_s) as (status, _):
            return status
    return None


async def answer_of(url: str, *, within_s: float = _SIGN_WITHIN_S) -> tuple[int, bytes] | None:
    """Status and body (its first 64 KiB) of a GET of `url`; None when nobody answers in HTTP within that time."""
    with suppress(*_UNREACHABLE):
        async with _got(url, within_s) as (status, reader):
            while await reader.readline() not in (b"\r\n", b"\n", b""):
                continue
            body = b""
            while len(body) < _ANSWER_BYTES_MAX and (piece := await reader.read(_ANSWER_BYTES_MAX)):
                body += piece
            return status, body
    return None


@asynccontextmanager
async def _got(url: str, within_s: float) -> AsyncGenerator[tuple[int, asyncio.StreamReader]]:
    """The status of a GET, and what follows the status line; raises one of _UNREACHABLE when it is no HTTP."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
    port = parts.port or (443 if tls else 80)
    async with _connected(parts.hostname or "", port, request, tls=tls, within_s=within_s) as reader:
        version, status, *_ = (await reader.readline()).split(maxsplit=2)
        if not version.startswith(b"HTTP/"):
            raise ValueError("no HTTP")
        yield int(status), reader


@asynccontextmanager
async def _connected(
    host: str, port: int, request: bytes, *, tls: bool, within_s: float
) -> AsyncGenerator[asyncio.StreamReader]:
    """What a server sends after `request`; the body, too, must be done within that time."""
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls or None)
        try:
            writer.write(request)
            yield reader
        finally:
            writer.close()
