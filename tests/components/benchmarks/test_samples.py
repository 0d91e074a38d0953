"""A wave of identical samples is one request, with the answers, calls and written tokens of single ones."""

from benchmarks.engines.samples import measure
from tests.integration.simulator.test_simulator_server import running


async def test_a_vote_of_nine_is_one_request_in_place_of_nine() -> None:
    with running("--seed", "3") as simulator:
        found = await measure(simulator.url, agents=9, at_once=2, rounds=2)
    together, single = found["n"], found["single"]
    assert (together.requests, single.requests) == (4, 36)
    assert together.usage.calls == single.usage.calls == 36
    assert together.texts == single.texts and len(set(together.texts.values())) > 30
    assert together.usage.completion_tokens == single.usage.completion_tokens
    for each in found.values():
        assert each.usage.tokens == each.counted.tokens, "what is recorded is the engine's count"
        assert each.usage.cached_tokens == each.counted.cached_tokens
        assert len(each.first_s) == 4 and all(
            0 < first <= last for first, last in zip(each.first_s, each.last_s, strict=True)
        )
