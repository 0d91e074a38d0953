"""Deliberations begin in order, as many at once as the limit allows; those that had begun before go on at once."""

from app.admission.concurrency import LIMIT_AT_FIRST
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket


def tickets(queue: AdmissionQueue, number: int) -> list[Ticket]:
    return [queue.ask(0.0, begun=False) for _ in range(number)]


def granted(found: list[Ticket]) -> list[bool]:
    return [ticket.granted.is_set() for ticket in found]


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


def test_a_ticket_that_leaves_before_its_turn_takes_no_room() -> None:
    queue = AdmissionQueue(1)
    first, second, third = found = tickets(queue, 3)
    queue.leave(second, 1.0, "stopped")
    queue.leave(first, 2.0, "done")
    assert granted(found) == [True, False, True]
    assert queue.figures()["begun"] == 1
    queue.leave(third, 3.0, "done")


def test_resumed_work_starts_at_once_and_new_work_waits_its_turn() -> None:
    queue = AdmissionQueue(1)
    [first, waiting] = tickets(queue, 2)
    resumed = queue.ask(0.0, begun=True)
    assert granted([first, waiting, resumed]) == [True, False, True]
    queue.leave(resumed, 1.0, "done")
    assert not waiting.granted.is_set()
    queue.leave(first, 1.0, "done")
    assert waiting.granted.is_set()


def test_the_room_grows_while_work_is_not_slowed() -> None:
    queue = AdmissionQueue(1_000)
    found = tickets(queue, 10 * LIMIT_AT_FIRST)
    assert sum(granted(found)) == LIMIT_AT_FIRST
    for ticket in found[:LIMIT_AT_FIRST]:
        queue.leave(ticket, 1.0, "done")
    assert queue.figures()["begun"] > LIMIT_AT_FIRST
