"""How much work may be in hand at once."""

from app.admission.concurrency import LIMIT_MIN, ConcurrencyLimiter


def begin(limiter: ConcurrencyLimiter, number: int) -> None:
    for _ in range(number):
        limiter.begin()


def round_of(limiter: ConcurrencyLimiter, at_s: float, took_s: float, *, missed: bool = False) -> int:
    """As much as may be in hand begins and ends; returns the limit afterwards."""
    begin(limiter, limiter.limit - limiter.in_hand)
    for number in range(limiter.in_hand):
        limiter.end(at_s + number * 0.001, took_s, missed=missed)
    return limiter.limit


def test_the_limit_grows_while_work_is_not_slowed_and_shrinks_once_it_is() -> None:
    limiter = ConcurrencyLimiter(100)
    limits = [round_of(limiter, 2.0 * number, 2.0) for number in range(1, 5)]
    assert limits == sorted(limits) and limits[-1] == 100, "up to its maximum"
    slower = [round_of(limiter, 20.0 + 20.0 * number, 20.0) for number in range(6)]
    assert slower == sorted(slower, reverse=True) and slower[-1] < 60


def test_missed_deadlines_lower_the_limit_unless_the_work_began_too_late() -> None:
    limiter = ConcurrencyLimiter(100)
    for number in range(10):
        round_of(limiter, 100.0 * (number + 1), 90.0, missed=True)
    assert limiter.limit == LIMIT_MIN
    late = ConcurrencyLimiter(100)
    round_of(late, 10.0, 10.0)
    before = late.limit
    assert round_of(late, 20.0, 3.0, missed=True) == before
    assert late.in_hand == 0


def test_work_that_began_elsewhere_raises_the_limit_up_to_its_maximum() -> None:
    limiter = ConcurrencyLimiter(100)
    begin(limiter, 80)
    assert (limiter.limit, limiter.free, limiter.in_hand) == (80, False, 80)
    for _ in range(80):
        limiter.drop()
    assert (limiter.limit, limiter.in_hand) == (80, 0)
    begin(limiter, 120)
    assert limiter.limit == 100


def test_the_baseline_latency_is_the_least_seen_and_grows_with_its_age() -> None:
    def limits_of(later_s: float) -> list[int]:
        limiter = ConcurrencyLimiter(1_000)
        round_of(limiter, 10.0, 10.0)
        return [round_of(limiter, later_s + 30.0 * number, 21.0) for number in range(4)]

    soon, after_an_hour = limits_of(40.0), limits_of(3_600.0)
    assert soon[-1] < soon[0], "21 s are more than twice the baseline of 10 s"
    assert after_an_hour[-1] > after_an_hour[0], "the baseline has grown to 13 s"


def test_the_limit_recovers_when_work_of_another_strategy_takes_longer() -> None:
    limiter = ConcurrencyLimiter(100)
    round_of(limiter, 1.0, 0.03)
    limits = [round_of(limiter, 1.0 + number, 0.5) for number in range(1, 15)]
    assert min(limits) == LIMIT_MIN, "at first it looks like congestion"
    assert limits[-1] == 100, "but with little in hand it takes as long"
