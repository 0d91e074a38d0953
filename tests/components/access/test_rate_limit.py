"""How often a tenant may ask: at most so much in any minute, told in advance, and nothing of it for the others."""

import random
import re
from dataclasses import dataclass

import pytest
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from app.access.rate_limit import WINDOW_S, Rates, Windows


@dataclass
class Time:
    """Seconds since 1970, as told."""

    now_s: float = 1_000_020.0

    def __call__(self) -> float:
        return self.now_s


def admitted(rates: Rates, tenant: str, attempts: int) -> int:
    return sum(rates.take(tenant).admitted for _ in range(attempts))


def test_a_tenant_may_ask_so_often_and_another_as_often() -> None:
    rates = Rates(10, Time())
    assert admitted(rates, "loud", 1_000) == 10
    assert admitted(rates, "quiet", 1_000) == 10


def test_what_was_asked_slides_out_of_the_minute() -> None:
    time = Time(1_000_020.0)  # a window begins here
    rates = Rates(60, time)
    assert admitted(rates, "a", 100) == 60
    time.now_s += WINDOW_S
    assert admitted(rates, "a", 100) == 0
    time.now_s += WINDOW_S / 2
    assert admitted(rates, "a", 100) == 30
    time.now_s += 2 * WINDOW_S
    assert admitted(rates, "a", 100) == 60


def test_no_minute_of_steady_asking_admits_more_than_the_bound_and_little_less() -> None:
    time, chance = Time(), random.Random(1)
    rates, taken = Rates(100, time), list[float]()
    for _ in range(20_000):
        time.now_s += chance.expovariate(5.0)
        if rates.take("a").admitted:
            taken.append(time.now_s)
    per_minute = len(taken) / (taken[-1] - taken[0]) * 60
    assert 90 <= per_minute <= 101


def test_the_windows_count_as_those_of_the_library() -> None:
    """Ours is a storage of the library because its own start threads; the counting must be the same."""
    own = Rates(50)
    theirs, item = SlidingWindowCounterRateLimiter(MemoryStorage()), own._item  # pyright: ignore[reportPrivateUsage]
    for _ in range(60):
        rate = own.take("a")
        assert theirs.hit(item, "a") == rate.admitted
        assert abs(theirs.get_window_stats(item, "a").remaining - rate.remaining) <= 1


def test_a_refusal_says_in_how_many_seconds_there_is_room() -> None:
    time = Time(1_000_020.0 + 45)
    rates = Rates(60, time)
    assert admitted(rates, "a", 61) == 60
    refused = rates.take("a")
    assert (refused.admitted, refused.remaining, refused.reset_s) == (False, 0, 15)
    time.now_s += refused.reset_s + 1
    assert rates.take("a").admitted
    assert rates.take("a").reset_s == 1, "from now on one a second"


def test_the_headers_are_structured_fields_of_the_draft() -> None:
    rates = Rates(60, Time())
    rate = rates.take("a")
    headers = dict(rates.headers(rate))
    assert headers[b"ratelimit-policy"] == b'"requests";q=60;w=60'
    assert re.fullmatch(rb'"requests";r=59;t=[1-9][0-9]?', headers[b"ratelimit"])
    assert rate.remaining == 59


def test_tenants_that_no_longer_ask_are_forgotten() -> None:
    time = Time()
    windows = Windows(time)
    for number in range(3_000):
        windows.acquire_sliding_window_entry(f"t{number}", 10, WINDOW_S)
    time.now_s += 3 * WINDOW_S
    for number in range(4_000):
        windows.acquire_sliding_window_entry(f"n{number}", 10, WINDOW_S)
    assert windows.get("t0") == 0
    assert windows.get("n3999") == 1
    assert windows.reset() == 4_000


@pytest.mark.parametrize("amount", [1, 5])
def test_it_is_a_whole_storage_of_the_library(amount: int) -> None:
    windows = Windows(Time())
    assert windows.check()
    assert windows.incr("a", WINDOW_S, amount) == amount
    assert windows.get("a") == amount
    windows.clear_sliding_window("a", WINDOW_S)
    assert windows.get("a") == 0
