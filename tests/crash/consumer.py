"""A durable consumer as nats-server 2.15.1 runs it, in memory."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

_NANOSECOND = 1e-9
# The state is written to disk at most this often; a kill loses later changes.
FLUSH_S = 0.1

Deliver = Callable[[str, int, int, int], bool]
"""Send (inbox, stream sequence, deliveries, place in the consumer); False when no client subscribes to the inbox."""


@dataclass(eq=False)
class Pull:
    inbox: str
    left: int
    expires_s: float
    heartbeat_s: float
    timers: list[asyncio.TimerHandle] = field(default_factory=list[asyncio.TimerHandle])

    @classmethod
    def of(cls, body: dict[str, Any], inbox: str) -> Self:
        return cls(inbox, body["batch"], body["expires"] * _NANOSECOND, body["idle_heartbeat"] * _NANOSECOND)

    def end(self) -> None:
        for timer in self.timers:
            timer.cancel()


@dataclass(eq=False)
class _Outstanding:
    deliveries: int
    flushed_at_s: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def rest(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Consumer:
    """Delivers sequences until they are acknowledged, by any client that has ever held the message.

    `send_status(inbox, headers)` sends a status to a pull.
    """

    def __init__(self, ack_wait_s: float, deliver: Deliver, send_status: Callable[[str, dict[str, str]], bool]) -> None:
        self.acknowledged: list[int] = []
        self._ack_wait_s = ack_wait_s
        self._deliver = deliver
        self._send_status = send_status
        self._new: deque[int] = deque()
        self._again: deque[int] = deque()
        self._outstanding: dict[int, _Outstanding] = {}
        self._pulls: deque[Pull] = deque()
        self._place = 0
        self._flush_s = float("-inf")
        self._up = True

    def info(self) -> dict[str, Any]:
        unsettled = min([*self._outstanding, *self._new], default=float("inf"))
        floor = max((each for each in self.acknowledged if each < unsettled), default=0)
        return {
            "num_pending": len(self._new),
            "num_ack_pending": len(self._outstanding),
            "ack_floor": {"stream_seq": floor},
        }

    @property
    def empty(self) -> bool:
        return not self._new and not self._outstanding

    def add(self, sequence: int) -> None:
        self._new.append(sequence)
        self._serve()

    def pull(self, pull: Pull) -> None:
        loop = asyncio.get_running_loop()
        pull.timers.append(loop.call_later(pull.expires_s, self._expired, pull))
        pull.timers.append(loop.call_later(pull.heartbeat_s, self._heartbeat, pull))
        self._pulls.append(pull)
        self._serve()

    def again(self, sequence: int) -> bool:
        if sequence not in self._outstanding:
            return False
        self._due(sequence)
        return True

    @property
    def held(self) -> list[int]:
        return list(self._outstanding)

    def acknowledge(self, sequence: int, word: bytes) -> None:
        held = self._outstanding.get(sequence)
        if held is None:
            return
        if word == b"+ACK":
            held.rest()
            del self._outstanding[sequence]
            self._unqueue(sequence)
            self.acknowledged.append(sequence)
        elif word == b"+WPI":
            self._unqueue(sequence)
            self._wait(sequence, self._ack_wait_s)
        elif word.startswith(b"-NAK"):
            self._unqueue(sequence)
            delay_ns = 0 if word == b"-NAK" else json.loads(word[5:])["delay"]
            self._wait(sequence, delay_ns * _NANOSECOND)
        else:
            raise AssertionError(f"unknown word {word!r}")

    def forget(self, sequence: int) -> None:
        if sequence in self._new:
            self._new.remove(sequence)
        if (held := self._outstanding.pop(sequence, None)) is not None:
            held.rest()
            self._unqueue(sequence)

    def die(self) -> None:
        self._up = False
        for pull in self._pulls:
            pull.end()
        self._pulls.clear()
        now_s = asyncio.get_running_loop().time()
        forgotten = sorted(each for each, held in self._outstanding.items() if held.flushed_at_s > now_s)
        for sequence in forgotten:
            self._outstanding.pop(sequence).rest()
            self._unqueue(sequence)
        self._new.extendleft(reversed(forgotten))

    def live(self) -> None:
        self._up = True
        self._serve()

    def _unqueue(self, sequence: int) -> None:
        if sequence in self._again:
            self._again.remove(sequence)

    def _wait(self, sequence: int, seconds: float) -> None:
        held = self._outstanding[sequence]
        held.rest()
        held.timer = asyncio.get_running_loop().call_later(seconds, self._due, sequence)

    def _due(self, sequence: int) -> None:
        if sequence in self._outstanding and sequence not in self._again:
            self._again.append(sequence)
            self._serve()

    def _serve(self) -> None:
        while self._up and self._pulls and (self._again or self._new):
            pull = self._pulls[0]
            again = bool(self._again)
            sequence = self._again[0] if again else self._new[0]
            deliveries = self._outstanding[sequence].deliveries + 1 if again else 1
            self._place += 1
            if not self._deliver(pull.inbox, sequence, deliveries, self._place):
                # Its client has gone, and the inbox has no subscription.
                self._drop(pull)
                continue
            (self._again if again else self._new).popleft()
            held = self._outstanding.setdefault(sequence, _Outstanding(deliveries))
            held.deliveries, held.flushed_at_s = deliveries, self._flushed_at_s()
            self._wait(sequence, self._ack_wait_s)
            pull.left -= 1
            if not pull.left:
                self._drop(pull)
            else:
                # Pulls are served in turn, one message each.
                self._pulls.rotate(-1)

    def _flushed_at_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        if self._flush_s + FLUSH_S <= now_s:
            self._flush_s = now_s
        elif self._flush_s < now_s:
            self._flush_s += FLUSH_S
        return self._flush_s

    def _drop(self, pull: Pull) -> None:
        pull.end()
        self._pulls.remove(pull)

    def _expired(self, pull: Pull) -> None:
        self._drop(pull)
        self._send_status(
            pull.inbox, {"Status": "408", "Nats-Pending-Messages": str(pull.left), "Nats-Pending-Bytes": "0"}
        )

    def _heartbeat(self, pull: Pull) -> None:
        if self._send_status(pull.inbox, {"Status": "100", "Description": "Idle Heartbeat"}):
            pull.timers.append(asyncio.get_running_loop().call_later(pull.heartbeat_s, self._heartbeat, pull))
