"""Whose turn it is: in order, as many at once as get on, those that were begun before at once."""

from app.admission.throughput import GRIP_AT_FIRST
from serve_deployments.coordinator.admission_queue import AdmissionQueue, Ticket


def places(gate: AdmissionQueue, number: int) -> list[Ticket]:
    return [gate.ask(0.0, begun=False) for _ in range(number)]


def granted(found: list[Ticket]) -> list[bool]:
    return [place.granted.is_set() for place in found]


def test_as_many_as_there_is_room_for_begin_and_the_others_follow_in_order() -> None:
    gate = AdmissionQueue(2)
    first, second, third, fourth = found = places(gate, 4)
    assert granted(found) == [True, True, False, False]
    gate.leave(second, 1.0, "done")
    assert granted(found) == [True, True, True, False]
    gate.leave(first, 1.0, "stopped")
    gate.leave(third, 1.0, "missed")
    assert granted(found) == [True] * 4
    gate.leave(fourth, 1.0, "done")
    assert gate.begun == 0


def test_who_leaves_before_its_turn_takes_no_room() -> None:
    gate = AdmissionQueue(1)
    first, second, third = found = places(gate, 3)
    gate.leave(second, 1.0, "stopped")
    gate.leave(first, 2.0, "done")
    assert granted(found) == [True, False, True]
    assert gate.begun == 1
    gate.leave(third, 3.0, "done")


def test_what_was_begun_before_goes_on_at_once_and_nobody_passes_those_who_wait() -> None:
    gate = AdmissionQueue(1)
    [first, waiting] = places(gate, 2)
    resumed = gate.ask(0.0, begun=True)
    assert granted([first, waiting, resumed]) == [True, False, True]
    gate.leave(resumed, 1.0, "done")
    assert not waiting.granted.is_set()
    gate.leave(first, 1.0, "done")
    assert waiting.granted.is_set()


def test_the_room_grows_while_work_gets_on() -> None:
    gate = AdmissionQueue(1_000)
    found = places(gate, 10 * GRIP_AT_FIRST)
    assert sum(granted(found)) == GRIP_AT_FIRST
    for place in found[:GRIP_AT_FIRST]:
        gate.leave(place, 1.0, "done")
    assert gate.begun > GRIP_AT_FIRST
