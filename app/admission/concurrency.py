"""Bounds the work in hand at once; the rest waits in order, which costs nothing.

An engine that gets all requests at once finishes none in time. The limit grows while work takes no longer than with
little in hand. Once it slows down, the limit is the rate of ends times twice the baseline latency, which keeps the
engine busy. The latency with `LIMIT_MIN` in hand is the baseline, also when other strategies made it longer. Delay as
the sign of congestion is from TCP Vegas (doi:10.1145/190314.190317), rate times latency from BBR (doi:10.1145/3009824).
"""

LIMIT_AT_FIRST = 16
LIMIT_MIN = 4
GAIN_AT_FIRST = 2.0
GAIN = 1.5
SLOWED = 2.0
MISSED_SHARE_MAX = 0.05
ENDS_MIN = 10
# The baseline, the least latency seen, grows so fast with its age.
DRIFT_PER_S = 0.005 / 60


class ConcurrencyLimiter:
    """`limit` bounds the work `in_hand`; it never exceeds `limit_max`. Times are seconds of any one clock."""

    def __init__(self, limit_max: int) -> None:
        self.in_hand = 0
        self.limit = min(LIMIT_AT_FIRST, limit_max)
        self._limit_max = limit_max
        self._gain = GAIN_AT_FIRST
        # The least mean latency seen, and when.
        self._baseline: tuple[float, float] | None = None
        self._since_s: float | None = None
        self._latencies_s: list[float] = []
        self._missed = 0
        self._in_hand_max = 0

    @property
    def free(self) -> bool:
        """Whether one more may begin."""
        return self.in_hand < self.limit

    def begin(self) -> None:
        """Count one more in hand. Above the limit, as for work taken over, it raises the limit up to `limit_max`."""
        self.in_hand += 1
        self.limit = max(self.limit, min(self.in_hand, self._limit_max))
        self._in_hand_max = max(self._in_hand_max, self.in_hand)

    def drop(self) -> None:
        """Count one less in hand without an observation: it was given back or cancelled."""
        self.in_hand -= 1

    def end(self, now_s: float, took_s: float, *, missed: bool = False) -> None:
        """Count one less in hand; it ended, or `missed` its deadline, `took_s` after its beginning."""
        self.in_hand -= 1
        baseline_s = self._baseline_s(now_s)
        if missed and baseline_s is not None and took_s < SLOWED * baseline_s:
            # It began too late; that is no sign of congestion.
            return
        if self._since_s is None:
            self._since_s = now_s - took_s
        if missed:
            self._missed += 1
        else:
            self._latencies_s.append(took_s)
        ends = len(self._latencies_s) + self._missed
        mean_s = sum(self._latencies_s) / len(self._latencies_s) if self._latencies_s else took_s
        # Only work that began under the present limit shows its effect, and only enough of it.
        if ends < min(ENDS_MIN, self.limit / 2) or now_s - self._since_s < mean_s:
            return
        self._adapt(now_s, mean_s, now_s - self._since_s)
        self._since_s, self._in_hand_max, self._missed = now_s, self.in_hand, 0
        self._latencies_s.clear()

    def _adapt(self, now_s: float, mean_s: float, within_s: float) -> None:
        baseline_s = self._baseline_s(now_s)
        few = self._in_hand_max <= min(LIMIT_MIN, self._limit_max)
        if self._latencies_s and (baseline_s is None or mean_s < baseline_s or few):
            self._baseline, baseline_s = (mean_s, now_s), mean_s
        ends = len(self._latencies_s) + self._missed
        if self._missed > MISSED_SHARE_MAX * ends:
            self._lower(0)
        elif baseline_s is not None and mean_s > SLOWED * baseline_s:
            self._lower(int(ends / within_s * SLOWED * baseline_s))
        elif self._in_hand_max >= 0.8 * self.limit:
            self.limit = min(self._limit_max, max(self.limit + 1, int(self.limit * self._gain)))

    def _lower(self, limit: int) -> None:
        # Not below half at once: works that began together end together, and until then the rate seems low.
        self.limit = max(min(LIMIT_MIN, self._limit_max), self.limit // 2, min(self.limit, limit))
        self._gain = GAIN

    def _baseline_s(self, now_s: float) -> float | None:
        if self._baseline is None:
            return None
        mean_s, at_s = self._baseline
        return mean_s * (1 + max(0.0, now_s - at_s) * DRIFT_PER_S)
