"""The position of a viewer in a stream, over any number of connections. Pure: no clock, no network."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from app.client.sse import Frame
from app.deliberation.facts import TERMINAL_STATUS

_CURSOR = re.compile(r"(.+)-([0-9]{1,19})", re.ASCII)
_HEARTBEATS_MISSED = 3


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times in seconds.

    `first_s` precedes the first reconnect, unless the gateway sets `retry:`; it doubles with every failure up to
    `most_s`. `idle_s` bounds the silence of a connection until the gateway states its heartbeat; then the bound is
    three heartbeats. `timeout_s` bounds the silence over all attempts; None means no bound.
    """

    first_s: float = 1.0
    most_s: float = 30.0
    idle_s: float = 30.0
    timeout_s: float | None = 120.0


@dataclass(frozen=True, slots=True)
class Retry:
    """The stream broke for `reason`; reconnect number `attempt` (from 1) follows in `delay_s`."""

    attempt: int
    delay_s: float
    reason: str


class Follower:
    """Decides which frames are new, at which cursor the next connection resumes, and how long to wait for it.

    `cursor` is the id of the last event, None before the first. `of` names the deliberations of a multiplexed stream,
    which has `ended` with the last of them; with an empty `of` it never ends. None is a stream of one deliberation.
    """

    def __init__(self, waits: Waits, of: Collection[str] | None = None) -> None:
        self.cursor: str | None = None
        self.ended = False
        self.idle_s = waits.idle_s
        self.duplicates = 0
        self._waits = waits
        self._retry_s = waits.first_s
        self._position: tuple[str, int] | None = None
        self._of_one = of is None
        self._unended = set(of or ())

    def take(self, frame: Frame) -> bool:
        """Whether a frame has new data. Updates the cursor, delays, heartbeat, and whether the stream has ended."""
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
                # Another log may repeat sequence numbers, so later frames are not duplicates.
                self._position = None
            case kind if kind in TERMINAL_STATUS:
                self.ended = self._of_one or self._is_last(frame)
            case _:
                pass
        return bool(frame.data)

    def _is_last(self, frame: Frame) -> bool:
        """Whether this is the end of the last named deliberation."""
        ended = frame.fields().get("deliberation_id")
        if ended not in self._unended:
            return False
        self._unended.discard(ended)
        return not self._unended

    def _advance(self, id: str) -> bool:
        """Whether an id is new. Sequences increase within one epoch, the part before the last dash."""
        found = _CURSOR.fullmatch(id)
        position = None if found is None else (found[1], int(found[2]))
        last = self._position
        if position is not None and last is not None and position[0] == last[0] and position[1] <= last[1]:
            return False
        self.cursor, self._position = id, position
        return True

    def delay_s(self, attempt: int, retry_after_s: float | None, chance: float) -> float:
        """Seconds before reconnect number `attempt` (from 1) since the last data.

        It is at least the delay that the gateway set (`retry:`, or `retry_after_s` of a refusal). `chance` in [0, 1)
        adds up to half of it as jitter, so that viewers do not reconnect at once.
        """
        grown_s = min(self._retry_s * 2 ** min(attempt - 1, 16), max(self._waits.most_s, self._retry_s))
        return max(grown_s, retry_after_s or 0.0) * (1 + chance / 2)
