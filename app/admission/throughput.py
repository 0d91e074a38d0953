"""How fast work ends while other work waits.

Without saturation, the rate of ends is not the capacity. Throughput is therefore measured over saturated time alone:
while the oldest work that has not begun has waited for `WAITED_S`. The log and a free coordinator need less. Before
enough work has ended in saturated time, Little's law gives an upper bound: the work in hand, over its latency.
"""

from collections import deque

Key = tuple[str, str]

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
        """Work that is accepted and unfinished."""
        return len(self.waiting) + len(self.in_hand)

    def head_waited_s(self, now_s: float) -> float:
        """Seconds that the oldest work which has not begun has waited; 0 when none waits."""
        return max(0.0, now_s - next(iter(self.waiting.values()), now_s))

    def accept(self, key: Key, at_s: float, now_s: float) -> None:
        """Work was accepted."""
        self._measure(now_s)
        self.waiting[key] = at_s

    def begin(self, key: Key, at_s: float, now_s: float) -> None:
        """Accepted work has begun. Idempotent."""
        self._measure(now_s)
        if self.waiting.pop(key, None) is not None:
            self.in_hand[key] = at_s

    def remove(self, key: Key, now_s: float, *, done_at_s: float | None = None) -> None:
        """Work is no longer unfinished. Cancelled or late work was not done, and says nothing of the throughput."""
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
        """The log has been read, in another order than that of events: order the waiting work, and measure anew."""
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
        """Ends per second lately, saturated or not, for people to read; None when fewer than two have ended."""
        recent = [at_s for at_s in self._observed if at_s > now_s - OBSERVED_S]
        return len(recent) / max(1.0, now_s - recent[0]) if len(recent) > 1 else None

    def _measure(self, now_s: float) -> None:
        """Add the saturated time since the last event, through which the same work was the oldest that waits."""
        since_s = max(self._measured_to_s, next(iter(self.waiting.values()), now_s) + WAITED_S)
        self._saturated_s += max(0.0, now_s - since_s)
        self._measured_to_s = max(self._measured_to_s, now_s)
