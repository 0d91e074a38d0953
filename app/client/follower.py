"""Where a viewer of a stream stands, over any number of connections. Pure: no clock, no network."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from app.client.sse import Frame
from app.deliberation.facts import TERMINAL_STATUS

_CURSOR = re.compile(r"(.+)-([0-9]{1,19})", re.ASCII)
_HEARTBEATS_MISSED = 3


@dataclass(frozen=True, slots=True)
class Waits:
    """How long is waited, in seconds.

    `first_s` before the first reconnect, until the gateway says otherwise by `retry:`; it doubles with every failure,
    up to `most_s`. `idle_s` is how long a connection may be silent, until the gateway has told its heartbeat; then it
    is three of those. `patience_s` bounds how long nothing at all may come, over all attempts; None is for ever.
    """

    first_s: float = 1.0
    most_s: float = 30.0
    idle_s: float = 30.0
    patience_s: float | None = 120.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The stream broke: `attempt` (from 1) follows in `delay_s`, because of `reason`."""

    attempt: int
    delay_s: float
    reason: str


class Follower:
    """Decides what of a stream is shown, where the next connection goes on, and how long to wait for it.

    `cursor` is the id of the last event that was shown or passed over, None before there is one. A stream `of` several
    deliberations has `ended` with the last of them, one of all (an empty collection) never; None is a stream of one.
    """

    def __init__(self, waits: Waits, of: Collection[str] | None = None) -> None:
        self.cursor: str | None = None
        self.ended = False
        self.idle_s = waits.idle_s
        self.duplicates = 0
        self._waits = waits
        self._retry_s = waits.first_s
        self._shown: tuple[str, int] | None = None
        self._of_one = of is None
        self._unended = set(of or ())

    def take(self, frame: Frame) -> bool:
        """Whether a frame is to be shown. Moves the cursor; heeds `retry:`, the heartbeat, gaps and the end."""
        if frame.retry_ms is not None:
            self._retry_s = frame.retry_ms / 1_000
        if frame.id is not None and not self._advance(frame.id):
            self.duplicates += 1
            return False
        match frame.event:
            case "stream.opened":
                heartbeat_s = frame.fields().get("heartbeat_s")
                if isinstance(heartbeat_s, int | float) and heartbeat_s > 0:
                    self.idle_s = _HEARTBEATS_MISSED * heartbeat_s
            case "stream.gap":
                # Another log may give the same numbers out again: nothing that follows is a duplicate.
                self._shown = None
            case kind if kind in TERMINAL_STATUS:
                self.ended = self._of_one or self._is_last(frame)
            case _:
                pass
        return bool(frame.data)

    def _is_last(self, frame: Frame) -> bool:
        """Whether this end is that of the last of the deliberations that are named, and have not ended."""
        ended = frame.fields().get("deliberation_id")
        if ended not in self._unended:
            return False
        self._unended.discard(ended)
        return not self._unended

    def _advance(self, id: str) -> bool:
        """Whether an id is new; sequences only grow within one epoch, the part before the last dash."""
        found = _CURSOR.fullmatch(id)
        place = None if found is None else (found[1], int(found[2]))
        shown = self._shown
        if place is not None and shown is not None and place[0] == shown[0] and place[1] <= shown[1]:
            return False
        self.cursor, self._shown = id, place
        return True

    def delay_s(self, attempt: int, retry_after_s: float | None, chance: float) -> float:
        """Seconds before reconnect number `attempt` (from 1) since the last sign of life.

        At least what the gateway asked for (`retry:`, or `retry_after_s` of a refusal). `chance` in [0, 1) adds up to
        half of it, so that viewers do not come back all at once.
        """
        grown_s = min(self._retry_s * 2 ** min(attempt - 1, 16), max(self._waits.most_s, self._retry_s))
        return max(grown_s, retry_after_s or 0.0) * (1 + chance / 2)
