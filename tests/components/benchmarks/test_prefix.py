"""Routing keeps prefix caches warm and engines evenly loaded, in the benchmark's virtual time."""

import sys
from collections.abc import Sequence

import pytest

from benchmarks.agent_loop import MEMBERS, shares, simulated
from benchmarks.prefix import ROLES, Fleet, least_in_flight, prefix_first


@pytest.mark.parametrize(("roles", "in_flight"), [(ROLES[:3], 50), (ROLES[:1], 8)])
def test_four_engines_serve_councils_from_their_caches_as_one_with_room_for_all(
    roles: Sequence[str], in_flight: int
) -> None:
    one = Fleet(least_in_flight, 1, roles=roles, blocks_max=sys.maxsize).run(200, in_flight)
    four = Fleet(prefix_first, 4, roles=roles).run(200, in_flight)
    spread = Fleet(least_in_flight, 4, roles=roles).run(200, in_flight)
    assert len(four.seconds) == len(one.seconds) == 200
    assert four.cached_share >= 0.95 * one.cached_share > spread.cached_share
    assert four.busiest <= 1.25


@pytest.mark.parametrize("strategy", MEMBERS)
def test_an_agents_loop_computes_each_turn_once(strategy: str) -> None:
    _, achieved, ideal = shares(strategy, MEMBERS[strategy], simulated(), result_chars=300)
    assert achieved >= 0.95 * ideal > 0.75
