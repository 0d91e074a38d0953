"""Slots that tenants share."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Slots:
    """A number of slots, at least two, of which one tenant holds at most half.

    A tenant's further entries wait behind its own, so that those of others wait for at most half of the slots.
    """

    def __init__(self, total: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._share = total // 2
        # A tenant's share lives as long as one of its entries refers to it.
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        share = self._of.get(tenant) or asyncio.Semaphore(self._share)
        self._of[tenant] = share
        async with share, self._all:
            yield
