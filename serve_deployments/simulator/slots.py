"""How many sequences run at once; the others wait in order."""

import asyncio
from collections import deque


class Slots:
    """First come, first served. A request that needs more than there are gets all of them when none is taken."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.running = 0
        self.waiting = 0

    def try_take(self, need: int) -> bool:
        """Take `need` slots at once when nobody waits before and they are free."""
        if self._queue or not self._fits(need):
            return False
        self.running += need
        return True

    def join(self, need: int) -> asyncio.Future[None]:
        """Queue for `need` slots; the future is set when they are taken. Leave with `abandon` or `release`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((need, turn))
        self.waiting += need
        return turn

    def abandon(self, need: int, turn: asyncio.Future[None]) -> None:
        """Leave the queue, or give back what was granted meanwhile."""
        if turn.done() and not turn.cancelled():
            self.release(need)
            return
        self._queue.remove((need, turn))
        self.waiting -= need
        self._grant()

    def release(self, need: int) -> None:
        """Give slots back and let the next in the queue start."""
        self.running -= need
        self._grant()

    def _fits(self, need: int) -> bool:
        return self._limit is None or self.running == 0 or self.running + need <= self._limit

    def _grant(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            need, turn = self._queue.popleft()
            self.waiting -= need
            self.running += need
            turn.set_result(None)
