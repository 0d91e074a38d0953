"""Whose turn it is: as many deliberations of the same roles are begun as get on unhindered, the others wait in order.

An engine that is asked for everything at once finishes nothing in time: all wait in its queue, stage after stage. Here
they wait before they have cost anything, and those of other roles do not wait for them.
"""

import asyncio
from collections import deque
from typing import Literal

from app.admission.throughput import ConcurrencyLimiter

TicketOutcome = Literal["done", "missed", "stopped"]


class Ticket:
    """A deliberation's place at the gate: `granted` is set once it may begin."""

    def __init__(self) -> None:
        self.granted = asyncio.Event()
        self.since_s = 0.0


class AdmissionQueue:
    """One gate for each set of roles; never more than `most` are begun. Times are seconds of any one clock."""

    def __init__(self, most: int) -> None:
        self._grip = ConcurrencyLimiter(most)
        self._waiting: deque[Ticket] = deque()

    @property
    def begun(self) -> int:
        """How many have been let in and have not left."""
        return self._grip.held

    def figures(self) -> dict[str, int]:
        """How many are begun, how many may be at present, and how many wait for that."""
        return {"begun": self._grip.held, "bound": self._grip.bound, "waiting": len(self._waiting)}

    def ask(self, now_s: float, *, begun: bool) -> Ticket:
        """A place, granted at once if there is room, or if it was `begun` before by somebody else."""
        place = Ticket()
        if begun or (self._grip.free and not self._waiting):
            self._let_in(place, now_s)
        else:
            self._waiting.append(place)
        return place

    def leave(self, place: Ticket, now_s: float, outcome: TicketOutcome) -> None:
        """It is over: done, its deadline missed, or stopped or given up by us, which tells nothing of the pace."""
        if not place.granted.is_set():
            self._waiting.remove(place)
        elif outcome == "stopped":
            self._grip.drop()
        else:
            self._grip.ended(now_s, now_s - place.since_s, missed=outcome == "missed")
        while self._waiting and self._grip.free:
            self._let_in(self._waiting.popleft(), now_s)

    def _let_in(self, place: Ticket, now_s: float) -> None:
        self._grip.take()
        place.since_s = now_s
        place.granted.set()
