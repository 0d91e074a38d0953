"""Readiness and health checks of children: by their output, their greeting, or an HTTP response.

A status line alone is a response; an HTTP client would wait for the rest.
"""

import asyncio
import json
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from app.cli.stack.restart_policy import HealthStatus, Healthy, Unresponsive
from app.cli.stack.supervisor import ChildRun, HealthCheck, ReadinessCheck

_RESPONSE_TIMEOUT_S = 2.0
_HEALTH_TIMEOUT_S = 3.0
_UNREACHABLE = (OSError, TimeoutError, ValueError)


def prints(line: str) -> ReadinessCheck:
    """Ready once the output of this run has a line that fully matches the pattern `line`."""
    pattern = re.compile(line)

    async def check(run: ChildRun) -> bool:
        return any(pattern.fullmatch(printed) for printed in run.output().splitlines())

    return check


def greets(host: str, port: int, greeting: bytes) -> ReadinessCheck:
    """Ready once the server's first line on a connection begins with `greeting`."""

    async def check(run: ChildRun) -> bool:
        with suppress(*_UNREACHABLE):
            async with _connected(host, port, b"", tls=False, within_s=_RESPONSE_TIMEOUT_S) as reader:
                return (await reader.readline()).startswith(greeting)
        return False

    return check


def returns_200(url: str) -> ReadinessCheck:
    """Ready once a GET of `url` returns 200."""

    async def check(run: ChildRun) -> bool:
        return await status_of(url) == 200

    return check


def responds_to_http(url: str) -> HealthCheck:
    """Healthy while a GET of `url` returns any HTTP status in time; else Unresponsive."""

    async def check() -> HealthStatus:
        return Unresponsive() if await status_of(url, within_s=_HEALTH_TIMEOUT_S) is None else Healthy()

    return check


def responds_to_bytes(host: str, port: int, request: bytes) -> HealthCheck:
    """Healthy while a connection returns at least one byte for `request` in time; else Unresponsive."""

    async def check() -> HealthStatus:
        with suppress(*_UNREACHABLE):
            async with _connected(host, port, request, tls=False, within_s=_HEALTH_TIMEOUT_S) as reader:
                return Healthy() if await reader.read(1) else Unresponsive()
        return Unresponsive()

    return check


def all_healthy(*checks: HealthCheck) -> HealthCheck:
    """The first status, in the order of the checks, that is not Healthy; Healthy if all are."""

    async def check() -> HealthStatus:
        found = await asyncio.gather(*(each() for each in checks))
        return next((status for status in found if not isinstance(status, Healthy)), Healthy())

    return check


async def nats_reply(url: str, subject: str) -> bytes | None:
    """The reply of the NATS server at `url` to an empty request on `subject`; None without one in time."""
    parts = urlsplit(url)
    options = json.dumps({"user": parts.username, "pass": parts.password, "verbose": False})
    inbox = f"_INBOX.{secrets.token_hex(8)}"
    request = f"CONNECT {options}\r\nSUB {inbox} 1\r\nPUB {subject} {inbox} 0\r\n\r\n".encode()
    with suppress(*_UNREACHABLE, asyncio.IncompleteReadError):
        port = parts.port or 4222
        async with _connected(parts.hostname or "", port, request, tls=False, within_s=_HEALTH_TIMEOUT_S) as reader:
            while line := await reader.readline():
                if line.startswith(b"MSG "):
                    return await reader.readexactly(int(line.split()[-1]))
    return None


async def status_of(url: str, *, within_s: float = _RESPONSE_TIMEOUT_S) -> int | None:
    """Status of a GET of `url`, without following redirects; None without an HTTP response in time."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    request = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode()
    with suppress(*_UNREACHABLE):
        port = parts.port or (443 if tls else 80)
        async with _connected(parts.hostname or "", port, request, tls=tls, within_s=within_s) as reader:
            version, status, *_ = (await reader.readline()).split(maxsplit=2)
            return int(status) if version.startswith(b"HTTP/") else None
    return None


@asynccontextmanager
async def _connected(
    host: str, port: int, request: bytes, *, tls: bool, within_s: float
) -> AsyncGenerator[asyncio.StreamReader]:
    """A connection's reader after `request` was sent; the timeout includes the body of the `async with`."""
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls or None)
        try:
            writer.write(request)
            yield reader
        finally:
            writer.close()
