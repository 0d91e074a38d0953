"""The backlog: what is accepted and unfinished, how long its head has waited, and who may still be taken on.

Four bounds, each told with its reason: a depth over all roles, a depth of one tenant, a depth of one role where
roles.yaml gives it one, and time. The queue is first in, first out, so a newcomer waits about as long as its oldest
member has waited already: work whose deadline would pass before it began is refused at the door, where it costs
nothing, rather than accepted and ended as `timeout` (the sojourn time of CoDel, RFC 8289, is measured the same way).
"""

from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from math import ceil

from app.deliberation.errors import QueueFull
from app.deliberation.ports import Clock

RATE_WINDOW_S = 60
RETRY_AFTER_MAX_S = 60
ENDS_MAX = 100_000

Key = tuple[str, str]


class Backlog:
    """`depth_max` bounds it over all roles, `role_depth_max` by role, `tenant_depth_max` by tenant (None: it does not).

    `hold` and `drop` keep it.
    """

    def __init__(
        self, clock: Clock, depth_max: int, role_depth_max: Mapping[str, int], tenant_depth_max: int | None = None
    ) -> None:
        self._clock = clock
        self._depth_max = depth_max
        self._tenant_depth_max = tenant_depth_max
        self._role_depth_max = role_depth_max
        self._roles_of: dict[Key, frozenset[str]] = {}
        self._writing: dict[Key, frozenset[str]] = {}
        self._depth_of: Counter[str] = Counter()
        self._tenant_depth: Counter[str] = Counter()
        # In the order of acceptance, since a dictionary keeps the order in which keys came.
        self._waiting: dict[Key, datetime] = {}
        self._ends: deque[datetime] = deque(maxlen=ENDS_MAX)

    @property
    def depth(self) -> int:
        """Deliberations that are accepted and unfinished, with those that are being written."""
        return len(self._roles_of) + len(self._writing)

    def depth_of(self, role: str) -> int:
        """As `depth`, of those that need the role."""
        return self._depth_of[role] + sum(role in roles for roles in self._writing.values())

    def depth_of_tenant(self, tenant: str) -> int:
        """As `depth`, of one tenant."""
        return self._tenant_depth[tenant] + sum(writing == tenant for writing, _ in self._writing)

    def hold(self, key: Key, roles: Iterable[str], accepted_at: datetime, *, begun: bool) -> None:
        """A deliberation is accepted and unfinished. Idempotent."""
        if key in self._roles_of:
            if begun:
                self._waiting.pop(key, None)
            return
        self._writing.pop(key, None)
        self._roles_of[key] = frozenset(roles)
        self._depth_of.update(self._roles_of[key])
        self._tenant_depth[key[0]] += 1
        if not begun:
            self._waiting[key] = accepted_at

    def drop(self, key: Key) -> None:
        """It has ended, or is forgotten. Idempotent."""
        self._waiting.pop(key, None)
        roles = self._roles_of.pop(key, None)
        if roles is None:
            return
        self._tenant_depth[key[0]] -= 1
        for role in roles:
            self._depth_of[role] -= 1

    def ended(self, at: datetime) -> None:
        """A deliberation has ended: the rate of ends is what a client is told to wait by."""
        self._ends.append(at)

    def clear(self) -> None:
        """Forget everything: another log is read."""
        self._roles_of.clear()
        self._depth_of.clear()
        self._tenant_depth.clear()
        self._waiting.clear()
        self._ends.clear()

    def head_waited_s(self) -> float:
        """Seconds that the oldest deliberation which has not begun has waited; 0 when there is none."""
        accepted_at = next(iter(self._waiting.values()), None)
        return 0.0 if accepted_at is None else max(0.0, (self._clock.now() - accepted_at).total_seconds())

    def check(self, roles: Iterable[str], timeout_s: int, *, tenant: str | None = None) -> None:
        """Raise QueueFull when a deliberation of these roles with this deadline cannot be taken on now.

        Without a tenant, that bound is not looked at.
        """
        if self.depth >= self._depth_max:
            raise QueueFull(f"{self.depth} deliberations are accepted and unfinished", self.retry_after_s())
        if tenant is not None and self._tenant_depth_max is not None:
            depth = self.depth_of_tenant(tenant)
            if depth >= self._tenant_depth_max:
                raise QueueFull(f"{depth} deliberations of yours are accepted and unfinished", self.retry_after_s())
        for role in sorted(roles):
            depth_max = self._role_depth_max.get(role)
            if depth_max is not None and (depth := self.depth_of(role)) >= depth_max:
                told = f"{depth} deliberations that need the role {role} are accepted and unfinished"
                raise QueueFull(told, self.retry_after_s())
        waited_s = self.head_waited_s()
        if waited_s > timeout_s:
            told = f"the queue's head has waited {waited_s:.0f} s: this could not begin within its {timeout_s} s"
            raise QueueFull(told, self.retry_after_s())

    @contextmanager
    def place(self, key: Key, roles: Iterable[str], timeout_s: int) -> Generator[None]:
        """Hold a place while an acceptance is written, or until it is heard of; raises what `check` raises."""
        if key not in self._roles_of and key not in self._writing:
            self.check(roles, timeout_s, tenant=key[0])
            self._writing[key] = frozenset(roles)
        # A retry of what is being written takes no second place.
        try:
            yield
        finally:
            self._writing.pop(key, None)

    def retry_after_s(self) -> int:
        """Seconds in which the present backlog ends at the rate of the last minute, from 1 to 60."""
        now = self._clock.now()
        while self._ends and now - self._ends[0] > timedelta(seconds=RATE_WINDOW_S):
            self._ends.popleft()
        if not self._ends:
            return RETRY_AFTER_MAX_S
        span_s = max(1.0, (now - self._ends[0]).total_seconds())
        return max(1, min(RETRY_AFTER_MAX_S, ceil(self.depth * span_s / len(self._ends))))
