import pytest

from app.admission.backlog import ThroughputEstimator


def key(number: int) -> tuple[str, str]:
    return ("default", f"d{number}")


def begun(work: ThroughputEstimator, numbers: range, at_s: float) -> None:
    for number in numbers:
        work.accept(key(number), at_s, at_s)
        work.begin(key(number), at_s, at_s)


def test_nothing_is_known_before_something_has_begun() -> None:
    work = ThroughputEstimator()
    assert (work.per_s(0.0), work.observed_per_s(0.0)) == (None, None)
    work.accept(key(1), 0.0, 0.0)
    assert work.per_s(100.0) is None
    assert (work.depth, work.head_waited_s(100.0)) == (1, 100.0)


def test_running_work_ends_no_faster_than_its_age_and_the_known_latency_allow() -> None:
    work = ThroughputEstimator()
    begun(work, range(16), 0.0)
    assert [work.per_s(at_s) for at_s in (0.0, 1.0, 4.0)] == [None, 16.0, 4.0]
    for number in range(16):
        work.remove(key(number), 8.0, done_at_s=8.0)
    begun(work, range(16), 9.0)
    assert work.per_s(10.0) == 2.0


def test_throughput_is_measured_only_while_work_waits() -> None:
    work = ThroughputEstimator()
    for number in range(20):
        begun(work, range(number, number + 1), 10.0 * number)
        work.remove(key(number), 10.0 * number + 1, done_at_s=10.0 * number + 1)
    for number in range(100, 400):
        work.accept(key(number), 1_000.0, 1_000.0)
    for number in range(100, 200):
        at_s = 1_000.5 + (number - 99) / 4
        work.begin(key(number), at_s - 1, at_s)
        work.remove(key(number), at_s, done_at_s=at_s)
    assert work.per_s(1_025.5) == pytest.approx(4.0, rel=0.05)
    for number in range(200, 400):
        work.remove(key(number), 1_025.5)
    begun(work, range(400, 401), 2_000.0)
    assert work.per_s(9_000.0) == pytest.approx(4.0, rel=0.05), "nothing has waited since"


def test_throughput_follows_the_last_ends() -> None:
    work = ThroughputEstimator()
    for number in range(1_000):
        work.accept(key(number), 0.0, 0.0)
    at_s = 0.5
    for number in range(300):
        at_s += 1.0 if number < 150 else 0.25
        work.begin(key(number), at_s, at_s)
        work.remove(key(number), at_s, done_at_s=at_s)
        if number == 149:
            assert work.per_s(at_s) == pytest.approx(1.0, rel=0.05)
    assert work.per_s(at_s) == pytest.approx(4.0, rel=0.2)
    assert work.per_s(at_s + 60.0) == pytest.approx(50 / 72, rel=0.1), "time without ends counts too"


def test_cancelled_timed_out_and_old_work_does_not_count_towards_throughput() -> None:
    work = ThroughputEstimator()
    for number in range(100):
        work.accept(key(number), 0.0, 0.0)
    begun(work, range(100, 160), 10.0)
    for number in range(100, 130):
        work.remove(key(number), 20.0)
    for number in range(130, 159):
        work.remove(key(number), 20.0, done_at_s=11.0)
    assert work.per_s(20.0) == pytest.approx(1 / 10.0), "one has been in hand for ten seconds"


def test_the_observed_rate_is_that_of_the_last_minutes() -> None:
    work = ThroughputEstimator()
    for second in range(1_000):
        begun(work, range(second, second + 1), float(second))
        work.remove(key(second), float(second), done_at_s=float(second))
    assert work.observed_per_s(999.0) == pytest.approx(1.0, rel=0.01)
    assert work.observed_per_s(1_299.0 - 1) is None
