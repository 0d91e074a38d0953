from collections.abc import Sequence
from itertools import combinations
from random import Random

import pytest

from app.deliberation.facts import Failed
from tests.unit.facts_of import CouncilScript, Run, agent_ids, quorum_of, run
from tests.unit.strategies.tournaments import asked, brief, every_format, judged, shown


@every_format
@pytest.mark.parametrize("size", range(2, 10))
def test_judges_of_one_taste_find_the_best(form: str, size: int) -> None:
    for seed in range(3):
        ended = run(asked(size, form, seed=seed))
        assert ended.winner == "dev-001"
        assert ended.content == "text of s1-dev-001"
        assert ended.verdict.call_id == "s1-dev-001"
        if size > 2:
            assert (ended.verdict.dissent, ended.verdict.agreement) == ((), pytest.approx(1.0))
        if form == "round_robin":
            assert ended.order == agent_ids(size)


@every_format
@pytest.mark.parametrize("place", ["A", "B"])
@pytest.mark.parametrize("agent", agent_ids(5))
def test_judges_that_follow_the_place_decide_nothing(form: str, place: str, agent: str) -> None:
    ended = run(asked(5, form), judged(lambda _: place, usage=brief(agent)))
    assert ended.winner == agent
    assert {standing.score for standing in ended.verdict.ranking} == {0.5}
    assert (ended.verdict.tie, ended.verdict.margin) == (True, 0.0)


@every_format
def test_every_pattern_of_failed_proposals_comes_to_a_verdict_over_those_left(form: str) -> None:
    for size in range(1, 5):
        for count in range(size + 1):
            for failing in combinations(agent_ids(size), count):
                ended = run(asked(size, form), CouncilScript(failing=[f"s1-{agent}" for agent in failing]))
                left = [agent for agent in agent_ids(size) if agent not in failing]
                if not left:
                    assert isinstance(ended.end, Failed)
                    continue
                expected = {f"{len(left)} of {size} agents answered"} if failing else set[str]()
                if len(left) == 1 and size > 1:
                    expected.add("unreviewed")
                if len(left) == 2 and quorum_of(size) > 2:
                    expected.add("pair judged: below the quorum")
                assert set(ended.degraded) == expected
                assert sorted(ended.order) == left
                assert ended.winner == left[0]


def consistent(ended: Run, failing: Sequence[str]) -> None:
    calls = ended.asked("judge")
    answered = [call for call in calls if call.call_id not in failing]
    found = ended.verdict
    compared = {each for call in answered for each in shown(call)}
    assert {standing.agent_id for standing in found.ranking if standing.score is not None} == compared
    assert sorted(ended.order) == agent_ids(len(ended.order))
    missing = (
        [f"{len(calls) - len(answered)} of {len(calls)} comparisons are missing"] if len(answered) < len(calls) else []
    )
    assert [*ended.degraded] == [*missing, *([] if answered else ["unscored"])]
    assert (found.margin is None) == (len(compared) < 2)
    if answered:
        assert found.agreement == pytest.approx(1.0)


@every_format
def test_every_pattern_of_failed_comparisons_is_reported_and_none_counts_as_zero(form: str) -> None:
    whole = [call.call_id for call in run(asked(3, form)).asked("judge")]
    for count in range(len(whole) + 1):
        for failing in combinations(whole, count):
            consistent(run(asked(3, form), CouncilScript(failing=failing)), failing)
    draw = Random(4)
    whole = [call.call_id for call in run(asked(4, form)).asked("judge")]
    for _ in range(25):
        failing = draw.sample(whole, draw.randint(1, len(whole)))
        consistent(run(asked(4, form), CouncilScript(failing=failing)), failing)
