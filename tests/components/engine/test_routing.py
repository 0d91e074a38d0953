from collections import Counter
from dataclasses import dataclass
from math import ceil
from random import Random

import pytest

from serve_deployments.engine.pool import BOUND, TOGETHER, engine_for


@dataclass(eq=False)
class Engine:
    address: str
    in_flight: int = 0


def fleet(count: int) -> list[Engine]:
    return [Engine(f"http://engine-{place}:8000") for place in range(count)]


def address_for(deliberation: str, engines: list[Engine]) -> str:
    chosen = engine_for(deliberation, engines)
    assert chosen is not None
    return chosen.address


def test_without_an_engine_there_is_no_choice() -> None:
    assert engine_for("default.d1", []) is None


def test_calls_of_one_deliberation_share_an_engine_on_every_replica() -> None:
    engines, others = fleet(4), fleet(4)[::-1]
    for number in range(200):
        assert address_for(f"default.{number}", engines) == address_for(f"default.{number}", others)


def test_deliberations_and_tenants_are_spread_evenly() -> None:
    engines = fleet(4)
    placed = Counter(address_for(f"t{number % 7}.d{number}", engines) for number in range(4_000))
    assert len(placed) == 4 and max(placed.values()) < 1.1 * 1_000
    assert len({address_for(f"{tenant}.d1", engines) for tenant in range(50)}) == 4


@pytest.mark.parametrize("count", [2, 4, 9])
def test_an_engine_that_leaves_moves_only_its_own_deliberations(count: int) -> None:
    engines = fleet(count)
    names = [f"default.{number}" for number in range(500)]
    before = {name: address_for(name, engines) for name in names}
    gone, *rest = engines
    after = {name: address_for(name, rest) for name in names}
    assert all(after[name] == before[name] for name in names if before[name] != gone.address)
    assert {name: address_for(name, [*rest, gone]) for name in names} == before, "it gets the same ones back"


def test_a_full_engine_spills_to_the_least_loaded() -> None:
    engines = fleet(4)
    first = engine_for("default.d1", engines)
    assert first is not None
    for engine in engines:
        engine.in_flight = 40
    assert engine_for("default.d1", engines) is first
    least = next(engine for engine in engines if engine is not first)
    first.in_flight, least.in_flight = 60, 39
    assert engine_for("default.d1", engines) is least


def test_few_requests_stay_together_whatever_the_mean() -> None:
    engines = fleet(4)
    first = engine_for("default.d1", engines)
    assert first is not None
    first.in_flight = TOGETHER - 1
    assert engine_for("default.d1", engines) is first
    first.in_flight = TOGETHER
    assert engine_for("default.d1", engines) is not first


@pytest.mark.parametrize(("count", "replicas", "seed"), [(4, 1, 1), (4, 5, 2), (3, 8, 3), (16, 3, 4)])
def test_replicas_that_know_only_their_own_requests_keep_the_bound_together(
    count: int, replicas: int, seed: int
) -> None:
    """Two deliberations of three have the same first engine, the worst case of a hash."""
    chance, views = Random(seed), [fleet(count) for _ in range(replicas)]
    popular = [name for name in map(str, range(2_000)) if address_for(name, fleet(count)) == "http://engine-0:8000"]
    for _ in range(6_000):
        view = chance.choice(views)
        name = chance.choice(popular) if chance.random() < 2 / 3 else str(chance.randrange(2_000))
        placed = engine_for(name, view)
        assert placed is not None
        placed.in_flight += 1
        mine = sum(engine.in_flight for engine in view)
        assert placed.in_flight <= max(TOGETHER, ceil(BOUND * mine / count))
    loads = [sum(view[place].in_flight for view in views) for place in range(count)]
    assert max(loads) <= BOUND * sum(loads) / count + TOGETHER * replicas
