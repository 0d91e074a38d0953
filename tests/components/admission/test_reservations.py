"""What refused clients are told, and the places that are kept for those who do as they are told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from app.admission.reservations import SUBJECT, TOLD_MAX, WAIT_MAX_S, Line, Promise, Promises, share
from app.testing import InMemoryJournal
from tests.conditions import until
from tests.story import NOW


def client(number: int) -> tuple[str, str]:
    return ("default", f"c{number}")


def line(name: str = "all") -> Line:
    return Line(name, lambda _: None)


def told(promises: Line, numbers: range, now_s: float = 0.0, per_s: float = 2.0) -> list[int]:
    return [promises.tell(client(number), now_s, per_s, 1) for number in numbers]


def test_each_is_told_a_moment_of_its_own_at_the_rate_at_which_places_become_free() -> None:
    waits_s = told(line(), range(20))
    assert waits_s == sorted(waits_s)
    assert (waits_s[0], waits_s[-1]) == (1, 11)


def test_who_asks_too_early_is_told_the_same_moment() -> None:
    promises = line()
    told(promises, range(20))
    assert promises.tell(client(19), 4.0, 2.0, 1) == 7
    assert promises.tell(client(20), 4.0, 2.0, 1) == 7, "and the line is no longer for it"


def test_a_place_is_kept_around_the_moment_and_given_away_after_it() -> None:
    promises = line()
    assert promises.tell(client(1), 0.0, 0.1, 1) == 10
    for now_s, holds in [(5.0, False), (8.9, False), (9.0, True), (15.0, True), (15.1, False)]:
        assert promises.holds(client(1), now_s) is holds, now_s
    assert not promises.holds(None, 9.0)


def test_few_places_are_kept_however_many_were_told() -> None:
    promises = line()
    told(promises, range(100), per_s=50.0)
    assert promises.kept(3.0, 100) == 20
    assert promises.kept(3.0, 1_000) == 100
    promises.fulfil(client(0))
    promises.fulfil(client(0))
    assert promises.kept(3.0, 1_000) == 99
    assert promises.kept(60.0, 1_000) == 0
    few = line()
    told(few, range(10), per_s=10.0)
    assert [few.kept(2.0, places) for places in (0, 1, 2, 4, 9, 10)] == [0, 0, 1, 1, 1, 2], "but one of a few"


def test_so_far_ahead_nothing_is_promised_and_the_line_gets_no_longer() -> None:
    promises = line()
    waits_s = told(promises, range(200), per_s=1.0)
    assert set(waits_s[WAIT_MAX_S:]) == {WAIT_MAX_S}
    assert told(promises, range(1_000, 1_001), now_s=30.0, per_s=1.0) == [WAIT_MAX_S - 29]


def test_the_fewer_come_back_the_closer_together_the_moments_are() -> None:
    promises = line()
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


def test_a_line_that_is_full_of_those_who_will_not_come_hinders_nobody_who_does() -> None:
    promises = line()
    told(promises, range(100), per_s=1.0)
    promises.kept(500.0, 10)
    flood = told(promises, range(1_000, 2_000), 500.0, per_s=1.0)
    ordered, beyond = flood[: 2 * WAIT_MAX_S - 2], flood[2 * WAIT_MAX_S :]
    assert ordered == sorted(ordered), "twice as many as there is room for, and no more"
    for quarter in range(4):
        share = sum(quarter * 30 < wait_s <= (quarter + 1) * 30 for wait_s in beyond) / len(beyond)
        assert share == pytest.approx(0.25, abs=0.02)
    assert all(promises.holds(client(1_000 + number), 500.0 + wait_s) for number, wait_s in sorted_by_wait(flood))


def sorted_by_wait(waits_s: list[int]) -> list[tuple[int, int]]:
    return sorted(enumerate(waits_s), key=lambda told: told[1])


def test_who_comes_in_time_and_is_refused_all_the_same_gets_another_moment() -> None:
    promises = line()
    told(promises, range(4), per_s=1.0)
    assert promises.holds(client(0), 1.5)
    assert promises.tell(client(0), 1.5, 1.0, 1) == 4
    assert not promises.holds(client(0), 1.6)
    assert promises.holds(client(0), 5.5)


def test_without_a_key_a_moment_is_told_and_nothing_kept() -> None:
    promises = line()
    assert [promises.tell(None, 0.0, 1.0, 1) for _ in range(3)] == [1, 2, 3]
    assert promises.kept(2.0, 100) == 0


def test_the_memory_is_bounded() -> None:
    promises = line()
    told(promises, range(TOLD_MAX + 10), per_s=1e6)
    assert promises.kept(3.0, 10**6) == TOLD_MAX
    promises.fulfil(client(0))
    assert promises.kept(3.0, 10**6) == TOLD_MAX - 1
    assert promises.kept(60.0, 10**6) == 0


@pytest.mark.parametrize("ahead", [1, 10, 100])
def test_those_before_it_are_waited_for(ahead: float) -> None:
    assert line().tell(client(1), 0.0, 2.0, ahead) == max(1, ahead / 2)


@asynccontextmanager
async def sharing(*several: Promises) -> AsyncGenerator[tuple[InMemoryJournal, float]]:
    """Gateways that hear each other: what they speak over, and their present."""
    journal, now_s = InMemoryJournal(), NOW.timestamp()
    tasks = [
        asyncio.create_task(share(each, lambda promise, each=each: each.heard(promise, now_s), journal))
        for each in several
    ]
    await until(lambda: all(promises.announce for promises in several))
    yield journal, now_s
    for task in tasks:
        task.cancel()


def all_told(promises: Promises, numbers: range, now_s: float, per_s: float = 1.0, name: str = "all") -> list[int]:
    return [promises.tell(name, client(number), now_s, per_s, 1) for number in numbers]


async def test_a_line_is_one_for_all_gateways() -> None:
    here, there = Promises(), Promises()
    async with sharing(here, there) as (_, now_s):
        waits_s = all_told(here, range(3), now_s)
        await until(lambda: there.holds("all", client(2), now_s + 3))
        assert waits_s == [1, 2, 3]
        assert all_told(there, range(10, 13), now_s) == [4, 5, 6], "behind those of the other"
        await until(lambda: here.holds("all", client(12), now_s + 6))
        here.fulfil(["all", "role DEV"], client(2))
        assert (here.kept("all", now_s + 6, 100), there.kept("all", now_s + 6, 100)) == (3, 4)
        assert not here.holds("all", client(12), now_s + 60), "and a moment passes everywhere"


def test_who_waits_behind_one_bound_is_in_nobodys_way_behind_another() -> None:
    promises = Promises()
    assert max(all_told(promises, range(60), 0.0, 0.5, "role SLOW")) == WAIT_MAX_S
    assert all_told(promises, range(3), 0.0, 1.0, "role FAST") == [1, 2, 3]
    assert [promises.kept(name, 3.0, 100) for name in ("role SLOW", "role FAST", "all")] == [2, 3, 0]
    promises.clear()
    assert promises.kept("role FAST", 3.0, 100) == 0


async def test_clocks_that_differ_and_words_that_nobody_understands_spoil_nothing() -> None:
    here = Promises()
    async with sharing(here) as (journal, now_s):
        times = b'"at_s": 1, "from_s": 1, "until_s": Infinity'
        for word in (b"", b"{}", b"\xff", b'{"line": "all", "key": ["default", "x"], %s}' % times):
            with capture_logs() as logs:
                await journal.tell(SUBJECT, word)
            assert [line["event"] for line in logs] == ["promise_unreadable"], word
        for at_s in (now_s + 300, now_s - 300):
            here.heard(Promise("all", client(1), at_s, at_s, at_s + 5), now_s)
        assert all_told(here, range(2, 3), now_s) == [1]


async def test_more_words_than_can_be_sent_are_dropped_and_the_promises_hold_here() -> None:
    here, there = Promises(), Promises()
    async with sharing(here, there) as (_, now_s):
        all_told(here, range(1_500), now_s, per_s=1_000.0)
        await until(lambda: there.holds("all", client(999), now_s + 3))
        assert here.holds("all", client(1_499), now_s + 3)
        assert not there.holds("all", client(1_499), now_s + 3)
