from serve_deployments.coordinator.admission_queue import LIMIT_AT_FIRST, LIMIT_MIN, AdmissionQueue, Ticket


def tickets(queue: AdmissionQueue, number: int, tenant: str = "one") -> list[Ticket]:
    return [queue.ask(0.0, tenant, begun=False) for _ in range(number)]


def granted(found: list[Ticket]) -> list[bool]:
    return [ticket.granted.is_set() for ticket in found]


def limit_after(queue: AdmissionQueue, at_s: float, took_s: float, *, missed: bool = False) -> int:
    begun = [queue.ask(at_s - took_s, "one", begun=False) for _ in range(queue.limit)]
    for ticket in begun:
        queue.leave(ticket, at_s, "missed" if missed else "done")
    return queue.limit


def test_as_many_as_there_is_room_for_begin_and_the_others_follow_in_order() -> None:
    queue = AdmissionQueue(2)
    first, second, third, fourth = found = tickets(queue, 4)
    assert granted(found) == [True, True, False, False]
    queue.leave(second, 1.0, "done")
    assert granted(found) == [True, True, True, False]
    queue.leave(first, 1.0, "stopped")
    queue.leave(third, 1.0, "missed")
    assert granted(found) == [True] * 4
    queue.leave(fourth, 1.0, "done")
    assert queue.figures() == {"begun": 0, "bound": 2, "waiting": 0}


def test_a_slot_goes_to_the_tenant_that_has_the_fewest() -> None:
    queue = AdmissionQueue(4)
    first, *_ = burst = tickets(queue, 8)
    second, third = neighbours = tickets(queue, 2, "two")
    (other,) = tickets(queue, 1, "three")
    assert granted(burst) == [True] * 4 + [False] * 4 and not any(granted([*neighbours, other]))
    queue.leave(first, 1.0, "stopped")
    assert granted([second, third, other]) == [True, False, False]
    queue.leave(burst[1], 2.0, "stopped")
    assert granted([second, third, other]) == [True, False, True]
    queue.leave(burst[2], 3.0, "stopped")
    assert granted([third, burst[4]]) == [False, True], "with one slot each, the first to wait comes first"


def test_a_tenant_of_which_nothing_runs_waits_for_no_slot() -> None:
    queue = AdmissionQueue(100)
    tickets(queue, LIMIT_AT_FIRST + 1)
    others = [each for number in range(LIMIT_AT_FIRST + 1) for each in tickets(queue, 2, f"tenant {number}")]
    assert granted(others) == [True, False] * LIMIT_AT_FIRST + [False, False] and queue.limit == LIMIT_AT_FIRST


def test_a_ticket_that_leaves_before_its_turn_takes_no_room() -> None:
    queue = AdmissionQueue(1)
    first, second, third = found = tickets(queue, 3)
    queue.leave(second, 1.0, "stopped")
    queue.leave(first, 2.0, "done")
    assert granted(found) == [True, False, True]
    assert queue.figures()["begun"] == 1
    queue.leave(third, 3.0, "done")


def test_resumed_work_begins_at_once_and_raises_the_limit_up_to_its_maximum() -> None:
    queue = AdmissionQueue(100)
    resumed = [queue.ask(0.0, "one", begun=True) for _ in range(80)]
    (waiting,) = tickets(queue, 1)
    assert all(granted(resumed)) and not waiting.granted.is_set() and queue.limit == 80
    resumed += [queue.ask(0.0, "one", begun=True) for _ in range(40)]
    assert all(granted(resumed)) and queue.limit == 100
    for ticket in resumed:
        queue.leave(ticket, 1.0, "stopped")
    assert waiting.granted.is_set() and queue.figures() == {"begun": 1, "bound": 100, "waiting": 0}


def test_the_limit_grows_while_work_is_not_slowed_and_shrinks_once_it_is() -> None:
    queue = AdmissionQueue(100)
    limits = [limit_after(queue, 2.0 * number, 2.0) for number in range(1, 5)]
    assert LIMIT_AT_FIRST < limits[0] and limits == sorted(limits) and limits[-1] == 100, "up to its maximum"
    slower = [limit_after(queue, 20.0 + 20.0 * number, 20.0) for number in range(6)]
    assert slower == sorted(slower, reverse=True) and slower[-1] < 60


def test_missed_deadlines_lower_the_limit_unless_the_work_began_too_late() -> None:
    queue = AdmissionQueue(100)
    for number in range(10):
        limit_after(queue, 100.0 * (number + 1), 90.0, missed=True)
    assert queue.limit == LIMIT_MIN
    late = AdmissionQueue(100)
    before = limit_after(late, 10.0, 10.0)
    assert limit_after(late, 20.0, 3.0, missed=True) == before


def test_the_baseline_latency_is_the_least_seen_and_grows_with_its_age() -> None:
    def limits_of(later_s: float) -> list[int]:
        queue = AdmissionQueue(1_000)
        limit_after(queue, 10.0, 10.0)
        return [limit_after(queue, later_s + 30.0 * number, 21.0) for number in range(4)]

    soon, after_an_hour = limits_of(40.0), limits_of(3_600.0)
    assert soon[-1] < soon[0], "21 s are more than twice the baseline of 10 s"
    assert after_an_hour[-1] > after_an_hour[0], "the baseline has grown to 13 s"


def test_the_limit_recovers_when_work_of_another_strategy_takes_longer() -> None:
    queue = AdmissionQueue(100)
    limit_after(queue, 1.0, 0.03)
    limits = [limit_after(queue, 1.0 + number, 0.5) for number in range(1, 15)]
    assert min(limits) == LIMIT_MIN, "at first it looks like congestion"
    assert limits[-1] == 100, "but with little in hand it takes as long"
