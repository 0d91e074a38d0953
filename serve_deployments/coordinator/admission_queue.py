"""The order in which deliberations of the same roles and priority begin: as many at once as the limit allows.

A slot goes to the tenant that has the fewest of them, and there to what waits longest. A tenant of which nothing runs
waits for no slot, up to as many beyond the limit: another tenant's burst costs it no time.

An engine that gets all requests at once finishes none in time, and no constant limit suits a small and a large one
(docs/decisions/0084). The limit grows while work takes no longer than with little in hand. Once it slows down, the
limit is the rate of ends times twice the baseline latency, which keeps the engine busy. The latency with `LIMIT_MIN` in
hand is the baseline, also when other strategies made it longer. Delay as the sign of congestion is from TCP Vegas
(doi:10.1145/190314.190317), rate times latency from BBR (doi:10.1145/3009824).
"""

import asyncio
from collections import Counter, deque
from typing import Literal

LIMIT_AT_FIRST = 16
LIMIT_MIN = 4
GAIN_AT_FIRST = 2.0
GAIN = 1.5
SLOWED = 2.0
MISSED_SHARE_MAX = 0.05
ENDS_MIN = 10
# The baseline, the least latency seen, grows so fast with its age.
DRIFT_PER_S = 0.005 / 60

TicketOutcome = Literal["done", "missed", "stopped"]


class Ticket:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.granted = asyncio.Event()
        self.since_s = 0.0


class AdmissionQueue:
    """`limit` at once, in turn by tenants, and never more than `limit_max`. Times are seconds of any one clock.

    Deliberations that another coordinator began go on at once, and raise the limit up to `limit_max`.
    """

    def __init__(self, limit_max: int) -> None:
        self.limit = min(LIMIT_AT_FIRST, limit_max)
        self._limit_max = limit_max
        self._begun = 0
        self._begun_of = Counter[str]()
        # Each tenant's, in the order in which the tenants began to wait.
        self._waiting: dict[str, deque[Ticket]] = {}
        self._gain = GAIN_AT_FIRST
        # The least mean latency seen, and when.
        self._baseline: tuple[float, float] | None = None
        # What ended under the present limit, which began at that time.
        self._since_s: float | None = None
        self._latencies_s: list[float] = []
        self._missed = 0
        self._begun_max = 0

    def figures(self) -> dict[str, int]:
        return {"begun": self._begun, "bound": self.limit, "waiting": sum(map(len, self._waiting.values()))}

    def ask(self, now_s: float, tenant: str, *, begun: bool) -> Ticket:
        """A ticket, granted at once if there is room, or if another coordinator had `begun` the deliberation."""
        ticket = Ticket(tenant)
        if begun:
            self._grant(ticket, now_s)
            self.limit = max(self.limit, min(self._begun, self._limit_max))
        elif self._begun < self.limit or (not self._begun_of[tenant] and self._begun < self._beyond):
            self._grant(ticket, now_s)
        else:
            self._waiting.setdefault(tenant, deque()).append(ticket)
        return ticket

    def leave(self, ticket: Ticket, now_s: float, outcome: TicketOutcome) -> None:
        """The deliberation is done, has missed its deadline, or was stopped or requeued, which changes no limit."""
        if not ticket.granted.is_set():
            self._waiting[ticket.tenant].remove(ticket)
            self._forget(ticket.tenant)
            return
        self._begun -= 1
        self._begun_of[ticket.tenant] -= 1
        if outcome != "stopped":
            self._observe(now_s, now_s - ticket.since_s, missed=outcome == "missed")
        if not self._begun_of[ticket.tenant]:
            del self._begun_of[ticket.tenant]
        while self._waiting and self._begun < self.limit:
            tenant = min(self._waiting, key=self._begun_of.__getitem__)
            self._grant(self._waiting[tenant].popleft(), now_s)
            self._forget(tenant)

    @property
    def _beyond(self) -> int:
        return min(2 * self.limit, self._limit_max)

    def _forget(self, tenant: str) -> None:
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _grant(self, ticket: Ticket, now_s: float) -> None:
        self._begun += 1
        self._begun_of[ticket.tenant] += 1
        self._begun_max = max(self._begun_max, self._begun)
        ticket.since_s = now_s
        ticket.granted.set()

    def _observe(self, now_s: float, took_s: float, *, missed: bool) -> None:
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
        if ends < min(ENDS_MIN, self.limit / 2) or now_s - self._since_s < mean_s:
            return
        self._adapt(now_s, mean_s, now_s - self._since_s)
        self._since_s, self._begun_max, self._missed = now_s, self._begun, 0
        self._latencies_s.clear()

    def _adapt(self, now_s: float, mean_s: float, within_s: float) -> None:
        baseline_s = self._baseline_s(now_s)
        few = self._begun_max <= min(LIMIT_MIN, self._limit_max)
        if self._latencies_s and (baseline_s is None or mean_s < baseline_s or few):
            self._baseline, baseline_s = (mean_s, now_s), mean_s
        ends = len(self._latencies_s) + self._missed
        if self._missed > MISSED_SHARE_MAX * ends:
            self._lower(0)
        elif baseline_s is not None and mean_s > SLOWED * baseline_s:
            self._lower(int(ends / within_s * SLOWED * baseline_s))
        elif self._begun_max >= 0.8 * self.limit:
            self.limit = min(self._limit_max, max(self.limit + 1, int(self.limit * self._gain)))

    def _lower(self, limit: int) -> None:
        # Not below half at once: executions that began together end together, and until then the rate seems low.
        self.limit = max(min(LIMIT_MIN, self._limit_max), self.limit // 2, min(self.limit, limit))
        self._gain = GAIN

    def _baseline_s(self, now_s: float) -> float | None:
        if self._baseline is None:
            return None
        mean_s, at_s = self._baseline
        return mean_s * (1 + max(0.0, now_s - at_s) * DRIFT_PER_S)
