"""`python -m benchmarks.engines.priority`: how long interactive councils take behind batch ones.

Four interactive councils at a time: alone, and while 1,000 councils with `priority: batch` wait or run.

SIMULATED, in virtual time: strategies, the order of calls and the coordinator's admission queues are the product's; an
engine serves so many calls at once, 2 s each, give or take 30 %. The others wait by priority, as under vLLM's
`--scheduling-policy priority`, or by arrival, as by default.
"""

import argparse
import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from random import Random
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from app.deliberation.calls import BATCH_AFTER, Ask, Call
from app.deliberation.decider import Outcomes, Strategy
from app.deliberation.facts import CallFinished
from app.deliberation.specification import Priority
from app.deliberation.strategies import STRATEGIES
from benchmarks.prefix import ROLES, answered, specification
from benchmarks.quality.trials import finished
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket

COORDINATOR_SLOTS = 1_024
CALL_S, JITTER = 2.0, 0.3
AT_ONCE = 4
INTERACTIVE_FROM_S = 30.0


@dataclass(eq=False)
class Council:
    """A council from its submission on; `asked` is set while it is begun."""

    number: int
    priority: Priority
    submitted_s: float
    sequence: int
    ticket: Ticket
    strategy: Strategy
    asked: Ask | None = None
    stage: int = 0
    seen: dict[str, CallFinished] = field(default_factory=dict[str, CallFinished])


@dataclass
class Engine:
    """One engine in virtual time, and the coordinator before it."""

    running_max: int
    by_priority: bool = True
    seconds: list[float] = field(default_factory=list[float])

    def run(self, interactive: int, backlog: int, backlog_priority: Priority) -> "Engine":
        """Submit the backlog at once, and after a while interactive councils, four at a time; to their end."""
        self._queues: dict[Priority, AdmissionQueue] = {
            "interactive": AdmissionQueue(COORDINATOR_SLOTS),
            "batch": AdmissionQueue(COORDINATOR_SLOTS),
        }
        self._waiting: dict[Priority, deque[Council]] = {"interactive": deque(), "batch": deque()}
        self._calls: list[tuple[int, int, Council, Call]] = []
        self._due: list[tuple[float, int, Council | None, Call | None]] = []
        self._order, self._chance, self._running = count(), Random(1), 0
        self._left, self._backlog, self._had_backlog = deque(range(interactive)), backlog, backlog > 0
        self._measured: set[int] = set(self._left)
        for number in range(backlog):
            self._submit(interactive + number, backlog_priority, 0.0)
        for _ in range(AT_ONCE):
            heapq.heappush(self._due, (INTERACTIVE_FROM_S, next(self._order), None, None))
        while self._measured and self._due:
            now_s, _, council, call = heapq.heappop(self._due)
            if council is None or call is None:
                self._next_interactive(now_s)
            else:
                self._running -= 1
                self._ended(council, call, now_s)
            self._serve(now_s)
        return self

    def _next_interactive(self, now_s: float) -> None:
        if self._left:
            self._submit(self._left.popleft(), "interactive", now_s)

    def _submit(self, number: int, priority: Priority, now_s: float) -> None:
        strategy = STRATEGIES["council"].run(specification(number, "council", 3, ROLES[:3]))
        ticket = self._queues[priority].ask(now_s, "one", begun=False)
        self._waiting[priority].append(Council(number, priority, now_s, next(self._order), ticket, strategy))
        self._begin(priority)

    def _begin(self, priority: Priority) -> None:
        waiting = self._waiting[priority]
        while waiting and waiting[0].ticket.granted.is_set():
            council = waiting.popleft()
            self._ask(council, next(council.strategy))

    def _ask(self, council: Council, ask: Ask) -> None:
        council.asked, council.stage, council.seen = ask, council.stage + 1, {}
        number = council.sequence + (BATCH_AFTER if council.priority == "batch" else 0)
        for call in ask.calls:
            heapq.heappush(self._calls, (number if self.by_priority else 0, next(self._order), council, call))

    def _serve(self, now_s: float) -> None:
        while self._calls and self._running < self.running_max:
            _, _, council, call = heapq.heappop(self._calls)
            self._running += 1
            ends_s = now_s + CALL_S * (1 + JITTER * (2 * self._chance.random() - 1))
            heapq.heappush(self._due, (ends_s, next(self._order), council, call))

    def _ended(self, council: Council, call: Call, now_s: float) -> None:
        council.seen[call.call_id] = finished(call, council.stage, answered(call)[1])
        assert council.asked is not None
        if len(council.seen) < len(council.asked.calls):
            return
        try:
            self._ask(council, council.strategy.send(Outcomes(council.seen)))
        except StopIteration:
            self._queues[council.priority].leave(council.ticket, now_s, "done")
            self._begin(council.priority)
            if council.number not in self._measured:
                self._backlog -= 1
                return
            self._measured.remove(council.number)
            # What runs after the backlog has gone says nothing of it.
            if self._backlog or not self._had_backlog:
                self.seconds.append(now_s - council.submitted_s)
            self._next_interactive(now_s)


def p95(seconds: list[float]) -> float:
    """The 95th percentile."""
    return quantiles(seconds, n=20)[-1]


def main() -> None:
    """Print the figures."""
    table = Table(
        "calls at once",
        "engine's order",
        "backlog",
        "measured",
        "p50 s",
        "p95 s",
        "p95 over alone",
        title="SIMULATED: interactive councils of three, four at a time, in virtual seconds",
    )
    rows: list[tuple[bool, int, Priority]] = [
        (True, 0, "batch"),
        (True, 1_000, "batch"),
        (False, 1_000, "batch"),
    ]
    for running_max in (64, 32, 16):
        alone_s = 0.0
        for by_priority, backlog, priority in rows:
            found = Engine(running_max, by_priority).run(100, backlog, priority).seconds
            alone_s = alone_s or p95(found)
            table.add_row(
                str(running_max),
                "priority" if by_priority else "arrival",
                f"{backlog:,} {priority}" if backlog else "none",
                str(len(found)),
                f"{median(found):.2f}",
                f"{p95(found):.2f}",
                f"{p95(found) / alone_s:.2f}",
            )
    Console(width=max(110, Console().width)).print(table)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
