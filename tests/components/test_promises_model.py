"""Who is refused and comes back when told is let in: held against a small model of a house that all gateways fill."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from app.backlog import Backlog, Key
from app.deliberation.errors import QueueFull
from app.deliberation.pace import Grip
from app.promises import WAIT_MAX_S, Promise
from app.testing import FakeClock
from tests.story import NOW

DEV = frozenset({"DEV"})
STEP_S = 0.2


@dataclass
class Work:
    """What was let in at some moment, when it was begun, and how much of it is left."""

    client: int
    accepted_s: float
    begun_s: float
    left: float


@dataclass
class House:
    """Gateways before one engine that ends `per_s` at most, each in `alone_s` when alone, and clients of it."""

    gateways: int = 1
    per_s: float = 3.2
    alone_s: float = 4.0
    timeout_s: int = 60
    now_s: float = 0.0
    clients: int = 0
    returned: int = 0
    let_in: int = 0
    done: int = 0
    lost: int = 0
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOW))
    grip: Grip = field(default_factory=lambda: Grip(256))
    waiting: list[tuple[Key, Work]] = field(default_factory=list[tuple[Key, Work]])
    in_hand: dict[Key, Work] = field(default_factory=dict[Key, Work])

    def __post_init__(self) -> None:
        self.rng = random.Random(1)
        self.backlogs = [Backlog(self.clock, 1_000, {}, cold_depth=200) for _ in range(self.gateways)]
        for backlog in self.backlogs:
            backlog.promises.announce = self._announced_by(backlog)

    def _announced_by(self, speaker: Backlog) -> Callable[[Promise], None]:
        def announced(promise: Promise) -> None:
            for backlog in self.backlogs:
                if backlog is not speaker:
                    backlog.heard(promise)

        return announced

    def ask(self, client: int, key: Key) -> int | None:
        """Ask one of the gateways; the seconds that a refusal tells, or None."""
        try:
            with self.rng.choice(self.backlogs).place(key, DEV, self.timeout_s):
                for backlog in self.backlogs:
                    backlog.hold(key, DEV, self.clock.now(), begun=False)
        except QueueFull as exc:
            return exc.retry_after_s
        self.waiting.append((key, Work(client, self.now_s, 0.0, self.rng.uniform(0.7, 1.3))))
        return None

    def work(self) -> set[int]:
        """Go on for a step; the clients whose work has ended."""
        self.now_s += STEP_S
        self.clock.advance(STEP_S)
        while self.waiting and self.grip.free:
            key, begun = self.waiting.pop(0)
            begun.begun_s = self.now_s
            self.in_hand[key] = begun
            self.grip.take()
            for backlog in self.backlogs:
                backlog.hold(key, DEV, NOW + timedelta(seconds=begun.accepted_s), begun=True)
        share = min(1 / self.alone_s, self.per_s / max(1, len(self.in_hand))) * STEP_S
        ended = set[int]()
        for key, each in list(self.in_hand.items()):
            each.left -= share
            late = self.now_s - each.accepted_s >= self.timeout_s
            if each.left > 0 and not late:
                continue
            del self.in_hand[key]
            ended.add(each.client)
            self.grip.ended(self.now_s, self.now_s - each.begun_s, missed=late)
            self.lost += late
            self.done += not late
            for backlog in self.backlogs:
                backlog.ended(key, self.clock.now(), "missed" if late else "done")
        return ended

    def run(self, clients: int, seconds: float) -> None:
        """Clients that ask, wait as long as they are told if they are refused, and ask anew once theirs has ended.

        Who is told the longest wait is promised nothing, and is not counted when it returns.
        """
        until_s = self.now_s + seconds
        self.clients += clients
        due = {self.clients - each: self.now_s + self.rng.uniform(0, 5) for each in range(clients)}
        keys, told_s = dict[int, Key](), dict[int, int | None]()
        while self.now_s < until_s:
            for client in [client for client, at_s in due.items() if at_s <= self.now_s]:
                before_s = told_s.get(client)
                if before_s is None:
                    keys[client] = ("default", f"{client}-{self.now_s}")
                wait_s = told_s[client] = self.ask(client, keys[client])
                if before_s is not None and before_s < WAIT_MAX_S:
                    self.returned += 1
                    self.let_in += wait_s is None
                if wait_s is None:
                    del due[client]
                else:
                    due[client] = self.now_s + wait_s * self.rng.uniform(1, 1.1)
            due.update(dict.fromkeys(keys.keys() & self.work(), self.now_s))

    def flood(self, seconds: float) -> None:
        """Ten times what can be done is asked for, by clients that never come back."""
        until_s, number = self.now_s + seconds, 0
        while self.now_s < until_s:
            for _ in range(round(10 * self.per_s * STEP_S)):
                number += 1
                self.ask(0, ("default", f"flood-{self.now_s}-{number}"))
            self.work()


@pytest.mark.parametrize("gateways", [1, 3])
@pytest.mark.parametrize("flooded", [False, True])
def test_who_comes_back_when_told_is_let_in_at_ten_times_capacity(gateways: int, flooded: bool) -> None:
    house = House(gateways)
    house.run(32, 30)
    if flooded:
        house.flood(60)
    house.done = house.returned = house.let_in = 0
    house.run(320, 150)
    assert house.returned > 100
    assert house.let_in > 0.9 * house.returned
    assert house.lost == 0
    assert house.done > 0.85 * house.per_s * 150


def test_gateways_that_do_not_hear_each_other_break_their_promises() -> None:
    """The model can fail."""
    house = House(3)
    for backlog in house.backlogs:
        backlog.promises.announce = None
    house.run(32, 30)
    house.run(320, 150)
    assert house.let_in < 0.7 * house.returned
