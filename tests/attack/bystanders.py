"""An attacker's process, and how long bystanders wait for a gateway meanwhile."""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from tests.attack.attacker import MEGABYTE

REFUSED_WITHIN_BYTES = 8 * MEGABYTE
# Bounds for a noisy machine; the recorded figures are what the documents quote.
OTHERS_WAIT_MS = 500
POUR_S = 4
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def attacker(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.attack.attacker", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def line_of(process: subprocess.Popen[bytes]) -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in (await asyncio.to_thread(process.stdout.readline)).split()]


async def healthz(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEALTHZ)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]


@asynccontextmanager
async def waiting(ask: Callable[[], Awaitable[None]]) -> AsyncIterator[list[float]]:
    """A bystander who asks again and again; the milliseconds that each answer took."""
    waits: list[float] = []

    async def repeat() -> None:
        while True:
            began = time.perf_counter()
            await ask()
            waits.append((time.perf_counter() - began) * 1_000)
            await asyncio.sleep(0.02)

    asking = asyncio.create_task(repeat())
    try:
        yield waits
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


@asynccontextmanager
async def others(port: int, record: Callable[[str, object], None]) -> AsyncIterator[list[float]]:
    async with waiting(partial(healthz, port)) as waits:
        yield waits
    record("/healthz p50 ms", round(statistics.median(waits), 1))
    record("/healthz p99 ms", round(sorted(waits)[int(len(waits) * 0.99)], 1))
