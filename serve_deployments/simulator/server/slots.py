"""The sequences that run at once; further requests wait in order."""

import asyncio
from collections import deque


class SequenceSlots:
    """First come, first served. A request larger than `limit` runs alone; without a limit no request waits."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.running = 0
        self.waiting = 0

    def join(self, need: int) -> "asyncio.Future[None]":
        """Ask for `need` slots; the future is done once they are held. Every `join` needs one `leave`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((need, turn))
        self.waiting += need
        self._grant()
        return turn

    def leave(self, need: int, turn: "asyncio.Future[None]") -> None:
        """Give the slots back, or leave the queue; a cancelled turn was never granted."""
        if turn.done() and not turn.cancelled():
            self.running -= need
        else:
            self._queue.remove((need, turn))
            self.waiting -= need
        self._grant()

    def _grant(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            need, turn = self._queue.popleft()
            self.waiting -= need
            self.running += need
            turn.set_result(None)

    def _fits(self, need: int) -> bool:
        return self._limit is None or self.running == 0 or self.running + need <= self._limit
