"""Limits on requests to failing or slow engines: a circuit per engine, a retry budget, and hedges after p95.

No I/O; `now_s` is a monotonic clock's. The circuit is Nygard's (Release It!, 2007), the budget Google's (SRE book, ch.
21). The hedge is Dean and Barroso's (The Tail at Scale, CACM 56.2).
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

FAILURES_TO_OPEN = 3
OPEN_S = 0.5
OPEN_MAX_S = 5.0
RETRY_SHARE = 0.1
RETRIES_PER_S = 1.0
RETRIES_SAVED_MAX = 20.0
HEDGE_SHARE = 0.02
HEDGE_AFTER = 0.95
SAMPLES = 200
SAMPLES_MIN = 20

CircuitPhase = Literal["closed", "open", "half_open"]


@dataclass(slots=True)
class Circuit:
    """Closed while an engine answers, opened by failures in a row, then half open for one probing request at a time.

    `unreachable` says that the last failure was one of the engine's connection.
    """

    failures: int = 0
    unreachable: bool = False
    failing_since_s: float | None = None
    open_for_s: float = OPEN_S
    opened_until_s: float | None = None
    probing: bool = False

    def state(self, now_s: float) -> CircuitPhase:
        if self.opened_until_s is None:
            return "closed"
        return "open" if now_s < self.opened_until_s else "half_open"

    def admits(self, now_s: float) -> bool:
        return self.opened_until_s is None or (now_s >= self.opened_until_s and not self.probing)

    def begin(self) -> None:
        self.probing = self.opened_until_s is not None

    def reached(self) -> None:
        """Record that the engine has begun to answer: other requests need not wait for the end of the answer."""
        self.open_for_s, self.opened_until_s, self.probing = OPEN_S, None, False

    def succeeded(self) -> None:
        self.reached()
        self.failures, self.failing_since_s, self.unreachable = 0, None, False

    def connected(self) -> None:
        """Record that the engine answered a probe: it ends an outage, and closes no circuit that requests opened."""
        if self.unreachable or not self.failures:
            self.succeeded()

    def failed(self, now_s: float, *, unreachable: bool) -> None:
        """Record a failure; an `unreachable` engine opens the circuit at once."""
        self.failures += 1
        self.unreachable = unreachable
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        if self.probing:
            self.open_for_s = min(2 * self.open_for_s, OPEN_MAX_S)
        if unreachable or self.probing or self.failures >= FAILURES_TO_OPEN:
            self.opened_until_s = now_s + self.open_for_s
        self.probing = False

    def ended(self) -> None:
        """Record the end of a request, whatever it was: the next one may probe."""
        self.probing = False


@dataclass(slots=True)
class RetryBudget:
    """Retries after refusals: a tenth of the traffic, and one a second. `saved` below 0 counts those that wait."""

    saved: float = RETRIES_SAVED_MAX / 2
    counted_at_s: float | None = None

    def deposit(self) -> None:
        self.saved = min(RETRIES_SAVED_MAX, self.saved + RETRY_SHARE)

    def withdraw(self, now_s: float) -> float:
        if self.counted_at_s is not None:
            self.saved = min(RETRIES_SAVED_MAX, self.saved + (now_s - self.counted_at_s) * RETRIES_PER_S)
        self.counted_at_s = now_s
        self.saved -= 1
        return max(0.0, -self.saved / RETRIES_PER_S)

    def refund(self) -> None:
        self.saved = min(RETRIES_SAVED_MAX, self.saved + 1)


@dataclass(slots=True)
class Hedges:
    """Hedges after the 95th percentile of like calls, for 2 % of calls."""

    calls: int = 0
    made: int = 0
    _samples_s: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=SAMPLES)))

    def answered(self, kind: str, seconds: float) -> None:
        self.calls += 1
        self._samples_s[kind].append(seconds)

    def after_s(self, kind: str) -> float | None:
        samples = sorted(self._samples_s[kind])
        return None if len(samples) < SAMPLES_MIN else samples[ceil(HEDGE_AFTER * len(samples)) - 1]

    def acquire(self) -> bool:
        if self.made + 1 > HEDGE_SHARE * self.calls:
            return False
        self.made += 1
        return True
