"""What keeps a failing engine from being hammered: a circuit per engine, a budget of retries, and hedges after p95.

Decided here, without I/O; `now_s` is a monotonic clock's. The circuit is Nygard's (Release It!, 2007), the budget is
that of Google's SRE book (ch. 21, retries up to a tenth of the traffic), the hedge is Dean and Barroso's (The Tail at
Scale, CACM 56.2: after the 95th percentile, at most 2 % more requests).
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
    """Closed while an engine answers; opened by failures in a row; then one request at a time may try it again."""

    failures: int = 0
    open_for_s: float = OPEN_S
    opened_until_s: float | None = None
    trying: bool = False

    def state(self, now_s: float) -> CircuitPhase:
        """As operators read it."""
        if self.opened_until_s is None:
            return "closed"
        return "open" if now_s < self.opened_until_s else "half_open"

    def admits(self, now_s: float) -> bool:
        """Whether a request may be sent now."""
        return self.opened_until_s is None or (now_s >= self.opened_until_s and not self.trying)

    def begin(self) -> None:
        """A request is sent; of a circuit that was open, the one that tries."""
        self.trying = self.opened_until_s is not None

    def reached(self) -> None:
        """The engine has begun to answer: it is there, and others need not wait until the answer is whole."""
        self.open_for_s, self.opened_until_s, self.trying = OPEN_S, None, False

    def succeeded(self) -> None:
        """The engine answered, whatever it said."""
        self.reached()
        self.failures = 0

    def failed(self, now_s: float, *, away: bool) -> None:
        """The engine failed; one that cannot even be reached (`away`) opens the circuit at once."""
        self.failures += 1
        if self.trying:
            self.open_for_s = min(2 * self.open_for_s, OPEN_MAX_S)
        if away or self.trying or self.failures >= FAILURES_TO_OPEN:
            self.opened_until_s = now_s + self.open_for_s
        self.trying = False

    def abandoned(self) -> None:
        """The request was stopped before anything was known: somebody else may try."""
        self.trying = False


@dataclass(slots=True)
class RetryBudget:
    """Retries that an engine's refusals may cost: a tenth of the traffic, and one a second where there is little."""

    saved: float = RETRIES_SAVED_MAX / 2
    counted_at_s: float | None = None

    def first_attempt(self) -> None:
        """A call is made for the first time: a tenth of a retry is earned."""
        self.saved = min(RETRIES_SAVED_MAX, self.saved + RETRY_SHARE)

    def wait_s(self, now_s: float) -> float:
        """Take one retry; returns after how many seconds it may be made."""
        if self.counted_at_s is not None:
            self.saved = min(RETRIES_SAVED_MAX, self.saved + (now_s - self.counted_at_s) * RETRIES_PER_S)
        self.counted_at_s = now_s
        self.saved -= 1
        return max(0.0, -self.saved / RETRIES_PER_S)


@dataclass(slots=True)
class Hedges:
    """When a second engine is asked beside the first: after the 95th percentile of like calls, for 2 % of calls."""

    calls: int = 0
    made: int = 0
    _samples_s: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(lambda: deque(maxlen=SAMPLES)))

    def answered(self, kind: str, seconds: float) -> None:
        """A call of this kind took so long."""
        self.calls += 1
        self._samples_s[kind].append(seconds)

    def after_s(self, kind: str) -> float | None:
        """After how many seconds a call of this kind may be hedged; None while too little is known."""
        samples = sorted(self._samples_s[kind])
        return None if len(samples) < SAMPLES_MIN else samples[ceil(HEDGE_AFTER * len(samples)) - 1]

    def take(self) -> bool:
        """Whether one more hedge keeps within the share; counts it if so."""
        if self.made + 1 > HEDGE_SHARE * self.calls:
            return False
        self.made += 1
        return True
