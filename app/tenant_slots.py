"""Slots that tenants share, and turns on the event loop."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class TenantSlots:
    """At most `total` entries at once, of which one tenant has at most `share`; further ones wait.

    Next is an entry of the tenant with the fewest at work. Among several such tenants, the tenant whose last entry
    began the longest ago is next. Entries of one tenant begin in their order.
    """

    def __init__(self, total: int, share: int | None = None) -> None:
        self._free = total
        self._share = share or total
        self._working = Counter[str]()
        self._begun = 0
        # The number of each tenant's latest entry, while entries are at work.
        self._latest = dict[str, int]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        await self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    def waiting(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    async def take(self, tenant: str) -> None:
        if self._free and self._working[tenant] < self._share:
            self._begin(tenant)
        else:
            await self._turn(tenant)

    def _begin(self, tenant: str) -> None:
        self._free -= 1
        self._begun += 1
        self._working[tenant] += 1
        self._latest[tenant] = self._begun

    async def _turn(self, tenant: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(tenant)
            elif turn in self._waiting.get(tenant, ()):
                self._forget(tenant, turn)
            raise

    def give_back(self, tenant: str) -> None:
        self._free += 1
        self._working[tenant] -= 1
        while self._free and (
            able := [candidate for candidate in self._waiting if self._working[candidate] < self._share]
        ):
            chosen = min(able, key=lambda candidate: (self._working[candidate], self._latest.get(candidate, 0)))
            turn = self._waiting[chosen][0]
            self._forget(chosen, turn)
            if not turn.cancelled():
                self._begin(chosen)
                turn.set_result(None)
        if not self._working.total():
            self._working.clear()
            self._latest.clear()

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        self._waiting[tenant].remove(turn)
        if not self._waiting[tenant]:
            del self._waiting[tenant]


REST_S_MAX = 0.1


class TenantTurns:
    """Turns of tenants at work that holds the event loop up: one at a time, and behind each a rest as long as it was.

    In the rest the loop serves everything else, so that such work takes about half of its time at most.
    """

    def __init__(self) -> None:
        self.slots = TenantSlots(1)

    async def begin(self, tenant: str) -> None:
        """Wait for a turn, which is what the task does until it next gives way to others."""
        await self.slots.take(tenant)
        asyncio.get_running_loop().call_soon(self._rest, tenant, time.perf_counter())

    def _rest(self, tenant: str, began_s: float) -> None:
        took_s = time.perf_counter() - began_s
        asyncio.get_running_loop().call_later(min(took_s, REST_S_MAX), self.slots.give_back, tenant)
