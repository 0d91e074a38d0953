"""How often a tenant may ask: the sliding windows of the library `limits`, in this process's memory.

The library's own memory starts a thread in every ten milliseconds in which it is used, and its asynchronous one a task
for every request that walks over all tenants: half a millisecond, and a time that grows with the tenants. `Windows`
keeps three numbers for each instead.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from limits import RateLimitItemPerMinute
from limits.storage import SlidingWindowCounterSupport, Storage
from limits.strategies import SlidingWindowCounterRateLimiter

WINDOW_S = 60
_SWEEP_AT = 1_024


class _Counts(NamedTuple):
    """Requests of the window with this number, and of the one before."""

    window: int
    current: int
    previous: int


class Windows(Storage, SlidingWindowCounterSupport):
    """A storage of the library without threads or tasks; `now` is seconds since 1970."""

    STORAGE_SCHEME = None

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._now = now
        self._counts: dict[str, _Counts] = {}
        self._sweep_at = _SWEEP_AT

    def _rolled(self, key: str, window: int) -> _Counts:
        """The counts as of this window."""
        counts = self._counts.get(key)
        if counts is None or counts.window < window - 1:
            return _Counts(window, 0, 0)
        return counts if counts.window == window else _Counts(window, 0, counts.current)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count a request, unless those of the last `expiry` seconds, weighted, would then be more than `limit`."""
        window, passed_s = divmod(self._now(), expiry)
        counts = self._rolled(key, int(window))
        weighted = counts.previous * (1 - passed_s / expiry) + counts.current
        if weighted + amount > limit:
            return False
        self._counts[key] = counts._replace(current=counts.current + amount)
        if len(self._counts) > self._sweep_at:
            self._sweep(int(window))
        return True

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """See the library: requests of the window before and of this one, each with the seconds that it counts yet."""
        window, passed_s = divmod(self._now(), expiry)
        counts = self._rolled(key, int(window))
        return counts.previous, expiry - passed_s, counts.current, 2 * expiry - passed_s

    def _sweep(self, window: int) -> None:
        """Forget whoever has not asked in this window or the one before; seldom, so that it costs nothing a request."""
        self._counts = {key: counts for key, counts in self._counts.items() if counts.window >= window - 1}
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._counts))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget one."""
        self.clear(key)

    def clear(self, key: str) -> None:
        """Forget one."""
        self._counts.pop(key, None)

    def reset(self) -> int | None:
        """Forget all; returns how many there were."""
        forgotten, self._counts = len(self._counts), {}
        return forgotten

    def check(self) -> bool:
        """Whether it can be used."""
        return True

    def get(self, key: str) -> int:
        """Requests of the newest window that is known."""
        counts = self._counts.get(key)
        return 0 if counts is None else counts.current

    def get_expiry(self, key: str) -> float:
        """Never later than now: there is no fixed window here."""
        return self._now()

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count without a bound; returns the count of this window."""
        counts = self._rolled(key, int(self._now() // expiry))
        self._counts[key] = counts._replace(current=counts.current + amount)
        return counts.current + amount

    @property
    def base_exceptions(self) -> type[Exception]:
        """What using it may raise: nothing of its own."""
        return ValueError


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a request is admitted, how many more would be now, and in how many seconds there will be one more."""

    admitted: bool
    remaining: int
    reset_s: int


class Rates:
    """`per_minute` requests of a tenant in any minute, of this process."""

    def __init__(self, per_minute: int, now: Callable[[], float] = time.time) -> None:
        self.per_minute = per_minute
        self._item = RateLimitItemPerMinute(per_minute)
        self._limiter = SlidingWindowCounterRateLimiter(Windows(now))
        self._policy = (b"ratelimit-policy", f'"requests";q={per_minute};w={WINDOW_S}'.encode())

    def take(self, tenant: str) -> RateDecision:
        """Count one request of the tenant, if it is admitted."""
        admitted = self._limiter.hit(self._item, tenant)
        reset_at_s, remaining = self._limiter.get_window_stats(self._item, tenant)
        return RateDecision(admitted, remaining if admitted else 0, max(1, ceil(reset_at_s - time.time())))

    def headers(self, rate: RateDecision) -> list[tuple[bytes, bytes]]:
        """RateLimit and RateLimit-Policy, as draft-ietf-httpapi-ratelimit-headers-11 has them."""
        return [self._policy, (b"ratelimit", f'"requests";r={rate.remaining};t={rate.reset_s}'.encode())]
