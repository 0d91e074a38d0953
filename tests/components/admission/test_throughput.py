"""How fast work ends, how much of it is taken on, and how much is begun at once; the whole of it: test_pace_model."""

import pytest

from app.admission.throughput import GRIP_MIN, BaselineLatency, ConcurrencyLimiter, Rate, ThroughputEstimator


def test_nothing_is_known_before_something_has_ended_and_long_after() -> None:
    pace = ThroughputEstimator(200)
    assert (pace.rate(0.0), pace.depth_max(0.0, 300)) == (None, 200)
    for second in range(20):
        pace.ended(float(second), 2.0)
    assert pace.rate(19.0) == Rate(1.0, 1.0, 2.0, slowed=False)
    assert pace.rate(10_000.0) is None
    assert pace.depth_max(10_000.0, 300) == 200


def test_a_rate_that_is_what_was_asked_for_bounds_nothing_but_a_burst() -> None:
    pace = ThroughputEstimator(200)
    for second in range(0, 300, 10):
        pace.ended(float(second), 2.0)
    rate = pace.rate(290.0)
    assert rate is not None and not rate.slowed
    assert pace.depth_max(290.0, 60) == 64


def test_time_without_work_tells_nothing_of_what_can_be_done() -> None:
    pace, idled = ThroughputEstimator(200), ThroughputEstimator(200)
    idled.began(1_000.0)
    for each in (pace, idled):
        for number in range(60):
            each.ended(1_000 + number / 2, 2.0)
    rates = [each.rate(1_029.5) for each in (pace, idled)]
    assert [rate and rate.steady_per_s for rate in rates] == [pytest.approx(1.5), pytest.approx(2.0, rel=0.05)]


def test_places_become_free_as_fast_as_work_ends_and_what_was_let_in_is_believed_to_end_in_time() -> None:
    pace = ThroughputEstimator(200)
    assert pace.freed_per_s(0.0, 100, 200, given=False) == pace.freed_per_s(0.0, 100, 200, given=True) == 200 / 50
    for number in range(40):
        pace.ended(number / 2, 3.0)
    assert pace.freed_per_s(19.5, 400, 500, given=True) == pytest.approx(2.0, rel=0.1), "a bound that was set is full"
    assert pace.freed_per_s(19.5, 400, 500, given=False) == 2.5, "one that follows from what was asked for may grow"
    for number in range(400):
        pace.ended(20 + number / 2, 30.0)
    assert pace.freed_per_s(219.5, 10, 500, given=False) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("timeout_s", "depth"), [(60, 60), (300, 300), (6, 9)])
def test_slowed_work_may_fill_half_of_a_deadline_but_always_keeps_all_busy(timeout_s: float, depth: int) -> None:
    pace = ThroughputEstimator(200)
    for number in range(40):
        pace.ended(number / 2, 3.0)
    for number in range(400):
        pace.ended(20 + number / 2, 30.0)
    rate = pace.rate(219.5)
    assert rate is not None and rate.slowed
    assert pace.depth_max(219.5, timeout_s) == pytest.approx(depth, rel=0.1)


def test_deadlines_that_are_missed_tell_of_too_much_even_if_what_ends_is_quick() -> None:
    pace = ThroughputEstimator(200)
    for number in range(40):
        pace.ended(number / 4, 8.0)
        pace.missed(number / 4, 20.0)
    rate = pace.rate(10.0)
    assert rate is not None and rate.slowed
    assert pace.depth_max(10.0, 10) < 64


def test_deadlines_that_nobody_could_meet_and_a_single_one_tell_nothing() -> None:
    pace = ThroughputEstimator(200)
    for number in range(40):
        pace.ended(number * 4.0, 30.0)
    pace.missed(150.0, 60.0)
    for number in range(20):
        pace.missed(150.0 + number, 1.0)
    rate = pace.rate(160.0)
    assert rate is not None and not rate.slowed
    pace.missed(150.0, 60.0)
    rate = pace.rate(160.0)
    assert rate is not None and rate.slowed


def test_memories_are_bounded_and_out_of_order_ends_count() -> None:
    pace = ThroughputEstimator(200)
    for number in range(17_000):
        pace.ended(10.0 - number % 3, 1.0)
        pace.missed(10.0, 20.0)
    rate = pace.rate(10.0)
    assert rate is not None and rate.per_s < 17_000 / 5


def test_what_unhindered_work_takes_is_the_least_seen_and_slowly_doubted() -> None:
    unhindered = BaselineLatency()
    assert unhindered.took_s(5.0) is None
    unhindered.tell(0.0, 2.0)
    unhindered.tell(1.0, 9.0)
    assert unhindered.took_s(1.0) == pytest.approx(2.0, rel=0.001)
    assert unhindered.took_s(3_600.0) == pytest.approx(2.6, rel=0.01)
    unhindered.tell(3_600.0, 2.5)
    assert unhindered.took_s(3_600.0) == 2.5


def held(grip: ConcurrencyLimiter, number: int) -> None:
    for _ in range(number):
        grip.take()


def round_of(grip: ConcurrencyLimiter, at_s: float, took_s: float, *, missed: bool = False) -> int:
    """As much as may be in hand is worked on and ends; returns the bound afterwards."""
    held(grip, grip.bound - grip.held)
    for number in range(grip.held):
        grip.ended(at_s + number * 0.001, took_s, missed=missed)
    return grip.bound


def test_more_is_taken_in_hand_as_long_as_that_slows_nothing_and_less_once_it_does() -> None:
    grip = ConcurrencyLimiter(100)
    bounds = [round_of(grip, 2.0 * number, 2.0) for number in range(1, 5)]
    assert bounds == sorted(bounds) and bounds[-1] == 100, "up to the most"
    slower = [round_of(grip, 20.0 + 20.0 * number, 20.0) for number in range(6)]
    assert slower == sorted(slower, reverse=True) and slower[-1] < 60


def test_what_misses_its_deadline_in_hand_loosens_the_grip_but_not_what_was_begun_too_late() -> None:
    grip = ConcurrencyLimiter(100)
    for number in range(10):
        round_of(grip, 100.0 * (number + 1), 90.0, missed=True)
    assert grip.bound == GRIP_MIN
    late = ConcurrencyLimiter(100)
    round_of(late, 10.0, 10.0)
    before = late.bound
    assert round_of(late, 20.0, 3.0, missed=True) == before
    assert late.held == 0


def test_what_was_begun_by_somebody_else_proves_that_there_is_room() -> None:
    grip = ConcurrencyLimiter(100)
    held(grip, 80)
    assert (grip.bound, grip.free, grip.held) == (80, False, 80)
    for _ in range(80):
        grip.drop()
    assert (grip.bound, grip.held) == (80, 0)
    held(grip, 120)
    assert grip.bound == 100
