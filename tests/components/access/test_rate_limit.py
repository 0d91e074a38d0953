import random
from dataclasses import dataclass

from app.access.rate_limit import WINDOW_S, Rates


@dataclass
class Time:
    now_s: float = 1_000_020.0

    def __call__(self) -> float:
        return self.now_s


def admitted(rates: Rates, tenant: str, attempts: int) -> int:
    return sum(rates.admit(tenant).admitted for _ in range(attempts))


def test_requests_of_the_previous_window_count_by_their_overlap() -> None:
    time = Time(1_000_020.0)  # a window begins here
    rates = Rates(60, time)
    assert admitted(rates, "a", 100) == 60
    time.now_s += WINDOW_S
    assert admitted(rates, "a", 100) == 0
    time.now_s += WINDOW_S / 2
    assert admitted(rates, "a", 100) == 30
    time.now_s += 2 * WINDOW_S
    assert admitted(rates, "a", 100) == 60


def test_a_steady_overload_is_admitted_at_the_limit() -> None:
    time, chance = Time(), random.Random(1)
    rates, taken = Rates(100, time), list[float]()
    for _ in range(20_000):
        time.now_s += chance.expovariate(5.0)
        if rates.admit("a").admitted:
            taken.append(time.now_s)
    per_minute = len(taken) / (taken[-1] - taken[0]) * 60
    assert 90 <= per_minute <= 101


def test_a_refusal_gives_the_seconds_until_the_next_request_is_admitted() -> None:
    time = Time(1_000_020.0 + 45)
    rates = Rates(60, time)
    assert admitted(rates, "a", 61) == 60
    refused = rates.admit("a")
    assert (refused.admitted, refused.remaining, refused.reset_s) == (False, 0, 15)
    time.now_s += refused.reset_s + 1
    assert rates.admit("a").admitted
    assert rates.admit("a").reset_s == 1, "from now on one a second"


def test_forgets_tenants_that_send_no_more_requests() -> None:
    time = Time()
    rates = Rates(10, time)
    assert sum(rates.admit(f"t{number}").admitted for number in range(3_000)) == 3_000
    time.now_s += 3 * WINDOW_S
    for number in range(4_000):
        rates.admit(f"n{number}")
    assert len(rates._counts) == 4_000  # pyright: ignore[reportPrivateUsage]
    assert rates.admit("n3999").remaining == 8, "a sweep keeps the counters in use"
