"""How much is taken on and begun, held against a small model of an engine that everything in hand shares."""

import random
from dataclasses import dataclass

import pytest

from app.admission.throughput import ThroughputEstimator
from tests.components.admission.engine_model import EngineModel


@dataclass
class House:
    """An engine, and a door that lets in what can end in time."""

    per_s: float
    alone_s: float
    timeout_s: float
    gripped: bool = True

    def run(self, asked_over_capacity: float, seconds: float, seed: int = 1) -> tuple[float, int, int, int]:
        """Goodput over capacity, what was accepted, what of it was lost, and how much was in hand at the end."""
        rng, pace = random.Random(seed), ThroughputEstimator(200)
        engine = EngineModel(self.per_s, self.alone_s, self.timeout_s, self.gripped)
        accepted = done = lost = 0
        now_s, next_s, step_s = 0.0, 0.0, min(0.25, self.alone_s / 10)
        while now_s < seconds:
            now_s += step_s
            while next_s <= now_s:
                next_s += rng.expovariate(asked_over_capacity * self.per_s)
                if engine.depth < pace.depth_max(now_s, self.timeout_s):
                    accepted += 1
                    engine.let_in(("default", f"d{accepted}"), now_s, rng)
            engine.begin(now_s)
            for work, late in engine.go_on(now_s, step_s):
                if late:
                    pace.missed(now_s, now_s - work.accepted_s)
                    lost += 1
                else:
                    pace.ended(now_s, now_s - work.accepted_s)
                    done += 1
        return done / (self.per_s * seconds), accepted, lost, len(engine.in_hand)


@pytest.mark.parametrize(
    ("house", "seconds"),
    [
        (House(per_s=10, alone_s=3, timeout_s=60), 120),
        (House(per_s=10, alone_s=3, timeout_s=300), 120),
        (House(per_s=1, alone_s=20, timeout_s=300), 400),
        (House(per_s=40, alone_s=1, timeout_s=10), 60),
    ],
)
def test_ten_times_as_much_as_can_be_done_is_done_as_fast_and_nothing_is_lost(house: House, seconds: float) -> None:
    goodput, accepted, lost, _ = house.run(10, seconds)
    assert goodput > 0.85
    assert lost <= accepted * 0.001


def test_without_a_grip_what_is_accepted_at_first_is_all_half_done_when_its_time_is_over() -> None:
    """The model can fail: a slow engine that is asked for everything at once ends nothing in time."""
    slow = House(per_s=0.5, alone_s=10, timeout_s=100)
    goodput, _, lost, _ = slow.run(10, 400)
    ungripped_goodput, _, ungripped_lost, _ = House(0.5, 10, 100, gripped=False).run(10, 400)
    assert goodput > 2 * ungripped_goodput and lost < ungripped_lost


def test_less_than_can_be_done_is_never_refused_or_held_up() -> None:
    goodput, accepted, lost, _ = House(per_s=10, alone_s=3, timeout_s=60).run(0.7, 120)
    assert 0.6 < goodput < 0.8 and lost == 0
    assert accepted == pytest.approx(0.7 * 10 * 120, rel=0.1)
