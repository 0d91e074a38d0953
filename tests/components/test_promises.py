"""What refused clients are told, and the places that are kept for those who do as they are told."""

import pytest

from app.promises import TOLD_MAX, WAIT_MAX_S, Promises


def client(number: int) -> tuple[str, str]:
    return ("default", f"c{number}")


def told(promises: Promises, numbers: range, now_s: float = 0.0, per_s: float = 2.0) -> list[int]:
    return [promises.tell(client(number), now_s, per_s, 1) for number in numbers]


def test_each_is_told_a_moment_of_its_own_at_the_rate_at_which_places_become_free() -> None:
    waits_s = told(Promises(), range(20))
    assert waits_s == sorted(waits_s)
    assert (waits_s[0], waits_s[-1]) == (1, 11)


def test_who_asks_too_early_is_told_the_same_moment() -> None:
    promises = Promises()
    told(promises, range(20))
    assert promises.tell(client(19), 4.0, 2.0, 1) == 7
    assert promises.tell(client(20), 4.0, 2.0, 1) == 7, "and the line is no longer for it"


def test_a_place_is_kept_around_the_moment_and_given_away_after_it() -> None:
    promises = Promises()
    assert promises.tell(client(1), 0.0, 0.1, 1) == 10
    for now_s, holds in [(5.0, False), (8.9, False), (9.0, True), (15.0, True), (15.1, False)]:
        assert promises.holds(client(1), now_s) is holds, now_s
    assert not promises.holds(None, 9.0)


def test_few_places_are_kept_however_many_were_told() -> None:
    promises = Promises()
    told(promises, range(100), per_s=50.0)
    assert promises.kept(3.0, 100) == 20
    assert promises.kept(3.0, 1_000) == 100
    promises.fulfil(client(0))
    promises.fulfil(client(0))
    assert promises.kept(3.0, 1_000) == 99
    assert promises.kept(60.0, 1_000) == 0


def test_so_far_ahead_nothing_is_promised_and_the_line_gets_no_longer() -> None:
    promises = Promises()
    waits_s = told(promises, range(200), per_s=1.0)
    assert set(waits_s[WAIT_MAX_S:]) == {WAIT_MAX_S}
    assert told(promises, range(1_000, 1_001), now_s=30.0, per_s=1.0) == [WAIT_MAX_S - 29]


def test_the_fewer_come_back_the_closer_together_the_moments_are() -> None:
    promises = Promises()
    longest = max(told(promises, range(60), per_s=1.0))
    for number in range(10):
        promises.kept(200.0 * (number + 1), 10)
        told(promises, range(1_000 * number, 1_000 * number + 60), 200.0 * (number + 1), per_s=1.0)
    promises.kept(10_000.0, 10)
    assert max(told(promises, range(60_000, 60_060), 10_000.0, per_s=1.0)) == pytest.approx(longest / 2, rel=0.1)
    for number in range(60_000, 60_060):
        promises.holds(client(number), 10_003.0)
        promises.fulfil(client(number))
    assert max(told(promises, range(70_000, 70_060), 20_000.0, per_s=1.0)) > longest / 1.5


def test_who_comes_in_time_and_is_refused_all_the_same_gets_another_moment() -> None:
    promises = Promises()
    told(promises, range(4), per_s=1.0)
    assert promises.holds(client(0), 1.5)
    assert promises.tell(client(0), 1.5, 1.0, 1) == 4
    assert not promises.holds(client(0), 1.6)
    assert promises.holds(client(0), 5.5)


def test_without_a_key_a_moment_is_told_and_nothing_kept() -> None:
    promises = Promises()
    assert [promises.tell(None, 0.0, 1.0, 1) for _ in range(3)] == [1, 2, 3]
    assert promises.kept(2.0, 100) == 0


def test_the_memory_is_bounded_and_can_be_emptied() -> None:
    promises = Promises()
    told(promises, range(TOLD_MAX + 10), per_s=1e6)
    assert promises.kept(3.0, 10**6) == TOLD_MAX
    promises.clear()
    assert promises.kept(3.0, 10**6) == 0


@pytest.mark.parametrize("ahead", [1, 10, 100])
def test_those_before_it_are_waited_for(ahead: float) -> None:
    assert Promises().tell(client(1), 0.0, 2.0, ahead) == max(1, ahead / 2)
