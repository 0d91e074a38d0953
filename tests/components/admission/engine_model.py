"""A small model of an engine that all work in hand shares, against which admission is held."""

import random
from dataclasses import dataclass, field

from app.admission.backlog import Key
from app.admission.throughput import ConcurrencyLimiter


@dataclass
class Work:
    """What was let in at some moment, when it was begun, and how much of it is left: about 1 at first."""

    key: Key
    accepted_s: float
    left: float
    begun_s: float = 0.0


@dataclass
class EngineModel:
    """Ends `per_s` at most, each in `alone_s` when alone; what has not ended after `timeout_s` is lost.

    What waits is begun in order, as the grip allows, or at once where it is not `gripped`.
    """

    per_s: float
    alone_s: float
    timeout_s: float
    gripped: bool = True
    grip: ConcurrencyLimiter = field(default_factory=lambda: ConcurrencyLimiter(1_024))
    waiting: list[Work] = field(default_factory=list[Work])
    in_hand: list[Work] = field(default_factory=list[Work])

    @property
    def depth(self) -> int:
        """What is there, begun or not."""
        return len(self.waiting) + len(self.in_hand)

    def let_in(self, key: Key, now_s: float, rng: random.Random) -> None:
        """One more waits."""
        self.waiting.append(Work(key, now_s, rng.uniform(0.7, 1.3)))

    def begin(self, now_s: float) -> list[Work]:
        """Take in hand what may be; what was."""
        begun: list[Work] = []
        while self.waiting and (self.grip.free or not self.gripped):
            work = self.waiting.pop(0)
            work.begun_s = now_s
            self.grip.take()
            begun.append(work)
        self.in_hand += begun
        return begun

    def go_on(self, now_s: float, step_s: float) -> list[tuple[Work, bool]]:
        """Work for a step that ends now; what left with it, and whether it was late."""
        share = min(1 / self.alone_s, self.per_s / max(1, len(self.in_hand))) * step_s
        left: list[tuple[Work, bool]] = []
        for work in list(self.in_hand):
            work.left -= share
            late = now_s - work.accepted_s >= self.timeout_s
            if work.left > 0 and not late:
                continue
            self.in_hand.remove(work)
            self.grip.ended(now_s, now_s - work.begun_s, missed=late)
            left.append((work, late))
        return left
