"""Who is refused and comes back when told is let in: held against a small model of a house that all gateways fill."""

import random
from collections.abc import Callable

import pytest

from app.admission.backlog import Backlog, Key
from app.admission.reservations import WAIT_MAX_S, Promise
from app.deliberation.errors import QueueFull
from app.testing import FakeClock
from tests.components.admission.engine_model import EngineModel
from tests.story import NOW

DEV = frozenset({"DEV"})
STEP_S = 0.2
PER_S = 3.2
TIMEOUT_S = 60


class House:
    """Gateways before one engine, and their clients; times are seconds since the beginning."""

    def __init__(self, gateways: int) -> None:
        self.now_s = 0.0
        self.asked = self.returned = self.let_in = self.done = self.lost = 0
        self.rng, self.clock = random.Random(1), FakeClock(NOW)
        self.engine = EngineModel(PER_S, 4.0, TIMEOUT_S)
        self.backlogs = [Backlog(self.clock, 1_000, {}, cold_depth=200) for _ in range(gateways)]
        for backlog in self.backlogs:
            backlog.promises.announce = self._announced_by(backlog)

    def _announced_by(self, speaker: Backlog) -> Callable[[Promise], None]:
        def announced(promise: Promise) -> None:
            for backlog in self.backlogs:
                if backlog is not speaker:
                    backlog.heard(promise)

        return announced

    def ask(self, key: Key) -> int | None:
        """Ask one of the gateways; the seconds that a refusal tells, or None."""
        try:
            with self.rng.choice(self.backlogs).place(key, DEV, TIMEOUT_S):
                for backlog in self.backlogs:
                    backlog.hold(key, DEV, self.clock.now(), begun=False)
        except QueueFull as exc:
            return exc.retry_after_s
        self.engine.let_in(key, self.now_s, self.rng)
        return None

    def new_key(self) -> Key:
        """Of something that was never asked for."""
        self.asked += 1
        return ("default", f"d{self.asked}")

    def work(self) -> list[Key]:
        """Go on for a step; the keys of what has ended."""
        self.now_s += STEP_S
        self.clock.advance(STEP_S)
        begun, left = self.engine.begin(self.now_s), self.engine.go_on(self.now_s, STEP_S)
        for backlog in self.backlogs:
            for work in begun:
                backlog.hold(work.key, DEV, self.clock.now(), begun=True)
            for work, late in left:
                backlog.ended(work.key, self.clock.now(), "missed" if late else "done")
        self.lost += sum(late for _, late in left)
        self.done += sum(not late for _, late in left)
        return [work.key for work, _ in left]

    def run(self, clients: int, seconds: float) -> None:
        """Clients that ask, wait as long as they are told if they are refused, and ask anew once theirs has ended.

        Who is told the longest wait is promised nothing, and is not counted when it returns.
        """
        until_s = self.now_s + seconds
        due = {self.new_key(): self.now_s + self.rng.uniform(0, 5) for _ in range(clients)}
        told_s, inside = dict[Key, int](), set[Key]()
        while self.now_s < until_s:
            for key in [key for key, at_s in due.items() if at_s <= self.now_s]:
                before_s, wait_s = told_s.get(key, WAIT_MAX_S), self.ask(key)
                if before_s < WAIT_MAX_S:
                    self.returned += 1
                    self.let_in += wait_s is None
                if wait_s is None:
                    del due[key]
                    inside.add(key)
                else:
                    told_s[key], due[key] = wait_s, self.now_s + wait_s * self.rng.uniform(1, 1.1)
            # Of those that ended some were of others, who are no longer here.
            due.update({self.new_key(): self.now_s for key in self.work() if key in inside})

    def flood(self, seconds: float) -> None:
        """Ten times what can be done is asked for, by clients that never come back."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            for _ in range(round(10 * PER_S * STEP_S)):
                self.ask(self.new_key())
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
    assert house.done > 0.85 * PER_S * 150


def test_gateways_that_do_not_hear_each_other_break_their_promises() -> None:
    """The model can fail."""
    house = House(3)
    for backlog in house.backlogs:
        backlog.promises.announce = None
    house.run(32, 30)
    house.run(320, 150)
    assert house.let_in < 0.7 * house.returned
