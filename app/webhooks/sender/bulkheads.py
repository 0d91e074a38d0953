"""Bounds on concurrent attempts: per tenant and host, per tenant, and in all.

A receiver that hangs delays no other receiver; a receiver that keeps failing gets one attempt at a time.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from app.api.webhook_targets import Target
from app.log.queue_worker import ItemDeferred

FAILURES_TOLERATED = 3
FAILING_WAITING_MAX = 8
DEFER_MIN_S = 1.0
DEFER_MAX_S = 60.0
_IDLE_MAX = 10_000
_SMOOTHING = 0.2


class AttemptDeferred(ItemDeferred):
    pass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Concurrent attempts. Per bulkhead `waiting_max` wait, at most `wait_max_s`; fewer for a failing receiver."""

    total_max: int = 256
    tenant_max: int = 64
    host_max: int = 8
    waiting_max: int = 512
    wait_max_s: float = 10.0


@dataclass(slots=True)
class Bulkhead:
    slots: asyncio.Semaphore
    single: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    waiting: int = 0
    failures: int = 0
    mean_s: float = 0.1

    @property
    def failing(self) -> bool:
        return self.failures >= FAILURES_TOLERATED

    def note(self, *, answered: bool, duration_s: float) -> None:
        self.failures = 0 if answered else self.failures + 1
        self.mean_s += _SMOOTHING * (duration_s - self.mean_s)


class Bulkheads:
    """All bulkheads of this process; `in_flight` attempts hold a slot."""

    def __init__(self, bounds: Bounds) -> None:
        self.in_flight = 0
        self._bounds = bounds
        self._total = asyncio.Semaphore(bounds.total_max)
        # A tenant's slots live as long as one of its attempts refers to them.
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._bulkheads: dict[tuple[str, str], Bulkhead] = {}

    @property
    def waiting(self) -> int:
        return sum(bulkhead.waiting for bulkhead in self._bulkheads.values())

    @asynccontextmanager
    async def slot(self, tenant: str, target: Target) -> AsyncGenerator[Bulkhead]:
        """Hold a slot for one attempt; raises AttemptDeferred when none is free soon."""
        key = (tenant, f"{target.host}:{target.port}")
        bulkhead = self._bulkheads.pop(key, None) or Bulkhead(asyncio.Semaphore(self._bounds.host_max))
        # Reinserted at the end: the order of the dict is the order of last use.
        self._bulkheads[key] = bulkhead
        if bulkhead.waiting >= (FAILING_WAITING_MAX if bulkhead.failing else self._bounds.waiting_max):
            raise self._deferred(bulkhead)
        own = self._tenants.setdefault(tenant, asyncio.Semaphore(self._bounds.tenant_max))
        bulkhead.users += 1
        try:
            async with AsyncExitStack() as held:
                await self._acquire(held, bulkhead, own)
                self.in_flight += 1
                try:
                    yield bulkhead
                finally:
                    self.in_flight -= 1
        finally:
            bulkhead.users -= 1
            self._evict_oldest()

    async def _acquire(self, held: AsyncExitStack, bulkhead: Bulkhead, own: asyncio.Semaphore) -> None:
        bulkhead.waiting += 1
        try:
            async with asyncio.timeout(self._bounds.wait_max_s):
                if bulkhead.failing:
                    await held.enter_async_context(bulkhead.single)
                for slots in (bulkhead.slots, own, self._total):
                    await held.enter_async_context(slots)
        except TimeoutError as exc:
            raise self._deferred(bulkhead) from exc
        finally:
            bulkhead.waiting -= 1

    def _deferred(self, bulkhead: Bulkhead) -> AttemptDeferred:
        """Defers by the time that the waiting attempts need at the recent pace, with jitter."""
        concurrency = 1 if bulkhead.failing else self._bounds.host_max
        drain_s = bulkhead.waiting * bulkhead.mean_s / concurrency
        return AttemptDeferred(min(DEFER_MAX_S, max(DEFER_MIN_S, drain_s)) * random.uniform(1, 2))

    def _evict_oldest(self) -> None:
        oldest = next(iter(self._bulkheads))
        if len(self._bulkheads) > _IDLE_MAX and not self._bulkheads[oldest].users:
            del self._bulkheads[oldest]
