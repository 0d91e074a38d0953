"""Checks of children over sockets. A status line alone is a response; an HTTP client would wait for the rest."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from app.cli.stack.supervisor import ChildHealth

_TIMEOUT_S = 3.0
_UNREACHABLE = (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError)


@asynccontextmanager
async def _connected(
    host: str, port: int, request: bytes, *, tls: bool = False
) -> AsyncGenerator[asyncio.StreamReader]:
    """A connection's reader after `request` was sent; the timeout includes the body of the `async with`."""
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls or None)
        try:
            writer.write(request)
            yield reader
        finally:
            writer.close()


async def status_of(url: str) -> int | None:
    """Returns the status of a GET of `url`, without following redirects; None without an HTTP response in time."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
    with suppress(*_UNREACHABLE):
        port = parts.port or (443 if tls else 80)
        async with _connected(parts.hostname or "", port, request, tls=tls) as reader:
            version, status, *_ = (await reader.readline()).split(maxsplit=2)
            return int(status) if version.startswith(b"HTTP/") else None
    return None


async def nats_reply(url: str, subject: str) -> bytes | None:
    """Returns the reply of the NATS server at `url` to an empty request on `subject`; None without one in time."""
    parts = urlsplit(url)
    options = json.dumps({"user": parts.username, "pass": parts.password, "verbose": False})
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    request = f"CONNECT {options}\r\nSUB {inbox} 1\r\nPUB {subject} {inbox} 0\r\n\r\n".encode()
    with suppress(*_UNREACHABLE):
        async with _connected(parts.hostname or "", parts.port or 4222, request) as reader:
            while line := await reader.readline():
                if line.startswith(b"MSG "):
                    return await reader.readexactly(int(line.split()[-1]))
    return None


def responds_to_http(url: str) -> Callable[[], Awaitable[ChildHealth]]:
    """Healthy while a GET of `url` returns any HTTP status in time; ready once that status is 200."""

    async def check() -> ChildHealth:
        status = await status_of(url)
        return ChildHealth(answers=status is not None, is_ready=status == 200)

    return check


def responds_to_bytes(host: str, ports: tuple[int, ...], request: bytes) -> Callable[[], Awaitable[ChildHealth]]:
    """Healthy while a connection to each of the ports returns at least one byte for `request` in time."""

    async def responds(port: int) -> bool:
        with suppress(*_UNREACHABLE):
            async with _connected(host, port, request) as reader:
                return await reader.read(1) != b""
        return False

    async def check() -> ChildHealth:
        return ChildHealth(answers=all(await asyncio.gather(*map(responds, ports))))

    return check
