"""When to come back: what refused clients are told, and the places that are kept for those who do as they are told.

If everybody were told when the next place is free, all would come then, and all but one would have waited in vain. So
each is told a moment of its own, one after the other at the rate at which places become free, and around that moment a
place is kept for it. It is known by its Idempotency-Key, that is by the id of what it asks for; without one it is told
a moment, but nothing can be kept. Kept places are few, and soon given away: most clients never come back. And the fewer
do, the closer together the moments are that others are told, for whoever does not come leaves its place to the next:
at most twice as close, since those who come next may all come back. A line that is full of those who will not come
helps nobody who does; then moments are told that lie evenly over it.

The line is one for all gateways: each tells the others what it has promised, for whoever comes back may come to another
one. A word that is lost costs its client a second wait, and nothing else.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import structlog
from pydantic import FiniteFloat, TypeAdapter, ValidationError

from app.deliberation.ports import Control

WAIT_MAX_S = 120
# A client may come as much earlier, its clock or ours being rounded, and later by a share of its wait and some seconds.
EARLY_S = 1.0
LATE_SHARE = 0.2
LATE_S = 3.0
# Of the places that there are; the rest is for whoever comes.
KEPT_SHARE_MAX = 0.2
TOLD_MAX = 20_000
# The clocks of two gateways may differ by so much.
AHEAD_S = 5.0
# The share of those who come back is learned from about so many of them. It is never thought to be less than a half:
# when clients that come back follow on a flood of others, as many too many are told to come as there is room for.
LEARNED_FROM = 50
COMING_MIN = 0.5
# The fractional parts of its multiples lie evenly between 0 and 1, however many there are.
GOLDEN = 0.6180339887498949
SUBJECT = "control.promises"
UNTOLD_MAX = 1_000

Key = tuple[str, str]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True, order=True)
class Promise:
    """A moment that was told in a line, and the time around it in which a place is kept."""

    line: str
    key: Key
    at_s: FiniteFloat
    from_s: FiniteFloat
    until_s: FiniteFloat


_PROMISE = TypeAdapter(Promise)


class Line:
    """Those who were refused by one bound, and the moments that they were told; times are POSIX seconds.

    `announce` is called with each that is promised here.
    """

    def __init__(self, name: str, announce: Callable[[Promise], None]) -> None:
        self._name = name
        self._announce = announce
        self._last_s, self._coming, self._among = 0.0, 1.0, 0.0
        self._told: dict[Key, Promise] = {}
        self._open: dict[Key, Promise] = {}
        # Those that are not open yet by when they open, and those that are by when they close.
        self._opening: list[tuple[float, Promise]] = []
        self._closing: list[tuple[float, Promise]] = []

    def tell(self, key: Key | None, now_s: float, per_s: float, ahead: float) -> int:
        """Seconds after which to come back, when places become free at `per_s` and `ahead` others are before it."""
        told = self._told.get(key) if key else None
        if told is not None and told.from_s > now_s:
            # It came too early: its moment stays.
            return ceil(told.from_s + EARLY_S - now_s)
        self._turn(now_s)
        if key is not None:
            # It came, and there was no place all the same.
            self.fulfil(key)
        at_s = max(now_s + 1, now_s + ahead / per_s, self._last_s + max(COMING_MIN, self._coming) / per_s)
        if at_s <= now_s + WAIT_MAX_S:
            self._last_s = at_s
        elif self._coming >= COMING_MIN:
            # So far ahead nothing is promised, and the line does not get longer.
            return WAIT_MAX_S
        else:
            # Most of those in the line will not come, so that any moment in it is as good as another.
            self._among = (self._among + GOLDEN) % 1
            at_s = now_s + 1 + self._among * (WAIT_MAX_S - 1)
        wait_s = ceil(at_s - now_s)
        if key and len(self._told) < TOLD_MAX:
            late_s = now_s + wait_s * (1 + LATE_SHARE) + LATE_S
            promise = Promise(self._name, key, at_s, now_s + wait_s - EARLY_S, late_s)
            self._keep(promise)
            self._announce(promise)
        return wait_s

    def heard(self, promise: Promise) -> None:
        """Another gateway has promised it, or this one hears itself. Idempotent."""
        self._last_s = max(self._last_s, promise.at_s)
        if self._told.get(promise.key) != promise and len(self._told) < TOLD_MAX:
            self._keep(promise)

    def _keep(self, promise: Promise) -> None:
        self._open.pop(promise.key, None)
        self._told[promise.key] = promise
        heappush(self._opening, (promise.from_s, promise))

    def holds(self, key: Key | None, now_s: float) -> bool:
        """Whether it is this one's moment."""
        self._turn(now_s)
        return key in self._open

    def kept(self, now_s: float, places: int) -> int:
        """Places of so many that are kept for those whose moment it is."""
        self._turn(now_s)
        return min(len(self._open), max(min(1, places - 1), int(places * KEPT_SHARE_MAX)))

    def fulfil(self, key: Key) -> None:
        """It came, and what it was told is over. Idempotent."""
        if self._told.pop(key, None) is not None:
            self._learn(came=True)
        self._open.pop(key, None)

    def _learn(self, *, came: bool) -> None:
        self._coming += (came - self._coming) / LEARNED_FROM

    def _turn(self, now_s: float) -> None:
        """Open those whose moment has come, and forget those whose moment is over."""
        while self._opening and self._opening[0][0] <= now_s:
            promise = heappop(self._opening)[1]
            if self._told.get(promise.key) is promise:
                self._open[promise.key] = promise
                heappush(self._closing, (promise.until_s, promise))
        while self._closing and self._closing[0][0] < now_s:
            promise = heappop(self._closing)[1]
            if self._open.get(promise.key) is promise:
                del self._open[promise.key], self._told[promise.key]
                self._learn(came=False)


class Promises:
    """The lines by name, one for each bound that refuses: places behind one bound are of no use behind another."""

    def __init__(self) -> None:
        self.announce: Callable[[Promise], None] | None = None
        self._lines: dict[str, Line] = {}

    def _announced(self, promise: Promise) -> None:
        if self.announce is not None:
            self.announce(promise)

    def _line(self, name: str) -> Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(name, self._announced)
        return line

    def tell(self, line: str, key: Key | None, now_s: float, per_s: float, ahead: float) -> int:
        """See `Line.tell`."""
        return self._line(line).tell(key, now_s, per_s, ahead)

    def holds(self, line: str, key: Key | None, now_s: float) -> bool:
        """Whether it is this one's moment in that line."""
        return line in self._lines and self._lines[line].holds(key, now_s)

    def kept(self, line: str, now_s: float, places: int) -> int:
        """See `Line.kept`."""
        return self._lines[line].kept(now_s, places) if line in self._lines else 0

    def fulfil(self, lines: Iterable[str], key: Key) -> None:
        """It was let in. Idempotent."""
        for line in lines:
            if line in self._lines:
                self._lines[line].fulfil(key)

    def heard(self, promise: Promise, now_s: float) -> None:
        """Another gateway has promised it, or this one hears itself. Idempotent.

        What lies further ahead than anybody is told is the word of a clock that is ahead, and of no use here.
        """
        if promise.at_s <= now_s + WAIT_MAX_S + AHEAD_S and promise.until_s >= now_s:
            self._line(promise.line).heard(promise)

    def clear(self) -> None:
        """Forget everything."""
        self._lines.clear()


async def share(promises: Promises, heard: Callable[[Promise], None], control: Control) -> None:
    """Tell the other gateways what is promised here, and have `heard` take what they promise, until cancelled."""
    untold: asyncio.Queue[Promise] = asyncio.Queue(UNTOLD_MAX)

    def take(data: bytes) -> None:
        try:
            promise = _PROMISE.validate_json(data)
        except ValidationError as exc:
            log.warning("promise_unreadable", error=str(exc))
            return
        heard(promise)

    def announce(promise: Promise) -> None:
        if not untold.full():
            untold.put_nowait(promise)

    await control.hear(SUBJECT, take)
    promises.announce = announce
    while True:
        await control.tell(SUBJECT, _PROMISE.dump_json(await untold.get()))
