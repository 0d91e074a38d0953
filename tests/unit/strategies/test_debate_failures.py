import pytest

from app.deliberation.calls import Call
from app.deliberation.facts import Failed
from app.deliberation.specification import Budget
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, agent_ids, answer, run, turn
from tests.unit.strategies.debating import asked, council, spoke, votes
from tests.unit.strategies.every_strategy import subsets


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_pattern_of_failed_drafts_comes_to_the_end_that_the_quorum_rules_say(size: int) -> None:
    for failing in subsets([f"s1-{agent}" for agent in agent_ids(size)]):
        ended = run(asked(size), CouncilScript(failing=failing))
        left = size - len(failing)
        if not left:
            assert isinstance(ended.end, Failed)
            continue
        reasons = {f"{left} of {size} agents answered"} if failing else set[str]()
        pair = left == 2 and size == 5
        if left == 1 < size:
            reasons.add("unreviewed")
        if pair:
            reasons.add("pair judged: below the quorum")
        assert set(ended.degraded) == reasons
        assert ended.purposes[1:] == (["judge"] if pair else ["debate"] if left > 1 else [])
        assert len(ended.order) == left


def test_two_below_the_quorum_that_agree_need_no_judge() -> None:
    ended = run(asked(5), council("aabcd", failing=[f"s1-{agent}" for agent in agent_ids(5)[2:]]))
    assert (ended.purposes, votes(ended)) == (["propose"], {"a": 2})
    assert ended.degraded == ("2 of 5 agents answered",)


@pytest.mark.parametrize("kind", ["failing", "garbled", "silent"])
def test_a_missing_turn_keeps_the_answer_and_is_reported(kind: str) -> None:
    turns = [f"s2-{agent}" for agent in agent_ids(3)]
    for missing in subsets(turns):
        script = CouncilScript()
        setattr(script, kind, missing)
        ended = run(asked(3), script)
        reasons = (f"{len(missing)} of 3 turns of round 1 are missing", *(["deadline"] if kind == "silent" else []))
        assert ended.degraded == (reasons if missing else ())
        versions = {each.agent_id: each.version for each in ended.verdict.ranking}
        kept = {call_id.partition("-")[2] for call_id in missing}
        # Only the winner may stand with its first text although it switched.
        assert {agent for agent, version in versions.items() if version == 0} - {ended.winner} == kept - {ended.winner}


def test_a_round_without_turns_is_the_last_and_casts_no_vote() -> None:
    ended = run(asked(3, rounds=3), council("aab", failing=["s2-dev-003"]))
    assert spoke(ended) == ["3"]
    assert votes(ended) == {"a": 2, "b": 1}
    assert ended.degraded == ("1 of 1 turns of round 1 are missing",)


@pytest.mark.parametrize(
    ("max_calls", "rounds", "more"),
    [(2, None, None), (3, [], ("budget",)), (5, [], ("budget",)), (6, ["123"], ("budget",)), (9, ["123", "123"], ())],
)
def test_a_round_that_the_budget_refuses_leaves_the_answers_to_be_counted(
    max_calls: int, rounds: list[str] | None, more: tuple[str, ...] | None
) -> None:
    ended = run(asked(3, rounds=2, budget=Budget(max_calls=max_calls)))
    if rounds is None:
        assert isinstance(ended.end, Failed)
        return
    assert (spoke(ended), ended.degraded) == (rounds, more)
    assert ended.content is not None


def test_answers_that_cannot_be_read_have_no_vote_and_may_be_mended() -> None:
    drafts = dict(zip(agent_ids(4), ["It is 7.", "7", "I do not know.", "8"], strict=True))
    said = {"dev-003": "7.0", "dev-004": "hard to say"}

    def script(call: Call) -> Reply:
        return Reply(text=turn(said[call.agent_id]) if call.output.kind == "turn" else answer(drafts[call.agent_id]))

    ended = run(asked(4, normaliser="number"), script)
    assert spoke(ended) == ["34"]
    assert votes(ended) == {"7": 5, "8": 2}
    assert ended.degraded == ("1 of 2 turns of round 1 could not be read",)
    whole = run(asked(4, rounds=0, normaliser="number"), script)
    assert votes(whole) == {"7": 2, "8": 1}
    assert whole.degraded == ("1 of 4 answers could not be read as a number",)
    assert [(each.agent_id, each.score) for each in whole.verdict.ranking][-1] == ("dev-003", None)


def test_a_voter_cannot_agree_with_itself() -> None:
    drafts = dict(zip(agent_ids(2), ["7", "many"], strict=True))

    def script(call: Call) -> Reply:
        return Reply(text=turn("more") if call.output.kind == "turn" else answer(drafts[call.agent_id]))

    ended = run(asked(2, normaliser="number"), script)
    assert (spoke(ended), votes(ended)) == (["2"], {"7": 2})
    assert (ended.verdict.agreement, ended.verdict.margin) == (None, None)
