"""How many attempts run at once: to one host for one tenant, for one tenant, and in all.

Each tenant has a lane of its own to each host, so that a receiver which hangs holds up nobody else's deliveries, and of
one that keeps failing no more than one attempt hangs at a time. Whoever finds a lane crowded comes back later.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from app.api.webhook_targets import Target

FAILURES_TOLERATED = 3
AILING_WAITING_MAX = 8
RETURN_MIN_S = 1.0
RETURN_MAX_S = 60.0
_IDLE_LANES_MAX = 10_000
_SMOOTHING = 0.2


class Crowded(Exception):
    """Too many wait for the same place, or waited too long; in `delay_s` there may be one."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(f"no place for {delay_s:.0f} s")
        self.delay_s = delay_s


@dataclass(frozen=True, slots=True)
class Bounds:
    """Attempts at once; `waiting_max` may wait for a place in a lane, none of them longer than `patience_s`.

    Of a receiver that keeps failing far fewer wait: what waits is held, and only so much is held in all.
    """

    total_max: int = 256
    tenant_max: int = 64
    lane_max: int = 8
    waiting_max: int = 512
    patience_s: float = 10.0


@dataclass(slots=True)
class Bulkhead:
    """One tenant's way to one host. `failures` counts those in a row, `mean_s` is how long attempts take of late."""

    slots: asyncio.Semaphore
    one: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    waiting: int = 0
    failures: int = 0
    mean_s: float = 0.1

    @property
    def ailing(self) -> bool:
        """Whether it has failed so often that one attempt at a time is enough."""
        return self.failures >= FAILURES_TOLERATED

    def note(self, *, answered: bool, duration_s: float) -> None:
        """An attempt was answered in time, by whatever status, or it was not."""
        self.failures = 0 if answered else self.failures + 1
        self.mean_s += _SMOOTHING * (duration_s - self.mean_s)


@dataclass(slots=True)
class _Tenant:
    slots: asyncio.Semaphore
    users: int = 0


class Bulkheads:
    """All lanes of this process; `in_flight` attempts hold a place, `waiting` wish to."""

    def __init__(self, bounds: Bounds) -> None:
        self.in_flight = 0
        self._bounds = bounds
        self._total = asyncio.Semaphore(bounds.total_max)
        self._tenants: dict[str, _Tenant] = {}
        self._lanes: dict[tuple[str, str], Bulkhead] = {}

    @property
    def waiting(self) -> int:
        """Attempts that wait for a place."""
        return sum(lane.waiting for lane in self._lanes.values())

    @asynccontextmanager
    async def place(self, tenant: str, target: Target) -> AsyncGenerator[Bulkhead]:
        """A place for one attempt; raises Crowded when there will be none soon."""
        key = (tenant, f"{target.host}:{target.port}")
        lane = self._lanes.pop(key, None) or Bulkhead(asyncio.Semaphore(self._bounds.lane_max))
        # Put at the end, so that lanes are in the order of their last use.
        self._lanes[key] = lane
        if lane.waiting >= (AILING_WAITING_MAX if lane.ailing else self._bounds.waiting_max):
            raise self._crowded(lane)
        own = self._tenants.setdefault(tenant, _Tenant(asyncio.Semaphore(self._bounds.tenant_max)))
        lane.users += 1
        own.users += 1
        try:
            async with AsyncExitStack() as held:
                await self._enter(held, lane, own)
                self.in_flight += 1
                held.callback(self._leave)
                yield lane
        finally:
            lane.users -= 1
            own.users -= 1
            self._forget(tenant, own)

    async def _enter(self, held: AsyncExitStack, lane: Bulkhead, own: _Tenant) -> None:
        lane.waiting += 1
        try:
            async with asyncio.timeout(self._bounds.patience_s):
                if lane.ailing:
                    await held.enter_async_context(lane.one)
                for slots in (lane.slots, own.slots, self._total):
                    await held.enter_async_context(slots)
        except TimeoutError as exc:
            raise self._crowded(lane) from exc
        finally:
            lane.waiting -= 1

    def _crowded(self, lane: Bulkhead) -> Crowded:
        """Come back when those who wait now will be through, as long as attempts take of late; not all at once."""
        at_once = 1 if lane.ailing else self._bounds.lane_max
        through_s = lane.waiting * lane.mean_s / at_once
        return Crowded(min(RETURN_MAX_S, max(RETURN_MIN_S, through_s)) * random.uniform(1, 2))

    def _leave(self) -> None:
        self.in_flight -= 1

    def _forget(self, tenant: str, own: _Tenant) -> None:
        """Keep no tenant who is idle, and of lanes that are idle the latest."""
        if not own.users:
            self._tenants.pop(tenant, None)
        if len(self._lanes) > _IDLE_LANES_MAX:
            oldest = next(iter(self._lanes))
            if not self._lanes[oldest].users:
                del self._lanes[oldest]
