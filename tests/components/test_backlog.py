"""Who may still be taken on: by depth, by role, and by how long the queue's head has waited."""

from datetime import timedelta

import pytest

from app.backlog import Backlog
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


@pytest.mark.parametrize(
    ("ends", "within_s", "active", "retry_after_s"),
    [
        (0, 0, 5, 60),  # nothing ends: no promise below the longest
        (10, 10, 5, 5),  # one a second
        (60, 6, 5, 1),
        (2, 60, 5, 60),
        (50, 10, 100, 20),
    ],
)
def test_retry_after_is_the_backlog_over_the_rate_of_the_last_minute(
    ends: int, within_s: int, active: int, retry_after_s: int
) -> None:
    clock = FakeClock(NOW)
    kept = backlog(clock)
    for number in range(active):
        kept.hold(key(number), DEV, NOW, begun=True)
    for _ in range(ends):
        kept.ended(clock.now())
    clock.advance(within_s)
    assert kept.retry_after_s() == retry_after_s
    clock.advance(61)
    assert kept.retry_after_s() == 60


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
