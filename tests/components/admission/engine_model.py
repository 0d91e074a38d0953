import random
from dataclasses import dataclass, field

from app.admission.backlog import Backlog, Key
from app.deliberation.errors import QueueFull
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket
from tests.fakes import FakeClock
from tests.story import NOW

DEV = frozenset({"DEV"})


@dataclass(eq=False)
class Work:
    key: Key
    accepted_s: float
    left: float
    ticket: Ticket
    ended: bool = False


class ConstantQueue(AdmissionQueue):
    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def _observe(self, now_s: float, took_s: float, *, missed: bool) -> None:
        pass


@dataclass
class Model:
    """`gateways` before an engine that ends `per_s` at most, each in `alone_s` when alone, or late after `timeout_s`.

    What waits begins in order as the queue's limit allows, or as the constant `limit` does.
    """

    per_s: float = 3.4
    alone_s: float = 2.4
    timeout_s: int = 60
    gateways: int = 1
    limit: int | None = None
    depth_max: int = 2_000
    step_s: float = 0.05
    seed: int = 1
    now_s: float = 0.0
    accepted: int = 0
    refused: int = 0
    done: int = 0
    missed: int = 0
    retry_after_s: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.rng, self.clock = random.Random(self.seed), FakeClock(NOW)
        self.backlogs = [Backlog(self.clock, self.depth_max, {}, jitter=self.rng.random) for _ in range(self.gateways)]
        self.queue = AdmissionQueue(2_048) if self.limit is None else ConstantQueue(self.limit)
        self.waiting: list[Work] = []
        self.in_hand: list[Work] = []

    def ask(self) -> Work | int:
        key = ("default", f"d{self.accepted}")
        try:
            with self.rng.choice(self.backlogs).place(key, DEV, self.timeout_s):
                for backlog in self.backlogs:
                    backlog.hold(key, DEV, self.clock.now(), begun_at=None)
        except QueueFull as exc:
            self.refused += 1
            self.retry_after_s.append(exc.retry_after_s)
            return exc.retry_after_s
        self.accepted += 1
        work = Work(key, self.now_s, self.rng.uniform(0.7, 1.3), self.queue.ask(self.now_s, "one", begun=False))
        self.waiting.append(work)
        return work

    def step(self) -> None:
        self.now_s += self.step_s
        self.clock.advance(self.step_s)
        while self.waiting and self.waiting[0].ticket.granted.is_set():
            work = self.waiting.pop(0)
            self.in_hand.append(work)
            for backlog in self.backlogs:
                backlog.hold(work.key, DEV, self.clock.now(), begun_at=self.clock.now())
        share = min(1 / self.alone_s, self.per_s / max(1, len(self.in_hand))) * self.step_s
        for work in list(self.in_hand):
            work.left -= share
            if work.left <= 0 or self._late(work):
                self.in_hand.remove(work)
                self._ended(work)
        for work in [work for work in self.waiting if self._late(work)]:
            self.waiting.remove(work)
            self._ended(work)

    def _late(self, work: Work) -> bool:
        return self.now_s - work.accepted_s >= self.timeout_s

    def _ended(self, work: Work) -> None:
        work.ended, late = True, self._late(work)
        self.queue.leave(work.ticket, self.now_s, "missed" if late else "done")
        self.missed += late
        self.done += not late
        for backlog in self.backlogs:
            backlog.drop(work.key, done_at=None if late else self.clock.now())

    def finish(self) -> None:
        while self.waiting or self.in_hand:
            self.step()

    def flood(self, per_s: float, seconds: float) -> float:
        until_s, next_s, before = self.now_s + seconds, self.now_s, self.done
        while self.now_s < until_s:
            while next_s <= self.now_s:
                next_s += self.rng.expovariate(per_s)
                self.ask()
            self.step()
        return (self.done - before) / (self.per_s * seconds)

    def obey(self, clients: int, seconds: float) -> tuple[float, int, int]:
        """Clients that ask again at the end of their work, and when Retry-After is over.

        What is done, over what could be; the clients that came back once; of those, the ones that were accepted then.
        """
        until_s, before, returned, let_in = self.now_s + seconds, self.done, 0, 0
        asking = [(self.now_s + self.rng.uniform(0, 5), 0) for _ in range(clients)]
        inside: list[Work] = []
        while self.now_s < until_s:
            asking += [(self.now_s, 0) for work in inside if work.ended]
            inside = [work for work in inside if not work.ended]
            self.rng.shuffle(asking)
            for at_s, refusals in [each for each in asking if each[0] <= self.now_s]:
                asking.remove((at_s, refusals))
                answer = self.ask()
                returned += refusals == 1
                if isinstance(answer, Work):
                    let_in += refusals == 1
                    inside.append(answer)
                else:
                    asking.append((self.now_s + answer * self.rng.uniform(1, 1.1), refusals + 1))
            self.step()
        return (self.done - before) / (self.per_s * seconds), returned, let_in
