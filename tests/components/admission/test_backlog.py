from datetime import timedelta

import pytest

from app.admission.backlog import RETRY_AFTER_MAX_S, Backlog
from app.deliberation.errors import QueueFull
from tests.fakes import FakeClock
from tests.story import NOW

DEV = frozenset({"DEV"})


def backlog(clock: FakeClock | None = None, depth_max: int = 1_000, **role_depth_max: int) -> Backlog:
    return Backlog(clock or FakeClock(NOW), depth_max, role_depth_max, jitter=lambda: 0.0)


def key(number: int) -> tuple[str, str]:
    return ("default", f"d{number}")


def refused(kept: Backlog, timeout_s: int = 300) -> QueueFull:
    with pytest.raises(QueueFull) as raised:
        kept.check(DEV, timeout_s)
    return raised.value


def work_in_line(kept: Backlog, clock: FakeClock, ends: int, *, every_s: float, depth: int) -> None:
    for number in range(ends + depth):
        begun_at = clock.now() if number < 10 else None
        kept.hold(key(number), DEV, clock.now(), begun_at=begun_at)
        if number >= depth:
            clock.advance(every_s)
            kept.drop(key(number - depth), done_at=clock.now())
            kept.hold(key(number - depth + 10), DEV, clock.now(), begun_at=clock.now())


def test_a_request_being_written_counts_once_even_after_it_is_logged() -> None:
    kept = backlog(depth_max=2)
    kept.hold(key(1), DEV, NOW, begun_at=None)
    with kept.place(key(2), DEV, 300):
        with pytest.raises(QueueFull, match="2 deliberations"), kept.place(key(3), DEV, 300):
            pass
        kept.hold(key(2), DEV, NOW, begun_at=None)
        assert kept.depth == 2
    assert kept.depth == 2, "the log had it before the write returned"
    kept.drop(key(1))
    with kept.place(key(3), DEV, 300):
        pass
    assert kept.depth == 1, "the log does not have it: the write failed"


def test_a_retry_of_an_accepted_or_pending_request_takes_no_second_place() -> None:
    kept = backlog(depth_max=1)
    with kept.place(key(1), DEV, 300):
        with kept.place(key(1), DEV, 300):
            assert kept.depth == 1
        assert kept.depth == 1, "the first is still being written"
        kept.hold(key(1), DEV, NOW, begun_at=None)
    kept.check(DEV, 300, key=key(1))


def test_a_role_with_a_bound_of_its_own_is_full_without_the_others() -> None:
    kept = backlog(QA=1)
    kept.hold(key(1), {"DEV", "QA"}, NOW, begun_at=NOW)
    with pytest.raises(QueueFull, match="role QA"):
        kept.check({"QA"}, 300)
    kept.check(DEV, 300)
    kept.drop(key(1))
    kept.check({"QA"}, 300)
    with kept.place(key(2), {"QA"}, 300), pytest.raises(QueueFull, match="role QA"):
        kept.check({"QA"}, 300)


def test_a_tenant_that_has_much_in_flight_leaves_room_for_the_others() -> None:
    kept = Backlog(FakeClock(NOW), 100, {}, tenant_depth_max=2)
    kept.hold(("loud", "a"), DEV, NOW, begun_at=NOW)
    with kept.place(("loud", "b"), DEV, 300):
        with pytest.raises(QueueFull, match="2 deliberations of yours"), kept.place(("loud", "c"), DEV, 300):
            pass
        with kept.place(("quiet", "a"), DEV, 300):
            pass
        kept.hold(("loud", "b"), DEV, NOW, begun_at=None)
        with pytest.raises(QueueFull, match="2 deliberations of yours"):
            kept.check(DEV, 300, tenant="loud")
    kept.check(DEV, 300)
    kept.drop(("loud", "a"))
    kept.drop(("loud", "a"))
    kept.check(DEV, 300, tenant="loud")
    kept.hold(("loud", "c"), DEV, NOW, begun_at=None)
    kept.clear()
    kept.check(DEV, 300, tenant="loud")


def test_work_that_could_not_begin_within_its_deadline_is_refused() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    kept.hold(key(2), DEV, NOW, begun_at=None)
    kept.hold(key(3), DEV, NOW + timedelta(seconds=30), begun_at=None)
    clock.advance(31)
    assert "one has waited 31 s" in str(refused(kept, 30))
    kept.check(DEV, 31)
    kept.check({"QA"}, 30)
    kept.hold(key(2), DEV, NOW, begun_at=clock.now())
    kept.check(DEV, 30)
    kept.drop(key(3))
    assert kept.throughput("DEV").head_waited_s(clock.now().timestamp()) == 0


def test_work_that_waits_for_a_dead_cluster_refuses_only_work_with_its_label() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    kept.hold(key(2), DEV, NOW, begun_at=None, cluster="eu")
    clock.advance(31)
    for cluster in (None, "us"):
        kept.check(DEV, 30, cluster=cluster)
        kept.check(DEV, 30, cluster=cluster, priority="batch")
    for priority in ("interactive", "batch"):
        with pytest.raises(QueueFull, match="one has waited 31 s"):
            kept.check(DEV, 30, cluster="eu", priority=priority)
    assert kept.admitted("DEV", 30) == kept.depth_max and kept.throughput("DEV").depth == 1


def test_a_rate_that_was_measured_without_waiting_work_refuses_nothing() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock, depth_max=2_000)
    for number in range(20):
        kept.hold(key(number), DEV, clock.now(), begun_at=clock.now())
        clock.advance(0.5)
        kept.drop(key(number), done_at=clock.now())
    for number in range(1_000):
        kept.check(DEV, 300)
        kept.hold(key(100 + number), DEV, clock.now(), begun_at=None)
        clock.advance(0.005)


def test_while_work_waits_a_request_that_needs_over_half_of_its_deadline_is_rejected() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    work_in_line(kept, clock, 200, every_s=0.5, depth=60)  # two end in a second
    assert "60 deliberations that need the role DEV" in str(refused(kept, 50))
    kept.check(DEV, 65)
    assert kept.admitted("DEV", 50) == pytest.approx(50, abs=2)


def test_once_refused_work_is_accepted_again_below_four_fifths_of_the_bound() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    work_in_line(kept, clock, 200, every_s=0.5, depth=60)
    refused(kept, 50)
    for number in range(210, 225):
        kept.drop(key(number))
    refused(kept, 50)
    kept.check(DEV, 65)
    for number in range(225, 232):
        kept.drop(key(number))
    kept.check(DEV, 50)
    for number in range(300, 308):
        kept.hold(key(number), DEV, clock.now(), begun_at=None)
    kept.check(DEV, 50)


def test_work_that_waits_for_a_moment_refuses_nothing() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    for number in range(500):
        kept.hold(key(number), DEV, clock.now(), begun_at=clock.now() if number < 10 else None)
    clock.advance(0.9)
    kept.check(DEV, 60)
    clock.advance(0.2)
    assert "500" in str(refused(kept, 60)), "ten that take a second or more are ten a second at most"


@pytest.mark.parametrize(("jitter", "retry_after_s"), [(0.0, 16), (0.5, 136), (1.0, 256)])
def test_retry_after_is_the_time_until_there_is_room_and_up_to_eight_times_the_drain_time(
    jitter: float, retry_after_s: int
) -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    work_in_line(kept, clock, 200, every_s=0.5, depth=60)
    kept.jitter = lambda: jitter
    # The depth is 60; from four fifths of 35 there is room again.
    assert refused(kept, 35).retry_after_s == pytest.approx(retry_after_s, rel=0.05)


def test_retry_after_is_bounded_and_keeps_its_jitter() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    work_in_line(kept, clock, 50, every_s=5, depth=60)
    waits_s = list[int]()
    for jitter in (0.0, 0.5, 1.0):
        kept.jitter = lambda jitter=jitter: jitter
        waits_s.append(refused(kept, 35).retry_after_s)
    assert waits_s[2] == RETRY_AFTER_MAX_S and waits_s[2] - waits_s[1] == pytest.approx(waits_s[1] - waits_s[0], abs=1)


def test_while_no_throughput_is_known_retry_after_is_short() -> None:
    kept = backlog(depth_max=2)
    for number in range(2):
        kept.hold(key(number), DEV, NOW, begun_at=None)
    assert refused(kept).retry_after_s == 3
    kept.jitter = lambda: 0.9
    assert refused(kept).retry_after_s == 39


def test_a_clock_that_is_ahead_makes_nothing_end_faster() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    ahead = timedelta(seconds=30)
    for number in range(60):
        clock.advance(1)
        kept.hold(key(number), DEV, clock.now() - timedelta(seconds=2), begun_at=clock.now() + ahead)
        kept.drop(key(number), done_at=clock.now() + ahead)
    assert kept.throughput("DEV").observed_per_s(clock.now().timestamp()) == pytest.approx(1.0, rel=0.1)


def test_after_the_log_was_read_in_another_order_the_oldest_waits_at_the_head_and_the_rate_is_measured_anew() -> None:
    clock = FakeClock(NOW + timedelta(seconds=30))
    kept = backlog(clock)
    for number in reversed(range(80)):
        kept.hold(key(number), DEV, NOW + timedelta(seconds=number / 4), begun_at=None)
    for number in range(100, 140):
        kept.hold(key(number), DEV, NOW, begun_at=NOW)
        kept.drop(key(number), done_at=NOW + timedelta(seconds=28))
    kept.settle()
    work = kept.throughput("DEV")
    assert work.head_waited_s(clock.now().timestamp()) == 30.0
    assert work.per_s(clock.now().timestamp()) is None
    kept.hold(key(0), DEV, NOW, begun_at=NOW + timedelta(seconds=15))
    assert work.per_s(clock.now().timestamp()) == pytest.approx(1 / 28), "ended work gives the time that work takes"


def test_batch_work_that_waits_refuses_batch_work_and_no_interactive_work() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    for number in range(500):
        kept.hold(key(number), DEV, NOW, begun_at=NOW if number < 10 else None, priority="batch")
    clock.advance(60)
    with pytest.raises(QueueFull, match="one has waited 60 s"):
        kept.check(DEV, 300, priority="batch")
    kept.check(DEV, 300)
    for number in range(500, 600):
        kept.hold(key(number), DEV, clock.now(), begun_at=None)
    clock.advance(301)
    assert "100 deliberations" in str(refused(kept)), "interactive work waits for interactive work"


def test_the_depth_counts_work_of_both_priorities() -> None:
    kept = backlog(depth_max=2)
    for number in range(2):
        kept.hold(key(number), DEV, NOW, begun_at=None, priority="batch")
    assert "2 deliberations" in str(refused(kept))
