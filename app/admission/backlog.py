"""The backlog: what is accepted and unfinished, and whether one more may be accepted.

Depth bounds it: over all roles, of one role where roles.yaml says so, and of one tenant. While work waits, time bounds
it too: at the measured throughput, what is ahead of a newcomer must end within `DEADLINE_SHARE` of its deadline. Work
that would not end in time is refused, which costs nothing; accepted, it would end as `timeout`. Batch work is ahead of
no interactive newcomer, because its calls yield.

Work waits when the oldest has waited for `WAITED_SHARE` of the newcomer's deadline. So a burst is accepted. At 30 times
the capacity, the work accepted by then still ends within half of the deadline.

Retry-After is the time until there is room, and by chance up to `SPREAD` times what all accepted work takes. So few
clients return at once that most find room, and nothing is stored about them. After a refusal, work is refused until the
depth has fallen to `REOPEN_SHARE` of the bound. Otherwise each free place would go to the client of the work that has
just ended.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from random import random

from app.admission.throughput import WAITED_S, Key, ThroughputEstimator
from app.deliberation.errors import QueueFull
from app.deliberation.ports import Clock
from app.deliberation.specification import Priority

DEADLINE_SHARE = 0.5
WAITED_SHARE = 1 / 60
REOPEN_SHARE = 0.8
SPREAD = 8.0
RETRY_AFTER_MAX_S = 300.0
# What the backlog is assumed to take while no throughput is known.
DRAIN_UNKNOWN_S = 5.0


@dataclass(eq=False)
class Backlog:
    """`depth_max` bounds it over all roles, `role_depth_max` by role, `tenant_depth_max` by tenant, if given."""

    clock: Clock
    depth_max: int
    role_depth_max: Mapping[str, int]
    tenant_depth_max: int | None = None
    # A random number from 0 to 1.
    jitter: Callable[[], float] = random

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything: another log is read."""
        self._held: dict[Key, list[ThroughputEstimator]] = {}
        # Of those, the ones that are being written and are not heard of yet.
        self._written: set[Key] = set()
        self._all = ThroughputEstimator()
        self._by_role = defaultdict[str, ThroughputEstimator](ThroughputEstimator)
        self._interactive = defaultdict[str, ThroughputEstimator](ThroughputEstimator)
        self._by_tenant = defaultdict[str, ThroughputEstimator](ThroughputEstimator)

    @property
    def depth(self) -> int:
        """Deliberations that are accepted and unfinished, with those that are being written."""
        return self._all.depth

    def throughput(self, role: str | None = None) -> ThroughputEstimator:
        """The figures of all work, or of the work that needs a role; to be read only."""
        return self._all if role is None else self._by_role[role]

    def hold(
        self,
        key: Key,
        roles: Iterable[str],
        accepted_at: datetime,
        *,
        begun_at: datetime | None,
        priority: Priority = "interactive",
    ) -> None:
        """A deliberation is accepted and unfinished, and may have begun. Idempotent."""
        self._written.discard(key)
        now_s = self._now_s()
        if key not in self._held:
            by_role = [self._by_role, self._interactive] if priority == "interactive" else [self._by_role]
            of_roles = (work[role] for role in frozenset(roles) for work in by_role)
            self._held[key] = [self._all, self._by_tenant[key[0]], *of_roles]
            for work in self._held[key]:
                work.accept(key, accepted_at.timestamp(), now_s)
        if begun_at is not None:
            for work in self._held[key]:
                work.begin(key, begun_at.timestamp(), now_s)

    def drop(self, key: Key, *, done_at: datetime | None = None) -> None:
        """A deliberation is no longer unfinished. Only what was done says something of the throughput. Idempotent."""
        self._written.discard(key)
        for work in self._held.pop(key, ()):
            work.remove(key, self._now_s(), done_at_s=done_at.timestamp() if done_at else None)

    def settle(self) -> None:
        """The log has been read, in another order than that of events."""
        for work in (self._all, *self._by_role.values(), *self._interactive.values(), *self._by_tenant.values()):
            work.settle()

    def admitted(self, role: str, timeout_s: int) -> int:
        """How many of the role may be unfinished for one more with this deadline to be accepted, of any priority."""
        bound = min(self.depth_max, self.role_depth_max.get(role, self.depth_max))
        in_time = self._in_time(self.throughput(role), timeout_s)
        return bound if in_time is None else min(bound, int(in_time))

    def check(
        self,
        roles: Iterable[str],
        timeout_s: int,
        *,
        key: Key | None = None,
        tenant: str | None = None,
        priority: Priority = "interactive",
    ) -> None:
        """Raise QueueFull when a deliberation of these roles with this deadline cannot be accepted now.

        Without a tenant, the tenant's bound does not apply. Accepted work needs no second place.
        """
        if key in self._held:
            return
        self._check_depth("", self._all, self.depth_max)
        if tenant is not None:
            self._check_depth(" of yours", self._by_tenant[tenant], self.tenant_depth_max)
        for role in sorted(frozenset(roles)):
            needing = f" that need the role {role}"
            self._check_depth(needing, self._by_role[role], self.role_depth_max.get(role))
            ahead = self._interactive if priority == "interactive" else self._by_role
            self._check_wait(needing, ahead[role], timeout_s)

    @contextmanager
    def place(
        self, key: Key, roles: Iterable[str], timeout_s: int, priority: Priority = "interactive"
    ) -> Generator[None]:
        """Hold a place while an acceptance is written, or until it is heard of; raises what `check` raises."""
        self.check(roles, timeout_s, key=key, tenant=key[0], priority=priority)
        if new := key not in self._held:
            self.hold(key, roles, self.clock.now(), begun_at=None, priority=priority)
            self._written.add(key)
        try:
            yield
        finally:
            if new and key in self._written:
                self.drop(key)

    def _check_depth(self, which: str, work: ThroughputEstimator, depth_max: int | None) -> None:
        if depth_max is not None and work.depth >= depth_max:
            why = f"{work.depth} deliberations{which} are accepted and unfinished"
            raise self._refusal(why, work, work.depth + 1 - depth_max)

    def _check_wait(self, which: str, work: ThroughputEstimator, timeout_s: int) -> None:
        waited_s, in_time = work.head_waited_s(self._now_s()), self._in_time(work, timeout_s)
        reopening = timeout_s <= work.refused_for_s
        if in_time is not None and work.depth >= in_time * (REOPEN_SHARE if reopening else 1):
            work.refused_for_s = max(work.refused_for_s, timeout_s)
            why = f"{work.depth} deliberations{which} are unfinished, and one has waited {waited_s:.0f} s"
            raise self._refusal(why, work, work.depth - REOPEN_SHARE * in_time)
        if reopening:
            work.refused_for_s = 0

    def _in_time(self, work: ThroughputEstimator, timeout_s: int) -> float | None:
        """The depth that ends in time for a newcomer with this deadline; None while no work waits for long."""
        now_s = self._now_s()
        waited_s = work.head_waited_s(now_s)
        if waited_s < max(WAITED_S, WAITED_SHARE * timeout_s):
            return None
        per_s = work.per_s(now_s)
        if waited_s > timeout_s:
            # It would wait about as long, since what waits begins in order.
            return 0.0
        return None if per_s is None else per_s * DEADLINE_SHARE * timeout_s

    def _refusal(self, why: str, work: ThroughputEstimator, excess: float) -> QueueFull:
        """There is room once `excess` of this work has ended."""
        per_s = work.per_s(self._now_s())
        drain_s = work.depth / per_s if per_s else DRAIN_UNKNOWN_S
        room_s, spread_s = drain_s * excess / max(1, work.depth), SPREAD * drain_s
        scale = min(1.0, RETRY_AFTER_MAX_S / (room_s + spread_s))
        return QueueFull(why, max(1, ceil(scale * (room_s + spread_s * self.jitter()))))

    def _now_s(self) -> float:
        return self.clock.now().timestamp()
