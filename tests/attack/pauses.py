"""The pauses of an event loop while hostile work is done: what every other call of a replica waits."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

# The loop's longest pause on an idle machine is 0.1 s; other tests share this one.
PAUSE_S_MAX = 1.0


class _Pauses:
    longest_s = 0.0


@asynccontextmanager
async def paused() -> AsyncGenerator[_Pauses]:
    """The longest pause of the event loop."""
    pauses = _Pauses()

    async def beat() -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(0.01)
            pauses.longest_s = max(pauses.longest_s, time.monotonic() - before_s - 0.01)

    beating = asyncio.create_task(beat())
    try:
        yield pauses
    finally:
        beating.cancel()
