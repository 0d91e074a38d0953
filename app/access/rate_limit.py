"""The request rate of each tenant in this process: a sliding window approximated by two counters.

The current minute's requests count in full, the previous minute's by the share of it that the last 60 seconds overlap.
Source: https://blog.cloudflare.com/counting-things-a-lot-of-different-things.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

WINDOW_S = 60
_SWEEP_AT = 1_024


class _Counts(NamedTuple):
    window: int
    current: int
    previous: int

    def rolled_to(self, window: int) -> "_Counts":
        if self.window == window:
            return self
        return _Counts(window, 0, self.current if self.window == window - 1 else 0)


@dataclass(frozen=True, slots=True)
class RateDecision:
    """The admission of one request: how many more the window holds, and the seconds until it holds another one."""

    admitted: bool
    remaining: int
    reset_s: int


class Rates:
    def __init__(self, per_minute: int, now: Callable[[], float] = time.time) -> None:
        self.per_minute = per_minute
        self._now = now
        self._counts: dict[str, _Counts] = {}
        self._sweep_at = _SWEEP_AT
        self._policy = (b"ratelimit-policy", f'"requests";q={per_minute};w={WINDOW_S}'.encode())

    def admit(self, tenant: str) -> RateDecision:
        number, passed_s = divmod(self._now(), WINDOW_S)
        window = int(number)
        counts = self._counts.get(tenant, _Counts(window, 0, 0)).rolled_to(window)
        weighted = counts.previous * (1 - passed_s / WINDOW_S) + counts.current
        admitted = weighted + 1 <= self.per_minute
        if admitted:
            counts = self._counts[tenant] = counts._replace(current=counts.current + 1)
            if len(self._counts) > self._sweep_at:
                self._sweep(window)
        remaining = floor(self.per_minute - weighted - 1) if admitted else 0
        return RateDecision(admitted, remaining, _reset_s(counts, WINDOW_S - passed_s))

    def _sweep(self, window: int) -> None:
        """Forget tenants without a request in two windows, at a constant cost per request."""
        self._counts = {tenant: counts for tenant, counts in self._counts.items() if counts.window >= window - 1}
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._counts))

    def headers(self, rate: RateDecision) -> list[tuple[bytes, bytes]]:
        """RateLimit and RateLimit-Policy, as draft-ietf-httpapi-ratelimit-headers-11 has them."""
        return [self._policy, (b"ratelimit", f'"requests";r={rate.remaining};t={rate.reset_s}'.encode())]


def _reset_s(counts: _Counts, left_s: float) -> int:
    """Seconds until the weighted count falls by one, with `left_s` left of the window."""
    waits_s = [left_s] if counts.current else []
    if counts.previous:
        waits_s.append(left_s % (WINDOW_S / counts.previous))
    return max(1, ceil(min(waits_s, default=0.0)))
