"""Who may still be taken on: by depth, by role, by how fast work ends, and by how long the queue's head has waited."""

from datetime import timedelta

import pytest

from app.admission.backlog import Backlog
from app.admission.reservations import Promise
from app.deliberation.errors import QueueFull
from app.testing import FakeClock
from tests.story import NOW

DEV = frozenset({"DEV"})


def backlog(clock: FakeClock | None = None, depth_max: int = 100, **role_depth_max: int) -> Backlog:
    return Backlog(clock or FakeClock(NOW), depth_max, role_depth_max)


def key(number: int) -> tuple[str, str]:
    return ("default", f"d{number}")


def test_what_is_being_written_counts_and_what_is_heard_of_counts_once() -> None:
    kept = backlog(depth_max=2)
    kept.hold(key(1), DEV, NOW, begun=False)
    with kept.place(key(2), DEV, 300):
        with pytest.raises(QueueFull, match="2 deliberations"), kept.place(key(3), DEV, 300):
            pass
        kept.hold(key(2), DEV, NOW, begun=False)
        assert kept.depth == 2
    assert kept.depth == 2, "it was heard of before the write returned"
    kept.drop(key(1))
    with kept.place(key(3), DEV, 300):
        pass
    assert kept.depth == 1, "nobody heard of it: the write failed"


def test_a_retry_of_what_is_being_written_takes_no_second_place() -> None:
    kept = backlog(depth_max=1)
    with kept.place(key(1), DEV, 300), kept.place(key(1), DEV, 300):
        assert kept.depth == 1


def test_a_role_with_a_bound_of_its_own_is_full_without_the_others() -> None:
    kept = backlog(QA=1)
    kept.hold(key(1), {"DEV", "QA"}, NOW, begun=True)
    with pytest.raises(QueueFull, match="role QA"):
        kept.check({"QA"}, 300)
    kept.check(DEV, 300)
    kept.drop(key(1))
    kept.check({"QA"}, 300)
    with kept.place(key(2), {"QA"}, 300), pytest.raises(QueueFull, match="role QA"):
        kept.check({"QA"}, 300)


def test_work_that_could_not_begin_within_its_deadline_is_refused_at_the_door() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    kept.hold(key(1), DEV, NOW, begun=True)
    kept.hold(key(2), DEV, NOW, begun=False)
    kept.hold(key(3), DEV, NOW + timedelta(seconds=30), begun=False)
    clock.advance(31)
    with pytest.raises(QueueFull, match="waited 31 s"):
        kept.check(DEV, 30)
    kept.check(DEV, 31)
    kept.hold(key(2), DEV, NOW, begun=True)
    kept.check(DEV, 30)
    assert kept.head_waited_s() == 1
    kept.drop(key(3))
    assert kept.head_waited_s() == 0


def refused(kept: Backlog, timeout_s: int = 300, key: tuple[str, str] | None = None) -> QueueFull:
    with pytest.raises(QueueFull) as raised:
        kept.check(DEV, timeout_s, key=key)
    return raised.value


def ends(kept: Backlog, clock: FakeClock, number: int, *, every_s: float, took_s: float = 1.0) -> None:
    """So many more are accepted and done, one after the other."""
    for each in range(number):
        done = ("default", f"done-{clock.now().timestamp()}-{each}")
        clock.advance(every_s)
        kept.hold(done, DEV, clock.now() - timedelta(seconds=took_s), begun=True)
        kept.ended(done, clock.now(), "done")


def test_while_nothing_has_ended_a_bound_of_its_own_holds_and_nobody_is_told_to_wait_for_long() -> None:
    kept = Backlog(FakeClock(NOW), 1_000, {}, cold_depth=150)
    for number in range(150):
        kept.check(DEV, 300)
        kept.hold(key(number), DEV, NOW, begun=True)
    error = refused(kept)
    assert (error.retry_after_s, "nothing has ended yet" in str(error)) == (5, True)
    assert [refused(kept).retry_after_s for _ in range(3)] == [6, 7, 8], "they are believed to end within 150 s"
    kept.check({"QA"}, 300)


def test_what_could_not_end_within_half_of_its_deadline_is_refused_at_the_door() -> None:
    clock = FakeClock(NOW)
    kept = Backlog(clock, 1_000, {}, cold_depth=200)
    ends(kept, clock, 40, every_s=0.5, took_s=2)
    ends(kept, clock, 80, every_s=0.5, took_s=20)  # two a second, and they take ten times as long as before
    for number in range(60):
        kept.hold(key(number), DEV, clock.now(), begun=True)
    kept.check(DEV, 70)
    assert "2.1 end in a second" in str(refused(kept, 50))
    for number in range(20):
        kept.ended(key(number), clock.now(), "stopped")
    kept.check(DEV, 50)


def test_each_who_is_refused_is_told_a_moment_of_its_own_and_let_in_then() -> None:
    clock = FakeClock(NOW)
    kept = Backlog(clock, 1_000, {}, cold_depth=200)
    ends(kept, clock, 40, every_s=0.5, took_s=2)
    ends(kept, clock, 80, every_s=0.5, took_s=20)
    inside = [key(number) for number in range(60)]
    for each in inside:
        kept.hold(each, DEV, clock.now(), begun=True)
    waits_s = [refused(kept, 50, ("default", f"r{number}")).retry_after_s for number in range(10)]
    assert waits_s == sorted(waits_s) and waits_s[0] >= 1 and waits_s[-1] - waits_s[0] in (4, 5)
    assert refused(kept, 50, ("default", "r9")).retry_after_s == waits_s[-1], "who comes too early keeps its moment"
    ends(kept, clock, 2 * waits_s[5], every_s=0.5, took_s=20)
    for each in inside[:9]:
        kept.drop(each)
    refused(kept, 50, ("default", "stranger"))
    kept.check(DEV, 50, key=("default", "r5"))
    with kept.place(("default", "r5"), DEV, 50):
        pass
    refused(kept, 50, ("default", "r5"))


def test_who_was_promised_a_place_finds_one_while_it_can_still_end_in_time() -> None:
    clock = FakeClock(NOW)
    kept = Backlog(clock, 1_000, {}, cold_depth=200)
    ends(kept, clock, 40, every_s=0.5, took_s=2)
    for number in range(60):
        kept.hold(key(number), DEV, clock.now(), begun=True)
    ends(kept, clock, 80, every_s=0.5, took_s=20)  # two a second: 50 end within half of 50 s, 80 within four fifths
    promised = [("default", f"p{number}") for number in range(20)]
    waits_s = [refused(kept, 50, each).retry_after_s for each in promised]
    ends(kept, clock, 2 * waits_s[-1], every_s=0.5, took_s=20)
    kept.check(DEV, 50, key=promised[-1])
    refused(kept, 50, ("default", "stranger"))
    for number in range(60, 85):
        kept.hold(key(number), DEV, clock.now(), begun=True)
    refused(kept, 50, promised[-1])


def test_those_who_never_come_back_hold_up_nobody_for_long() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock, depth_max=10)
    ends(kept, clock, 40, every_s=1.0)
    for number in range(10):
        kept.hold(key(number), DEV, clock.now(), begun=True)
    for number in range(50):
        refused(kept, 300, ("default", f"gone{number}"))
    clock.advance(5)
    kept.ended(key(0), clock.now(), "done")
    assert "unfinished" in str(refused(kept)), "a place is kept for one of them"
    kept.ended(key(1), clock.now(), "done")
    kept.ended(key(2), clock.now(), "done")
    kept.check(DEV, 300)
    clock.advance(120)
    kept.hold(key(1), DEV, clock.now(), begun=True)
    kept.hold(key(2), DEV, clock.now(), begun=True)
    kept.check(DEV, 300)


def test_a_tenant_that_has_much_in_flight_leaves_room_for_the_others() -> None:
    kept = Backlog(FakeClock(NOW), 100, {}, tenant_depth_max=2)
    kept.hold(("loud", "a"), DEV, NOW, begun=True)
    with kept.place(("loud", "b"), DEV, 300):
        assert kept.depth_of_tenant("loud") == 2
        with pytest.raises(QueueFull, match="2 deliberations of yours"), kept.place(("loud", "c"), DEV, 300):
            pass
        with kept.place(("quiet", "a"), DEV, 300):
            assert kept.depth_of_tenant("quiet") == 1
        kept.hold(("loud", "b"), DEV, NOW, begun=False)
        assert kept.depth_of_tenant("loud") == 2
    kept.drop(("loud", "a"))
    kept.drop(("loud", "a"))
    kept.check(DEV, 300, tenant="loud")
    assert kept.depth_of_tenant("loud") == 1
    kept.clear()
    assert kept.depth_of_tenant("loud") == 0


def test_a_tenant_at_its_own_bound_takes_no_place_from_the_others() -> None:
    clock = FakeClock(NOW)
    kept = Backlog(clock, 100, {}, tenant_depth_max=50)
    ends(kept, clock, 40, every_s=1.0)
    for number in range(50):
        kept.hold(("loud", f"d{number}"), DEV, clock.now(), begun=True)
    waits_s = list[int]()
    for number in range(60):
        with pytest.raises(QueueFull, match="of yours") as raised:
            kept.check(DEV, 300, key=("loud", f"more{number}"), tenant="loud")
        waits_s.append(raised.value.retry_after_s)
    assert waits_s[:3] == [1, 2, 3], "one ends in a second, and all that is there is its own"
    clock.advance(10)
    for number in range(40):
        kept.check(DEV, 300, key=("quiet", f"d{number}"), tenant="quiet")
        kept.hold(("quiet", f"d{number}"), DEV, clock.now(), begun=True)


def test_a_place_behind_a_bound_of_its_own_is_kept_too() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock, QA=2)
    for number in range(10):
        clock.advance(50)
        kept.hold(key(number), {"QA"}, clock.now() - timedelta(seconds=100), begun=True)
        kept.ended(key(number), clock.now(), "done")
    kept.hold(key(10), {"QA"}, clock.now(), begun=True)
    kept.hold(key(11), {"QA"}, clock.now(), begun=True)
    with pytest.raises(QueueFull, match="role QA") as raised:
        kept.check({"QA"}, 300, key=key(12))
    assert raised.value.retry_after_s in range(40, 70), "two take a hundred seconds"
    clock.advance(raised.value.retry_after_s)
    kept.ended(key(10), clock.now(), "done")
    with pytest.raises(QueueFull, match="role QA"):
        kept.check({"QA"}, 300, key=key(13))
    kept.check({"QA"}, 300, key=key(12))


def test_what_is_taken_on_already_is_let_through_and_its_place_is_not_promised_again() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock, depth_max=1)
    with kept.place(key(1), DEV, 300):
        kept.check(DEV, 300, key=key(1))
        kept.heard(Promise("all", key(1), NOW.timestamp(), NOW.timestamp() - 1, NOW.timestamp() + 60))
    assert not kept.promises.holds("all", key(1), NOW.timestamp())
    kept.heard(Promise("all", key(2), NOW.timestamp(), NOW.timestamp() - 1, NOW.timestamp() + 60))
    assert kept.promises.holds("all", key(2), NOW.timestamp())


def test_a_clock_that_is_ahead_makes_nothing_end_faster() -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    for number in range(60):
        clock.advance(1)
        kept.hold(key(number), DEV, clock.now() - timedelta(seconds=2), begun=True)
        kept.ended(key(number), clock.now() + timedelta(seconds=30), "done")
    rate = kept.pace("DEV").rate(clock.now().timestamp())
    assert rate is not None and rate.per_s == pytest.approx(1.0, rel=0.1)


def test_a_log_that_was_read_tells_the_same_as_one_that_was_lived_through() -> None:
    clock = FakeClock(NOW)
    lived, read = backlog(clock), backlog(clock)
    old = [key(number) for number in range(20)]
    for each in old:
        lived.hold(each, DEV, clock.now(), begun=True)
    clock.advance(2)
    for each in old:
        lived.ended(each, clock.now(), "done")
    clock.advance(500)
    new = [(key(100 + number), clock.now() + timedelta(seconds=number / 4)) for number in range(80)]
    for each, at in new:
        lived.hold(each, DEV, at, begun=False)
    for each, at in reversed(new):
        read.hold(each, DEV, at, begun=False)
    for each in old:
        read.hold(each, DEV, NOW, begun=True)
    for each in old:
        read.ended(each, NOW + timedelta(seconds=2), "done")
    clock.advance(30)
    for each, _ in new[:60]:
        for kept in (lived, read):
            kept.ended(each, clock.now(), "done")
    read.settle()
    now_s = clock.now().timestamp()
    assert read.pace("DEV").rate(now_s) == lived.pace("DEV").rate(now_s)
    assert read.head_waited_s() == lived.head_waited_s() == pytest.approx(15.0)
