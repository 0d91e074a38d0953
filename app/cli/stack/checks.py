"""Checks of children over sockets. A status line alone is a response; an HTTP client would wait for the rest."""

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

from app.cli.stack.supervisor import ChildHealth

_TIMEOUT_S = 3.0
_Read = Callable[[asyncio.StreamReader], Awaitable[bytes | None]]


async def _reply(host: str, port: int, request: bytes, read: _Read, *, tls: bool = False) -> bytes | None:
    """Returns what `read` makes of the response to `request`; None without a response in time."""
    with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls or None)
            try:
                writer.write(request)
                return await read(reader)
            finally:
                writer.close()
    return None


async def status_of(url: str) -> int | None:
    """Returns the status of a GET of `url`, without following redirects; None without an HTTP response in time."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
    address = parts.hostname or "", parts.port or (443 if tls else 80)
    line = await _reply(*address, request, lambda reader: reader.readline(), tls=tls)
    status = re.match(rb"HTTP/\S+ (\d+)", line or b"")
    return int(status[1]) if status else None


async def nats_reply(url: str, subject: str) -> bytes | None:
    """Returns the reply of the NATS server at `url` to an empty request on `subject`; None without one in time."""
    parts = urlsplit(url)
    options = json.dumps({"user": parts.username, "pass": parts.password, "verbose": False})
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    request = f"CONNECT {options}\r\nSUB {inbox} 1\r\nPUB {subject} {inbox} 0\r\n\r\n".encode()

    async def message(reader: asyncio.StreamReader) -> bytes | None:
        while line := await reader.readline():
            if line.startswith(b"MSG "):
                return await reader.readexactly(int(line.split()[-1]))
        return None

    return await _reply(parts.hostname or "", parts.port or 4222, request, message)


async def responds_to_http(url: str) -> ChildHealth:
    return ChildHealth(answers=await status_of(url) is not None)


async def responds_to_bytes(host: str, ports: tuple[int, ...], request: bytes) -> ChildHealth:
    """Healthy if a connection to each of the ports returns at least one byte for `request` in time."""
    replies = (_reply(host, port, request, lambda reader: reader.read(1)) for port in ports)
    return ChildHealth(answers=all(await asyncio.gather(*replies)))
