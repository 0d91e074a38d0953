"""Every strategy with every number of members that a gateway takes: too long for the tests that run while writing."""

import pytest

from tests.unit.every_strategy import WAYS, Way, failing, verdict
from tests.unit.facts_of import run

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_way
def test_a_council_of_any_size_makes_the_calls_foretold_and_comes_to_a_verdict(way: Way) -> None:
    for size in range(1, 33):
        ended = way.run(size)
        assert verdict(ended).calls == len(ended.calls) == way.calls(size, 1), f"N={size}"
        assert ended.completed.degraded is None, f"N={size}"


@every_way
def test_a_council_of_any_size_of_whom_every_third_member_fails_comes_to_a_verdict(way: Way) -> None:
    for size in range(2, 33):
        script = failing(way.script(), lambda call: int(call.agent_id[-3:]) % 3 == 0)
        ended = run(way.asked(size), script)
        assert bool(ended.degraded) == any(script(call).text is None for call in ended.calls), f"N={size}"
        assert verdict(ended).content or way.strategy == "independent", f"N={size}"
