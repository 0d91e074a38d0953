"""The order in which deliberations of the same roles and priority begin: as many at once as the limit allows.

Those of other roles have a queue of their own, and do not wait for these; nor does interactive work for batch work.
"""

import asyncio
from collections import deque
from typing import Literal

from app.admission.concurrency import ConcurrencyLimiter

TicketOutcome = Literal["done", "missed", "stopped"]


class Ticket:
    """A deliberation's place in the queue: `granted` is set once it may begin."""

    def __init__(self) -> None:
        self.granted = asyncio.Event()
        self.since_s = 0.0


class AdmissionQueue:
    """First in, first out, `limit_max` at once besides those that another coordinator began. Times are in seconds."""

    def __init__(self, limit_max: int) -> None:
        self._limiter = ConcurrencyLimiter(limit_max)
        self._waiting: deque[Ticket] = deque()

    def figures(self) -> dict[str, int]:
        """How many are begun, how many may be at present, and how many wait for that."""
        return {"begun": self._limiter.in_hand, "bound": self._limiter.limit, "waiting": len(self._waiting)}

    def ask(self, now_s: float, *, begun: bool) -> Ticket:
        """A ticket, granted at once if there is room, or if another coordinator had `begun` the deliberation."""
        ticket = Ticket()
        if begun or (self._limiter.free and not self._waiting):
            self._grant(ticket, now_s)
        else:
            self._waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket, now_s: float, outcome: TicketOutcome) -> None:
        """The deliberation is done, has missed its deadline, or was stopped or requeued, which changes no limit."""
        if not ticket.granted.is_set():
            self._waiting.remove(ticket)
        elif outcome == "stopped":
            self._limiter.drop()
        else:
            self._limiter.end(now_s, now_s - ticket.since_s, missed=outcome == "missed")
        while self._waiting and self._limiter.free:
            self._grant(self._waiting.popleft(), now_s)

    def _grant(self, ticket: Ticket, now_s: float) -> None:
        self._limiter.begin()
        ticket.since_s = now_s
        ticket.granted.set()
