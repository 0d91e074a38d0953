from itertools import combinations

import pytest

from app.deliberation.calls import Usage
from app.deliberation.facts import Failed
from app.deliberation.specification import Budget
from tests.unit.facts_of import CouncilScript, agent_ids, by_number, quorum_of, run, specification

PATTERNS = [
    (size, failing)
    for size in range(1, 6)
    for count in range(size + 1)
    for failing in combinations(agent_ids(size), count)
]


@pytest.mark.parametrize("strategy", ["best_of_n", "council"])
def test_every_pattern_of_failed_proposals_comes_to_the_end_that_the_quorum_rules_say(strategy: str) -> None:
    for size, failing in PATTERNS:
        ended = run(specification(size, strategy=strategy), CouncilScript(failing=[f"s1-{agent}" for agent in failing]))
        left = [agent for agent in agent_ids(size) if agent not in failing]
        if not left:
            assert isinstance(ended.end, Failed)
            assert ended.end.problem is not None
            assert (ended.end.problem.code, ended.end.problem.retryable) == ("no_answers", True)
            assert ended.end.problem.detail.endswith("engine_unavailable: broken off")
            assert ended.end.verdict is None
            continue
        expected = {f"{len(left)} of {size} agents answered"} if failing else set[str]()
        judging = [purpose for purpose in ended.purposes if purpose in ("score", "judge")]
        if len(left) == 1:
            expected |= {"unreviewed"} if size > 1 else set()
            assert ended.purposes == ["propose"]
        elif len(left) == 2 and quorum_of(size) > 2:
            expected.add("pair judged: below the quorum")
            assert ended.purposes == ["propose", "judge"]
        else:
            assert judging == ["score"]
            assert {call.agent_id for call in ended.asked("score")} == set(left)
        assert set(ended.degraded) == expected
        assert ended.order == sorted(left, key=lambda agent: -by_number(agent)), "the scripted taste decides"
        assert [standing.rank for standing in ended.verdict.ranking] == list(range(1, len(left) + 1))


@pytest.mark.parametrize(("strategy", "closing"), [("council", "score"), ("fuse", "judge")])
def test_no_budget_of_tokens_opens_a_stage_that_it_cannot_finish(strategy: str, closing: str) -> None:
    long = CouncilScript(
        text=lambda call_id: f"{call_id} ".ljust(1_000, "x"),
        issues=lambda _: ["major"] * 8,
        usage=lambda _: Usage(prompt_tokens=400, completion_tokens=500, calls=1),
    )
    seen: list[list[str]] = []
    for max_tokens in range(2_000, 40_000, 1_000):
        ended = run(specification(strategy=strategy, rounds=2, budget=Budget(max_tokens=max_tokens)), long)
        if not seen or seen[-1] != ended.purposes:
            seen.append(ended.purposes)
    assert seen[:3] == [[], ["propose"], ["propose", "score"]]
    assert all(purposes[-1] == closing for purposes in seen[3:])
    assert len(seen) == (5 if strategy == "council" else 4)
