"""The calls of a role that may be at engines at once, and the order of those that wait."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from itertools import count


class PrioritySlots:
    """So many slots; of the calls that wait, the one with the lowest priority number is next, then the oldest."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    @asynccontextmanager
    async def held(self, priority: int) -> AsyncGenerator[None]:
        """Wait for a slot, and hold it within the block."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: int) -> None:
        # Where a slot is free nobody waits: `_release` frees one only then.
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (priority, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                # It got the slot in the moment of its cancellation.
                self._release()
            raise

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
