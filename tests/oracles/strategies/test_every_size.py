from collections.abc import Iterable

import pytest

from tests.oracles.strategies.call_counts import counts
from tests.unit.facts_of import run
from tests.unit.strategies.every_strategy import MAIN_WAYS, OTHER_WAYS, Way, failing

SIZES = (*range(1, 17), 31, 32)
SOME_SIZES = (2, 7, 10, 17, 31, 32)
every_main_way = pytest.mark.parametrize("way", MAIN_WAYS.values(), ids=MAIN_WAYS)
every_other_way = pytest.mark.parametrize("way", OTHER_WAYS.values(), ids=OTHER_WAYS)


def assert_calls_match_the_definition(way: Way, sizes: Iterable[int]) -> None:
    for size in sizes:
        ended = way.run(size)
        assert counts(ended) == {way.calls(size, 1)}, f"N={size}"
        assert ended.completed.degraded is None, f"N={size}"
        assert (ended.verdict.content is None) == (way.strategy == "independent"), f"N={size}"


@every_main_way
def test_every_size_makes_the_calls_of_the_formula_and_reaches_a_verdict(way: Way) -> None:
    assert_calls_match_the_definition(way, SIZES)


@every_other_way
def test_some_sizes_make_the_calls_of_the_formula_with_every_variant(way: Way) -> None:
    assert_calls_match_the_definition(way, SOME_SIZES)


@every_main_way
def test_a_council_with_every_third_member_failing_reaches_a_degraded_verdict(way: Way) -> None:
    for size in SOME_SIZES:
        script = failing(way.script(), lambda call: int(call.agent_id[-3:]) % 3 == 0)
        ended = run(way.asked(size), script)
        assert bool(ended.degraded) == any(script(call).text is None for call in ended.calls), f"N={size}"
        assert ended.verdict.content or way.strategy == "independent", f"N={size}"
