"""The backlog: what is accepted and unfinished, and whether one more may be accepted.

Depth bounds it: over all roles, of one role where roles.yaml says so, and of one tenant. While work waits, time bounds
it too: at the measured throughput, what is ahead of a newcomer must end within `DEADLINE_SHARE` of its deadline. Work
that would not end in time is refused, which costs nothing; accepted, it would end as `timeout`. Batch work is ahead of
no interactive newcomer, because its calls yield.

Without saturation, the rate of ends is not the capacity. Throughput is therefore measured over saturated time alone:
while the oldest work that has not begun has waited for `WAITED_S`. Before enough work has ended in saturated time,
Little's law gives an upper bound: the work in hand, over its latency.

Work waits when the oldest has waited for `WAITED_SHARE` of the newcomer's deadline. So a burst is accepted. At 30 times
the capacity, the work accepted by then still ends within half of the deadline.

Retry-After is the time until there is room, plus a random share of `SPREAD` times what all accepted work takes. So few
clients return at once that most find room, and nothing is stored about them. After a refusal, work is refused until the
depth has fallen to `REOPEN_SHARE` of the bound. Otherwise each free place would go to the client of the work that has
just ended.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from math import ceil
from random import random

from app.deliberation.errors import QueueFull
from app.deliberation.ports import Clock
from app.deliberation.specification import Priority

Key = tuple[str, str]

DEADLINE_SHARE = 0.5
WAITED_SHARE = 1 / 60
REOPEN_SHARE = 0.8
SPREAD = 8.0
RETRY_AFTER_MAX_S = 300.0
# What the backlog is assumed to take while no throughput is known.
DRAIN_UNKNOWN_S = 5.0
# An acceptance reaches a free coordinator sooner.
WAITED_S = 0.5
# Each end weighs 2 % less than the next, so that about the last 50 count. Fewer than 5 say nothing.
WEIGHT_KEPT = 0.98
ENDS_MIN = 5
# An end that is read from the log so much later says nothing of the present throughput.
LATE_S = 5.0
OBSERVED_S = 300.0


class ThroughputEstimator:
    """The unfinished work that one bound counts, by `(tenant, id)`, and how fast it ends while some of it waits.

    Times are POSIX seconds. `refused_for_s` is the longest deadline of work that is refused at present, or 0.
    """

    def __init__(self) -> None:
        self.refused_for_s = 0
        # In the order of acceptance and of beginning, each with that time.
        self.waiting: dict[Key, float] = {}
        self.in_hand: dict[Key, float] = {}
        self._latency_s: float | None = None
        self._ends = self._saturated_s = self._measured_to_s = 0.0
        self._observed: deque[float] = deque(maxlen=200)

    @property
    def depth(self) -> int:
        return len(self.waiting) + len(self.in_hand)

    def head_waited_s(self, now_s: float) -> float:
        return max(0.0, now_s - next(iter(self.waiting.values()), now_s))

    def accept(self, key: Key, at_s: float, now_s: float) -> None:
        self._measure(now_s)
        self.waiting[key] = at_s

    def begin(self, key: Key, at_s: float, now_s: float) -> None:
        self._measure(now_s)
        if self.waiting.pop(key, None) is not None:
            self.in_hand[key] = at_s

    def remove(self, key: Key, now_s: float, *, done_at_s: float | None = None) -> None:
        """Count work no more. Cancelled or late work was not done, and says nothing of the throughput."""
        self._measure(now_s)
        saturated = self.head_waited_s(now_s) > WAITED_S
        self.waiting.pop(key, None)
        begun_s = self.in_hand.pop(key, None)
        if done_at_s is not None:
            self._observed.append(min(done_at_s, now_s))
        if done_at_s is None or begun_s is None:
            return
        latency_s, known_s = max(0.0, done_at_s - begun_s), self._latency_s
        self._latency_s = latency_s if known_s is None else known_s + (latency_s - known_s) / ENDS_MIN
        if saturated and now_s - done_at_s < LATE_S:
            self._ends = 1 + WEIGHT_KEPT * self._ends
            self._saturated_s *= WEIGHT_KEPT

    def settle(self) -> None:
        self.waiting = dict(sorted(self.waiting.items(), key=lambda waiting: waiting[1]))
        self._ends = self._saturated_s = 0.0

    def per_s(self, now_s: float) -> float | None:
        """Ends per second while work waits; None while nothing is known of it."""
        self._measure(now_s)
        if self._ends >= ENDS_MIN:
            return self._ends / self._saturated_s
        ages_s = [max(0.0, now_s - at_s) for at_s in self.in_hand.values()]
        latency_s = max(sum(ages_s) / max(1, len(ages_s)), self._latency_s or 0.0)
        return len(ages_s) / latency_s if ages_s and latency_s else None

    def observed_per_s(self, now_s: float) -> float | None:
        recent = [at_s for at_s in self._observed if at_s > now_s - OBSERVED_S]
        return len(recent) / max(1.0, now_s - recent[0]) if len(recent) > 1 else None

    def _measure(self, now_s: float) -> None:
        """Add the saturated time since the last event, through which the same work was the oldest that waits."""
        since_s = max(self._measured_to_s, next(iter(self.waiting.values()), now_s) + WAITED_S)
        self._saturated_s += max(0.0, now_s - since_s)
        self._measured_to_s = max(self._measured_to_s, now_s)


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
        self._held: dict[Key, list[ThroughputEstimator]] = {}
        # This gateway writes the acceptances of these keys. A key leaves the set when the log delivers its acceptance.
        self._unreceived: set[Key] = set()
        self._all = ThroughputEstimator()
        self._by_role = defaultdict[str, ThroughputEstimator](ThroughputEstimator)
        # Only clusters with its label take work that has one, so each label has queues of its own.
        self._queued = defaultdict[tuple[str, str | None], ThroughputEstimator](ThroughputEstimator)
        self._interactive = defaultdict[tuple[str, str | None], ThroughputEstimator](ThroughputEstimator)
        self._by_tenant = defaultdict[str, ThroughputEstimator](ThroughputEstimator)

    @property
    def depth(self) -> int:
        """Deliberations that are accepted and unfinished, with those that are being written."""
        return self._all.depth

    def head_waited_s(self) -> float:
        return self._all.head_waited_s(self._now_s())

    def throughput(self, role: str | None = None) -> ThroughputEstimator:
        return self._all if role is None else self._by_role[role]

    def hold(
        self,
        key: Key,
        roles: Iterable[str],
        accepted_at: datetime,
        *,
        begun_at: datetime | None,
        priority: Priority = "interactive",
        cluster: str | None = None,
    ) -> None:
        self._unreceived.discard(key)
        now_s = self._now_s()
        if key not in self._held:
            queues = [self._queued, self._interactive] if priority == "interactive" else [self._queued]
            names = frozenset(roles)
            queued = (by_role[role, cluster] for role in names for by_role in queues)
            self._held[key] = [self._all, self._by_tenant[key[0]], *map(self._by_role.__getitem__, names), *queued]
            for estimator in self._held[key]:
                estimator.accept(key, accepted_at.timestamp(), now_s)
        if begun_at is not None:
            for estimator in self._held[key]:
                estimator.begin(key, begun_at.timestamp(), now_s)

    def drop(self, key: Key, *, done_at: datetime | None = None) -> None:
        """Count a deliberation no more. One that was done, at `done_at`, counts for the throughput. Idempotent."""
        self._unreceived.discard(key)
        for estimator in self._held.pop(key, ()):
            estimator.remove(key, self._now_s(), done_at_s=done_at.timestamp() if done_at else None)

    def settle(self) -> None:
        """Order and measure anew, after the log was read in another order than that of events."""
        groups = self._by_role, self._queued, self._interactive, self._by_tenant
        for estimator in (self._all, *chain.from_iterable(group.values() for group in groups)):
            estimator.settle()

    def admitted(self, role: str, timeout_s: int) -> int:
        """How many unfinished deliberations a role may have while one more with this deadline is accepted.

        The number is for deliberations without a label of a cluster.
        """
        bound = min(self.depth_max, self.role_depth_max.get(role, self.depth_max))
        in_time = self._in_time(self._queued[role, None], timeout_s)
        return bound if in_time is None else min(bound, int(in_time))

    def check(
        self,
        roles: Iterable[str],
        timeout_s: int,
        *,
        key: Key | None = None,
        tenant: str | None = None,
        priority: Priority = "interactive",
        cluster: str | None = None,
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
            ahead = self._interactive if priority == "interactive" else self._queued
            self._check_wait(needing, ahead[role, cluster], timeout_s)

    @contextmanager
    def place(
        self,
        key: Key,
        roles: Iterable[str],
        timeout_s: int,
        priority: Priority = "interactive",
        cluster: str | None = None,
    ) -> Generator[None]:
        """Hold a place while an acceptance is written, or until it is received; raises what `check` raises."""
        self.check(roles, timeout_s, key=key, tenant=key[0], priority=priority, cluster=cluster)
        if new := key not in self._held:
            self.hold(key, roles, self.clock.now(), begun_at=None, priority=priority, cluster=cluster)
            self._unreceived.add(key)
        try:
            yield
        finally:
            if new and key in self._unreceived:
                self.drop(key)

    def _check_depth(self, which: str, estimator: ThroughputEstimator, depth_max: int | None) -> None:
        if depth_max is not None and estimator.depth >= depth_max:
            why = f"{estimator.depth} deliberations{which} are accepted and unfinished"
            raise self._refusal(why, estimator, estimator.depth + 1 - depth_max)

    def _check_wait(self, which: str, estimator: ThroughputEstimator, timeout_s: int) -> None:
        waited_s, in_time = estimator.head_waited_s(self._now_s()), self._in_time(estimator, timeout_s)
        reopening = timeout_s <= estimator.refused_for_s
        if in_time is not None and estimator.depth >= in_time * (REOPEN_SHARE if reopening else 1):
            estimator.refused_for_s = max(estimator.refused_for_s, timeout_s)
            why = f"{estimator.depth} deliberations{which} are unfinished, and one has waited {waited_s:.0f} s"
            raise self._refusal(why, estimator, estimator.depth - REOPEN_SHARE * in_time)
        if reopening:
            estimator.refused_for_s = 0

    def _in_time(self, estimator: ThroughputEstimator, timeout_s: int) -> float | None:
        """The depth that ends in time for a newcomer with this deadline; None while no work waits for long."""
        now_s = self._now_s()
        waited_s = estimator.head_waited_s(now_s)
        if waited_s < max(WAITED_S, WAITED_SHARE * timeout_s):
            return None
        per_s = estimator.per_s(now_s)
        if waited_s > timeout_s:
            # It would wait about as long, since what waits begins in order.
            return 0.0
        return None if per_s is None else per_s * DEADLINE_SHARE * timeout_s

    def _refusal(self, why: str, estimator: ThroughputEstimator, excess: float) -> QueueFull:
        """There is room once `excess` of what it counts has ended."""
        per_s = estimator.per_s(self._now_s())
        drain_s = estimator.depth / per_s if per_s else DRAIN_UNKNOWN_S
        room_s, spread_s = drain_s * excess / max(1, estimator.depth), SPREAD * drain_s
        scale = min(1.0, RETRY_AFTER_MAX_S / (room_s + spread_s))
        return QueueFull(why, max(1, ceil(scale * (room_s + spread_s * self.jitter()))))

    def _now_s(self) -> float:
        return self.clock.now().timestamp()
