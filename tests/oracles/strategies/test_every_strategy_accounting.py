import json

import pytest

from app.deliberation.calls import Usage, UsageCost
from app.deliberation.strategies import STRATEGIES
from tests.oracles.strategies.call_counts import counts
from tests.unit.facts_of import run
from tests.unit.strategies.every_strategy import WAYS, Way, priced

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def test_every_registered_strategy_is_run_in_some_way() -> None:
    assert {way.strategy for way in WAYS.values()} == set(STRATEGIES), "add the new strategy to every_strategy.WAYS"


@every_way
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_every_count_of_calls_equals_the_formula(way: Way, rounds: int) -> None:
    # Where rounds mean nothing, one size shows it.
    sizes = (1, 2, 3, 5, 9) if rounds == 1 or STRATEGIES[way.strategy].rounds else (3,)
    for size in sizes:
        ended = way.run(size, rounds=rounds)
        assert counts(ended) == {way.calls(size, rounds)}, f"N={size}"
        assert ended.completed.degraded is None, f"N={size}: {ended.degraded}"


@every_way
def test_tokens_and_attempts_are_the_sums_over_all_calls(way: Way) -> None:
    script = priced(way.script())
    ended = run(way.asked(5), script)
    spent = ended.end.usage
    paid = [script(call).usage for call in ended.calls]
    for side in ("prompt_tokens", "completion_tokens", "cached_tokens", "calls"):
        assert getattr(spent, side) == sum(getattr(each, side) for each in paid)
        assert getattr(spent, side) == sum(getattr(stage, side) for stage in spent.by_stage)
        assert getattr(spent, side) == sum(getattr(agent, side) for agent in spent.by_agent)
    known = [each.cost for each in paid if each.cost is not None]
    unpriced = sum(each.calls for each in paid if each.cost is None)
    total = UsageCost(amount=sum(each.amount for each in known), currency="USD", unpriced_calls=unpriced)
    for sums in ([spent], spent.by_stage, spent.by_agent):
        assert sum(sums, Usage()).cost == (total if known else None)


@every_way
def test_the_declared_steps_are_the_stages_that_run(way: Way) -> None:
    declared = [step.partition(" ")[0] for step in STRATEGIES[way.strategy].steps]
    for size in (1, 2, 5):
        for purpose in way.run(size, rounds=2).purposes:
            assert purpose in declared, f"{way.strategy} runs a stage {purpose} that its steps {declared} do not name"


@every_way
def test_the_call_that_a_verdict_names_wrote_its_content(way: Way) -> None:
    for size in (1, 2, 5):
        ended = way.run(size)
        found = ended.verdict
        if found.content is None:
            assert found.call_id is None
            continue
        wrote = next(call for call in ended.calls if call.call_id == found.call_id)
        written = json.loads(way.script()(wrote).text or "")
        assert found.content == written["code" if wrote.output.kind == "program" else "answer"]
        assert found.winner == wrote.agent_id
