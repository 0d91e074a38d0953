"""Slots that tenants share."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class TenantSlots:
    """At most `total` entries at once, of which one tenant has at most `share`; further ones wait.

    Next is an entry of the tenant with the fewest at work. Of several such tenants it is the one that began an entry
    the longest ago. Entries of one tenant begin in their order.
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
        if self._free and self._working[tenant] < self._share:
            self._begin(tenant)
        else:
            await self._turn(tenant)
        try:
            yield
        finally:
            self._end(tenant)

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
                self._end(tenant)
            elif turn in self._waiting.get(tenant, ()):
                self._forget(tenant, turn)
            raise

    def _end(self, tenant: str) -> None:
        self._free += 1
        self._working[tenant] -= 1
        while self._free and (able := [each for each in self._waiting if self._working[each] < self._share]):
            chosen = min(able, key=lambda each: (self._working[each], self._latest.get(each, 0)))
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
