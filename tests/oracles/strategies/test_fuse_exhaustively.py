from collections.abc import Mapping

import pytest

from app.deliberation.facts import Failed
from tests.unit.facts_of import CouncilScript, agent_ids, quorum_of, run
from tests.unit.strategies.every_strategy import subsets
from tests.unit.strategies.fusing import BEST, asked, role_calls


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_pattern_of_failed_proposals_comes_to_the_end_that_the_quorum_rules_say(size: int) -> None:
    for failing in subsets(agent_ids(size)):
        ended = run(asked(size), CouncilScript(failing=[f"s1-{agent}" for agent in failing]))
        left = [agent for agent in agent_ids(size) if agent not in failing]
        if not left:
            assert isinstance(ended.end, Failed)
            continue
        assert (ended.winner, set(ended.order)) == (left[0], set(left))
        fused = len(left) >= 2 and not (len(left) == 2 < quorum_of(size))
        assert ("fuse" in ended.purposes) == fused
        expected = {f"{len(left)} of {size} agents answered"} if failing else set[str]()
        if len(left) == 1 < size:
            expected |= {"unreviewed", "not fused: too few proposals"}
        assert set(ended.degraded) == expected


DEGRADED: Mapping[frozenset[str], tuple[str, ...]] = {
    frozenset(): (),
    frozenset({"one"}): ("1 of 2 ballots are missing", "the fused text is not judged in both orders"),
    frozenset({"other"}): ("1 of 2 ballots are missing", "the fused text is not judged in both orders"),
    frozenset({"one", "other"}): ("2 of 2 ballots are missing", "the fused text is not judged in both orders"),
}


@pytest.mark.parametrize("kind", ["failing", "garbled", "silent"])
def test_every_pattern_of_failures_after_the_selection_ships_the_best_single_and_is_reported(kind: str) -> None:
    calls = role_calls(run(asked(3)))
    for failing in subsets(list(calls)):
        script = CouncilScript()
        setattr(script, kind, [calls[name] for name in failing])
        ended = run(asked(3), script)
        expected = DEGRADED.get(frozenset(failing) - {"analyst", "writer"}, ())
        if "writer" in failing:
            expected = ("not fused: the fused text is missing",)
        if "analyst" in failing:
            expected = ("not fused: the analysis is missing",)
        late = ("deadline",) if failing and kind == "silent" else ()
        assert ended.degraded == (*expected, *late)
        assert ended.content == f"text of {'s4' if not failing else 's1'}-{BEST}"
        judged = {"analyst", "writer"}.isdisjoint(failing) and not {"one", "other"} <= set(failing)
        assert bool(ended.verdict.tally) == judged
        assert ended.winner == BEST
