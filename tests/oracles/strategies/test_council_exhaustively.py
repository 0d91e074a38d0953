from itertools import combinations

import pytest

from app.deliberation.choice.critiques import CritiqueStopRule
from app.deliberation.facts import StageOpened
from app.deliberation.specification import Budget
from tests.unit.facts_of import CouncilScript, agent_ids, run
from tests.unit.strategies.criticising import STOPS, asked, criticised


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("critics", [1, 2, 3, 8])
def test_calls_equal_the_formula_with_several_critics(size: int, critics: int) -> None:
    k = min(critics, size - 1)
    for rounds in (0, 1, 2):
        ended = run(asked(size, rounds, critics=critics))
        assert len(ended.calls) == ended.verdict.calls == (1 if size == 1 else 2 * size + rounds * size * (k + 1))
        assert ended.completed.degraded is None


def test_a_failed_critic_leaves_the_findings_of_the_others() -> None:
    whole = run(asked(critics=2))
    for count in range(1, 7):
        for failing in combinations([call.call_id for call in whole.asked("critique")], count):
            ended = run(asked(critics=2), CouncilScript(failing=failing))
            criticised_authors = {criticised(call) for call in ended.asked("critique") if call.call_id not in failing}
            assert {call.agent_id for call in ended.asked("revise")} == criticised_authors
            assert ended.degraded == (f"{count} of 6 critiques of round 1 are missing",)
            assert ended.winner == "dev-001"


@pytest.mark.parametrize("rule", STOPS)
def test_every_pattern_of_failures_of_a_stage_comes_to_a_verdict(rule: CritiqueStopRule) -> None:
    for size in (2, 3):
        for stage in run(asked(size, stop=rule, critics=2)).all(StageOpened)[1:]:
            ids = [call.call_id for call in stage.calls]
            # Of three members one call or all; `test_every_strategy_failures` tries the rest.
            for count in range(1, len(ids) + 1) if size == 2 else (1, len(ids)):
                for failing in combinations(ids, count):
                    ended = run(asked(size, stop=rule, critics=2), CouncilScript(failing=failing))
                    assert sorted(ended.order) == agent_ids(size)
                    assert ended.content
                    assert any(f"{count} of {len(ids)}" in reason for reason in ended.degraded)


@pytest.mark.parametrize("rule", STOPS)
def test_a_budget_that_ends_anywhere_leaves_a_verdict(rule: CritiqueStopRule) -> None:
    whole = run(asked(3, 2, stop=rule, critics=2))
    for max_calls in range(3, len(whole.calls) + 1):
        ended = run(asked(3, 2, Budget(max_calls=max_calls), stop=rule, critics=2))
        assert len(ended.calls) <= max_calls
        assert ended.content
        assert ("budget" in ended.degraded) == (max_calls < len(whole.calls))
