"""Every strategy with few members, and with the most that a gateway takes: too long to be run while writing."""

from collections.abc import Iterable

import pytest

from tests.oracles.strategies.test_every_strategy_accounting import counts
from tests.unit.facts_of import run
from tests.unit.strategies.every_strategy import MAIN_WAYS, OTHER_WAYS, Way, failing, verdict

SIZES = (*range(1, 17), 31, 32)
SOME_SIZES = (2, 7, 10, 17, 31, 32)
every_main_way = pytest.mark.parametrize("way", MAIN_WAYS.values(), ids=MAIN_WAYS)
every_other_way = pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS)


def makes_the_calls_foretold(way: Way, sizes: Iterable[int]) -> None:
    for size in sizes:
        ended = way.run(size)
        assert counts(ended) == {way.calls(size, 1)}, f"N={size}"
        assert ended.completed.degraded is None, f"N={size}"
        assert (verdict(ended).content is None) == (way.strategy == "independent"), f"N={size}"


@every_main_way
def test_a_council_of_any_size_makes_the_calls_foretold_and_comes_to_a_verdict(way: Way) -> None:
    makes_the_calls_foretold(way, SIZES)


@every_other_way
def test_so_do_councils_of_some_sizes_in_every_other_way(way: Way) -> None:
    makes_the_calls_foretold(way, SOME_SIZES)


@every_main_way
def test_a_council_of_whom_every_third_member_fails_comes_to_a_verdict_and_tells_it(way: Way) -> None:
    for size in SOME_SIZES:
        script = failing(way.script(), lambda call: int(call.agent_id[-3:]) % 3 == 0)
        ended = run(way.asked(size), script)
        assert bool(ended.degraded) == any(script(call).text is None for call in ended.calls), f"N={size}"
        assert verdict(ended).content or way.strategy == "independent", f"N={size}"
