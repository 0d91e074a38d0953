"""The backlog: what is accepted and unfinished, how fast it ends, and who may still be taken on.

Five bounds, each told with its reason: a depth over all roles, a depth of one tenant, a depth of one role where
roles.yaml gives it one, and two of time. At the rate at which work of a role ends, what is there must end within half
of a newcomer's deadline (`app.admission.throughput`). And the queue is first in, first out, so that a newcomer waits
about as long as its oldest member has waited already (the sojourn time of CoDel, RFC 8289, is measured the same way).
What would not be done in time is refused at the door, where it costs nothing, rather than accepted and ended as
`timeout`.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.admission.reservations import Key, Promise, Promises
from app.admission.throughput import ThroughputEstimator
from app.deliberation.errors import QueueFull
from app.deliberation.ports import Clock

__all__ = ["Backlog", "HowEnded", "Key"]

# While nothing has ended yet, nobody knows when something will: nobody is told to come sooner.
FIRST_END_S = 5

# The line of those who are refused whatever they ask for.
ALL = "all"

HowEnded = Literal["done", "missed", "stopped"]


def _of_role(role: str) -> str:
    """The name of the line of those who are refused because they need the role."""
    return f"role {role}"


def _of_tenant(tenant: str) -> str:
    """The name of the line of those who are refused because they are the tenant's."""
    return f"tenant {tenant}"


def _lines(roles: Iterable[str], tenant: str) -> list[str]:
    """The lines of all bounds that may refuse it."""
    return [ALL, *map(_of_role, roles), _of_tenant(tenant)]


@dataclass(frozen=True, slots=True)
class _Held:
    """A deliberation that is accepted and unfinished: the roles that it needs, and when it was accepted."""

    roles: frozenset[str]
    accepted_at: datetime


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who asks to be taken on: `key` is of what it asks for, and None where nobody will come back with it."""

    roles: frozenset[str]
    timeout_s: int
    key: Key | None
    tenant: str | None


@dataclass(frozen=True, slots=True)
class _Bound:
    """What `depth` may be at most, whose `pace` empties it; `share` of what ends there makes room behind this bound."""

    line: str
    which: str
    pace: ThroughputEstimator
    depth: int
    depth_max: int
    share: float = 1.0


class Backlog:
    """`depth_max` bounds it over all roles, `role_depth_max` by role, `tenant_depth_max` by tenant (None: it does not).

    `cold_depth` bounds each role while it is not known how fast its work ends (None: it does not). `hold` and `drop`
    keep the backlog, `ended` how fast. `promises` are the places that are kept for those who were refused.
    """

    def __init__(
        self,
        clock: Clock,
        depth_max: int,
        role_depth_max: Mapping[str, int],
        tenant_depth_max: int | None = None,
        cold_depth: int | None = None,
    ) -> None:
        self._clock = clock
        self._depth_max = depth_max
        self._tenant_depth_max = tenant_depth_max
        self._role_depth_max = role_depth_max
        self._cold_depth = depth_max if cold_depth is None else cold_depth
        self._held: dict[Key, _Held] = {}
        self._writing: dict[Key, frozenset[str]] = {}
        self._depth_of: Counter[str] = Counter()
        self._tenant_depth: Counter[str] = Counter()
        # In the order of acceptance, since a dictionary keeps the order in which keys came.
        self._waiting: dict[Key, datetime] = {}
        self._paces: dict[str, ThroughputEstimator] = {}
        self._pace = ThroughputEstimator(self._cold_depth)
        self.promises = Promises()

    @property
    def depth(self) -> int:
        """Deliberations that are accepted and unfinished, with those that are being written."""
        return len(self._held) + len(self._writing)

    @property
    def waiting(self) -> int:
        """Of those, how many have not begun."""
        return len(self._waiting) + len(self._writing)

    def depth_of(self, role: str) -> int:
        """As `depth`, of those that need the role."""
        return self._depth_of[role] + sum(role in roles for roles in self._writing.values())

    def depth_of_tenant(self, tenant: str) -> int:
        """As `depth`, of one tenant."""
        return self._tenant_depth[tenant] + sum(writing == tenant for writing, _ in self._writing)

    def hold(self, key: Key, roles: Iterable[str], accepted_at: datetime, *, begun: bool) -> None:
        """A deliberation is accepted and unfinished. Idempotent."""
        if key in self._held:
            if begun:
                self._waiting.pop(key, None)
            return
        self._writing.pop(key, None)
        if not self._held:
            self._pace.began(accepted_at.timestamp())
        held = self._held[key] = _Held(frozenset(roles), accepted_at)
        for role in held.roles:
            if self._depth_of[role] == 0:
                self._pace_of(role).began(accepted_at.timestamp())
        self._depth_of.update(held.roles)
        self._tenant_depth[key[0]] += 1
        if not begun:
            self._waiting[key] = accepted_at
        # Perhaps another gateway has let it in.
        self.promises.fulfil(_lines(held.roles, key[0]), key)

    def ended(self, key: Key, at: datetime, how: HowEnded) -> None:
        """A deliberation that is held has ended: it was done, has missed its deadline, or was stopped."""
        held = self._held.get(key)
        self.drop(key)
        if held is None or how == "stopped":
            return
        took_s = max(0.0, (at - held.accepted_at).total_seconds())
        # Whoever wrote the end may have a clock that is ahead.
        at_s = min(at.timestamp(), self._now_s())
        for pace in (self._pace, *(self._pace_of(role) for role in held.roles)):
            if how == "done":
                pace.ended(at_s, took_s)
            else:
                pace.missed(at_s, took_s)

    def drop(self, key: Key) -> None:
        """It is forgotten. Idempotent."""
        self._waiting.pop(key, None)
        held = self._held.pop(key, None)
        if held is None:
            return
        self._tenant_depth[key[0]] -= 1
        for role in held.roles:
            self._depth_of[role] -= 1

    def settle(self) -> None:
        """The log has been read, in another order than things happened in: what there is now tells since when."""
        self._waiting = dict(sorted(self._waiting.items(), key=lambda waiting: waiting[1]))
        for role in (None, *self._paces):
            held = [each.accepted_at for each in self._held.values() if role in (None, *each.roles)]
            self.pace(role).settle(min(held, default=self._clock.now()).timestamp())

    def heard(self, promise: Promise) -> None:
        """Another gateway, or this one, has promised a place to whom it refused."""
        if promise.key not in self._held and promise.key not in self._writing:
            self.promises.heard(promise, self._now_s())

    def clear(self) -> None:
        """Forget everything: another log is read."""
        self._held.clear()
        self._depth_of.clear()
        self._tenant_depth.clear()
        self._waiting.clear()
        self._paces.clear()
        self._pace = ThroughputEstimator(self._cold_depth)
        self.promises.clear()

    def pace(self, role: str | None = None) -> ThroughputEstimator:
        """How fast work that needs a role ends, or any work: to be read."""
        return self._pace if role is None else self._paces.get(role) or ThroughputEstimator(self._cold_depth)

    def _pace_of(self, role: str) -> ThroughputEstimator:
        return self._paces.setdefault(role, ThroughputEstimator(self._cold_depth))

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def head_waited_s(self) -> float:
        """Seconds that the oldest deliberation which has not begun has waited; 0 when there is none."""
        accepted_at = next(iter(self._waiting.values()), None)
        return 0.0 if accepted_at is None else max(0.0, (self._clock.now() - accepted_at).total_seconds())

    def check(self, roles: Iterable[str], timeout_s: int, *, key: Key | None = None, tenant: str | None = None) -> None:
        """Raise QueueFull when a deliberation of these roles with this deadline cannot be taken on now.

        Without a tenant, that bound is not looked at; without a key, no place is kept for it.
        """
        if key in self._held or key in self._writing:
            # A retry of what is taken on already takes no second place.
            return
        asked = _Asked(frozenset(roles), timeout_s, key, tenant)
        now_s = self._now_s()
        for bound in self._bounds(asked):
            self._check_bound(asked, bound, now_s)
        for role in sorted(asked.roles):
            self._check_pace(asked, role, now_s)
        waited_s = self.head_waited_s()
        if waited_s > timeout_s:
            told = f"the queue's head has waited {waited_s:.0f} s: this could not begin within its {timeout_s} s"
            per_s = self._pace.freed_per_s(now_s, timeout_s, self.depth, given=True)
            raise self._refusal(asked, told, ALL, now_s, per_s, self.depth)

    def _bounds(self, asked: _Asked) -> Iterator[_Bound]:
        yield _Bound(ALL, "", self._pace, self.depth, self._depth_max)
        if asked.tenant is not None and self._tenant_depth_max is not None:
            depth = self.depth_of_tenant(asked.tenant)
            # Of what ends in the house, its own share is what makes room for it.
            share = depth / max(1, self.depth)
            yield _Bound(_of_tenant(asked.tenant), " of yours", self._pace, depth, self._tenant_depth_max, share)
        for role in sorted(asked.roles & self._role_depth_max.keys()):
            which, pace, depth_max = f" that need the role {role}", self._pace_of(role), self._role_depth_max[role]
            yield _Bound(_of_role(role), which, pace, self.depth_of(role), depth_max)

    def _check_bound(self, asked: _Asked, bound: _Bound, now_s: float) -> None:
        promised = self.promises.holds(bound.line, asked.key, now_s)
        kept = 0 if promised else self.promises.kept(bound.line, now_s, bound.depth_max)
        if bound.depth + kept < bound.depth_max:
            return
        per_s = bound.share * bound.pace.freed_per_s(now_s, asked.timeout_s, bound.depth_max, given=True)
        told = f"{bound.depth} deliberations{bound.which} are accepted and unfinished"
        raise self._refusal(asked, told, bound.line, now_s, per_s, bound.depth + 1 - bound.depth_max)

    def _check_pace(self, asked: _Asked, role: str, now_s: float) -> None:
        pace, depth, line = self._pace_of(role), self.depth_of(role), _of_role(role)
        depth_max = pace.depth_max(now_s, asked.timeout_s)
        if depth < depth_max - self.promises.kept(line, now_s, depth_max):
            return
        if self.promises.holds(line, asked.key, now_s):
            if depth < pace.depth_max(now_s, asked.timeout_s, promised=True):
                return
        rate = pace.rate(now_s)
        fast = "nothing has ended yet" if rate is None else f"{rate.per_s:.2g} end in a second"
        told = f"{depth} deliberations that need the role {role} are accepted and unfinished, and {fast}"
        per_s = pace.freed_per_s(now_s, asked.timeout_s, depth_max, given=False)
        raise self._refusal(asked, told, line, now_s, per_s, depth + 1 - depth_max)

    def _refusal(self, asked: _Asked, told: str, line: str, now_s: float, per_s: float, ahead: float) -> QueueFull:
        if self._pace.rate(now_s) is None:
            ahead = max(ahead, FIRST_END_S * per_s)
        return QueueFull(told, self.promises.tell(line, asked.key, now_s, per_s, ahead))

    @contextmanager
    def place(self, key: Key, roles: Iterable[str], timeout_s: int) -> Generator[None]:
        """Hold a place while an acceptance is written, or until it is heard of; raises what `check` raises."""
        self.check(roles, timeout_s, key=key, tenant=key[0])
        if key not in self._held:
            self._writing[key] = frozenset(roles)
            self.promises.fulfil(_lines(self._writing[key], key[0]), key)
        try:
            yield
        finally:
            self._writing.pop(key, None)
