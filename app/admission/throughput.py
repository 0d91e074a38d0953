"""How fast work ends, how much of it may be taken on so that it ends in time, and how much may be in hand at once.

Two bounds that learn, without a model of engines or strategies. `ThroughputEstimator` is for the door: by Little's law
what is in the house leaves after depth over rate, so the depth that is in time is the rate of ends times a share of
the deadline. `ConcurrencyLimiter` is for the hand that starts work: it starts more as long as work takes no longer
than it did with less in hand, and else as much as keeps everything busy: the rate times twice what unhindered work
takes. The rest waits in order, where it costs nothing, instead of all being half done when its time is over. Both are
the reasoning of congestion control, for which delay is the sign: TCP Vegas (doi:10.1145/190314.190317) and BBR
(doi:10.1145/3009824).

Times are POSIX seconds, and arguments.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

# Of the deadline: rates are measured over seconds and swing, and what waits must still be done.
DEADLINE_SHARE = 0.5
# As much of it for who was told to come: that must hold while rates swing.
PROMISED_SHARE = 0.8
# The most that a bound may make of a deadline where even an empty house takes about that long.
DEADLINE_SHARE_MAX = 0.9
SLOWED = 1.5
MISSED_SHARE_MAX = 0.05
DEPTH_MIN = 4
BURST = 64
# The shortest window in which so many ends lie tells the rate: (seconds, ends).
WINDOWS = ((5, 20), (10, 20), (20, 20), (40, 10), (80, 10), (160, 5), (320, 5))
STEADY = 4
ENDS_MAX = 16_384
BLOCK = 20
# What unhindered work takes is the least that was seen, and is doubted a little more with every minute.
DRIFT_PER_S = 0.005 / 60

GRIP_AT_FIRST = 16
GRIP_MIN = 4
GRIP_GAIN_AT_FIRST = 2.0
GRIP_GAIN = 1.5
GRIP_SLOWED = 2.0
GRIP_ENDS_MIN = 10


class BaselineLatency:
    """What work takes when nothing is in its way: the least mean that was told, doubted more the longer ago."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._took_s: float | None = None

    def tell(self, at_s: float, mean_s: float) -> None:
        """So long did a number of ends take, on average."""
        known_s = self.took_s(at_s)
        if known_s is None or mean_s < known_s:
            self._at_s, self._took_s = at_s, mean_s

    def took_s(self, now_s: float) -> float | None:
        """Seconds; None while nothing was told."""
        if self._took_s is None:
            return None
        return self._took_s * (1 + max(0.0, now_s - self._at_s) * DRIFT_PER_S)


@dataclass(frozen=True, slots=True)
class Rate:
    """Ends per second lately and steadily (over a longer time), the seconds to them, and whether they slowed down."""

    per_s: float
    steady_per_s: float
    took_s: float
    slowed: bool


class ThroughputEstimator:
    """The pace of one kind of work, from its acceptance to its end; `cold_depth` bounds it while nothing is known."""

    def __init__(self, cold_depth: int) -> None:
        self._cold_depth = cold_depth
        self._ends: list[tuple[float, float]] = []
        self._missed: list[float] = []
        self._busy_since_s = 0.0
        self._unhindered = BaselineLatency()
        self._block: list[float] = []

    def began(self, at_s: float) -> None:
        """Work came when there was none: what ended before tells nothing of what can be done steadily."""
        self._busy_since_s = at_s

    def settle(self, since_s: float) -> None:
        """All ends are known now, and there has been work since `since_s`, or before that without a gap."""
        for at_s, took_s in reversed(self._ends):
            if at_s < since_s:
                break
            since_s = min(since_s, at_s - took_s)
        self._busy_since_s = since_s

    def ended(self, at_s: float, took_s: float) -> None:
        """Work was done that had been accepted `took_s` before."""
        insort(self._ends, (at_s, took_s))
        if len(self._ends) > ENDS_MAX:
            del self._ends[: ENDS_MAX // 2]
        self._block.append(took_s)
        if len(self._block) == BLOCK:
            self._unhindered.tell(at_s, sum(self._block) / BLOCK)
            self._block.clear()

    def missed(self, at_s: float, took_s: float) -> None:
        """Work that had been accepted `took_s` before was given up because its deadline passed."""
        unhindered_s = self._unhindered.took_s(at_s)
        if unhindered_s is not None and took_s < SLOWED * unhindered_s:
            # It could not have ended in time in an empty house either.
            return
        insort(self._missed, at_s)
        if len(self._missed) > ENDS_MAX:
            del self._missed[: ENDS_MAX // 2]

    def rate(self, now_s: float) -> Rate | None:
        """How fast work ends now; None when too little has ended lately to tell."""
        for window_s, ends_min in WINDOWS:
            first = bisect_left(self._ends, (now_s - window_s, 0.0))
            ends = len(self._ends) - first
            if ends >= ends_min:
                recent = self._ends[max(first, len(self._ends) - BLOCK) :]
                took_s = sum(took_s for _, took_s in recent) / len(recent)
                unhindered_s = self._unhindered.took_s(now_s) or took_s
                missed = len(self._missed) - bisect_left(self._missed, now_s - window_s)
                slowed = took_s > SLOWED * unhindered_s or missed > max(1, MISSED_SHARE_MAX * ends)
                return Rate(ends / window_s, self._steady_per_s(now_s, window_s), took_s, slowed)
        return None

    def freed_per_s(self, now_s: float, timeout_s: float, bound: int, *, given: bool) -> float:
        """How many places of `bound` become free in a second while all are taken, of work with this deadline.

        A `given` bound was set; another one follows from the rate, and may grow with it.
        """
        rate = self.rate(now_s)
        if rate is not None and rate.slowed:
            return min(rate.per_s, rate.steady_per_s)
        if rate is not None and given:
            return rate.per_s
        # What could be done was never seen; that what was let in ends in time is what it was let in for.
        return max(bound / (timeout_s * DEADLINE_SHARE), rate.per_s if rate else 0.0)

    def _steady_per_s(self, now_s: float, window_s: float) -> float:
        """As over a longer window, of which the time without work is left out."""
        steady_s = max(window_s, min(STEADY * window_s, now_s - self._busy_since_s))
        return (len(self._ends) - bisect_left(self._ends, (now_s - steady_s, 0.0))) / steady_s

    def depth_max(self, now_s: float, timeout_s: float, *, promised: bool = False) -> int:
        """How much may be in the house for one more with this deadline, that may have been promised a place."""
        rate = self.rate(now_s)
        if rate is None:
            return self._cold_depth
        in_time_s = timeout_s * (PROMISED_SHARE if promised else DEADLINE_SHARE)
        if not rate.slowed:
            # The rate is what was asked for, not what could be done: twice of what is there may be.
            return max(min(BURST, self._cold_depth), int(rate.per_s * max(in_time_s, 2 * rate.took_s)))
        # What was begun together ends together, so that the rate swings: the lower one is the safe one.
        in_time = int((rate.steady_per_s if promised else min(rate.per_s, rate.steady_per_s)) * in_time_s)
        # Never less than keeps everything busy, unless that is out of time already.
        unhindered_s = self._unhindered.took_s(now_s) or rate.took_s
        busy = int(rate.per_s * min(SLOWED * unhindered_s, timeout_s * DEADLINE_SHARE_MAX))
        return max(min(DEPTH_MIN, self._cold_depth), in_time, busy)


class ConcurrencyLimiter:
    """How much work may be in hand at once, from its beginning to its end; `most` is never exceeded."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._bound = min(GRIP_AT_FIRST, most)
        self._gain = GRIP_GAIN_AT_FIRST
        self._unhindered = BaselineLatency()
        self._since_s: float | None = None
        self._tooks: list[float] = []
        self._missed = 0
        self._fullest = 0

    @property
    def held(self) -> int:
        """What is in hand."""
        return self._held

    @property
    def bound(self) -> int:
        """What may be, at present."""
        return self._bound

    @property
    def free(self) -> bool:
        """Whether one more may be taken in hand."""
        return self._held < self._bound

    def take(self) -> None:
        """One more is in hand, also when there was no room: what was begun before goes on, and proves the room."""
        self._held += 1
        self._bound = max(self._bound, min(self._held, self._most))
        self._fullest = max(self._fullest, self._held)

    def drop(self) -> None:
        """One is no longer in hand, and tells nothing: it was given back or stopped."""
        self._held -= 1

    def ended(self, now_s: float, took_s: float, *, missed: bool = False) -> None:
        """One that was begun `took_s` before was worked on to its end, or until it `missed` its deadline."""
        self._held -= 1
        unhindered_s = self._unhindered.took_s(now_s)
        if missed and unhindered_s is not None and took_s < GRIP_SLOWED * unhindered_s:
            # It was begun too late, which tells nothing of how much was in hand beside it.
            return
        if self._since_s is None:
            self._since_s = now_s - took_s
        if missed:
            self._missed += 1
        else:
            self._tooks.append(took_s)
        ends = len(self._tooks) + self._missed
        mean_s = sum(self._tooks) / len(self._tooks) if self._tooks else took_s
        # Told by enough of those that were begun under the present bound, and not before.
        if ends < min(GRIP_ENDS_MIN, self._bound / 2) or now_s - self._since_s < mean_s:
            return
        self._decide(now_s, mean_s, ends)
        self._since_s, self._fullest, self._missed = now_s, self._held, 0
        self._tooks.clear()

    def _decide(self, now_s: float, mean_s: float, ends: int) -> None:
        assert self._since_s is not None, "something has ended"
        if self._tooks:
            self._unhindered.tell(now_s, mean_s)
        unhindered_s = self._unhindered.took_s(now_s)
        if self._missed > MISSED_SHARE_MAX * ends:
            self._loosen(0)
        elif unhindered_s is not None and mean_s > GRIP_SLOWED * unhindered_s:
            self._loosen(int(ends / (now_s - self._since_s) * GRIP_SLOWED * unhindered_s))
        elif self._fullest >= 0.8 * self._bound:
            self._bound = min(self._most, max(self._bound + 1, int(self._bound * self._gain)))

    def _loosen(self, bound: int) -> None:
        # Not below half at once: what was begun together ends together, and until then the rate seems low.
        self._bound = max(min(GRIP_MIN, self._most), self._bound // 2, min(self._bound, bound))
        self._gain = GRIP_GAIN
