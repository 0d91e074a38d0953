"""Strategies over actions: what they count, when they stop, and what stands in place of an answer without agreement."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.calls import Call
from app.deliberation.facts import Failed, StageOpened
from app.deliberation.specification import Actions, ActionTool
from tests.unit.facts_of import CouncilScript, Run, agent_ids, run, specification
from tests.unit.strategies.voting import agent_of, waves

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ, DELETE = ActionTool(name="read", parameters=PATH), ActionTool(name="delete", parameters=PATH, agreement_min=1)
ACTIONS = Actions(tools=(READ, DELETE), calls_max=1)
REPLY = "."


class ActingScript(CouncilScript):
    """Members act: a capital letter deletes that path, a small one reads it, and a full stop replies."""

    def answered(self, call: Call) -> object:
        said = self.text(call.call_id)
        calls = [{"name": "delete" if said.isupper() else "read", "arguments": {"path": said}}]
        return {"reply": "Nothing."} if said == REPLY else {"calls": calls}


def acting(
    said: Sequence[str], strategy: str = "vote", parameters: dict[str, Any] | None = None, **demanded: Any
) -> Run:
    by_agent = dict(zip(agent_ids(len(said)), said, strict=True))
    asked = specification(len(said), strategy=strategy, parameters=parameters, actions=ACTIONS, quorum=1, **demanded)
    return run(asked, ActingScript(text=lambda call_id: by_agent[agent_of(call_id)]))


def decided(ended: Run) -> str:
    action = ended.verdict.action
    assert action is not None
    return action.calls[0].arguments["path"] if action.calls else REPLY


@pytest.mark.parametrize("strategy", ["single", "vote", "auto", "best_of_n", "tournament", "council", "debate"])
def test_every_strategy_decides_on_the_action_that_all_want(strategy: str) -> None:
    ended = acting("aaa", strategy)
    assert decided(ended) == "a" and ended.content == 'read(path="a")'
    assert ended.verdict.action is not None
    (call,) = ended.verdict.action.calls
    assert call.id == f"call_{ended.end.deliberation_id}_1"
    assert ended.verdict.tally[0].votes == len(ended.verdict.ranking) and ended.verdict.agreed is None


@pytest.mark.parametrize("strategy", ["best_of_n", "tournament", "council"])
def test_judges_read_actions_as_calls(strategy: str) -> None:
    ended = acting("abc", strategy)
    judging = [call for purpose in ("score", "judge") for call in ended.asked(purpose)]
    assert judging and all('read(path="' in call.messages[-1].content for call in judging)
    assert ended.winner == "dev-001" and decided(ended) == "a"


@pytest.mark.parametrize(
    ("said", "asked", "agreed"),
    [
        ("AAA", 3, True),
        ("AAB", 3, False),
        ("aab", 2, None),
        ("ABAAA", 4, False),
        ("BAAAA", 4, False),
    ],
)
def test_a_tool_that_needs_all_members_asks_all_unless_the_outcome_is_settled(
    said: str, asked: int, agreed: bool | None
) -> None:
    ended = acting(said)
    assert (sum(waves(ended)), ended.verdict.agreed) == (asked, agreed)


def test_without_enough_agreement_the_best_is_marked() -> None:
    ended = acting("aabbc", agreement_min=0.6, seed=1)
    assert ended.verdict.agreed is False and decided(ended) in "ab"
    assert "no agreement: 2 of 5 members give one answer, and 3 must" in ended.degraded


def test_without_enough_agreement_a_reply_states_the_dissent() -> None:
    ended = acting("aabbc", agreement_min=0.6, on_disagreement="reply")
    assert decided(ended) == REPLY and ended.verdict.call_id is None
    assert ended.content is not None and ended.content.startswith("The council does not agree: an answer needs 3 of 5")
    assert '2: read({"path":"a"})' in ended.content
    assert ended.verdict.action is not None and ended.verdict.action.reply == ended.content


def test_without_enough_agreement_it_may_fail_with_the_tally() -> None:
    end = acting("aabbc", agreement_min=0.6, on_disagreement="fail").end
    assert isinstance(end, Failed) and end.problem is not None
    assert end.problem.code == "no_agreement" and '2: read({"path":"b"})' in end.problem.detail


def test_nobody_is_asked_once_no_answer_can_reach_the_agreement() -> None:
    ended = acting("abcde", agreement_min=0.8, on_disagreement="reply")
    assert sum(waves(ended)) == 4 and ended.purposes == ["propose"]
    assert acting("abcde", agreement_min=0.8).purposes[-1] == "pick"


def test_a_silent_member_counts_as_one_that_does_not_agree() -> None:
    asked = specification(3, strategy="vote", actions=ACTIONS, quorum=1)
    ended = run(asked, ActingScript(text=lambda _: "A", failing={"s1-dev-002", "s2-dev-002"}))
    assert ended.verdict.agreed is False


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from("abAB."), min_size=1, max_size=9),
    st.sampled_from([None, 0.5, 0.6, 0.8, 1.0]),
    st.sampled_from(["best", "reply"]),
    st.integers(0, 2**31),
)
def test_early_stops_change_neither_the_action_nor_the_agreement(
    said: list[str], agreement_min: float | None, on_disagreement: Any, seed: int
) -> None:
    demanded: dict[str, Any] = {"agreement_min": agreement_min, "on_disagreement": on_disagreement, "seed": seed}
    ended, whole = acting(said, **demanded), acting(said, parameters={"stop": "none"}, **demanded)
    assert ended.verdict.agreed == whole.verdict.agreed
    if ended.verdict.agreed is not False or on_disagreement == "best":
        assert decided(ended) == decided(whole)
    assert len(ended.calls) <= len(whole.calls)


def test_auto_ends_after_three_only_where_three_are_enough() -> None:
    assert len(acting("aaaaa", "auto").calls) == 3
    agreed = acting("AAAAA", "auto")
    assert (len(agreed.calls), agreed.verdict.agreed, agreed.purposes) == (5, True, ["propose", "propose"])
    assert "critique" in acting("AAAAB", "auto").purposes


def test_dissenters_of_a_debate_read_the_others_actions() -> None:
    ended = acting("aaab", "debate", agreement_min=0.9)
    (turn,) = ended.asked("debate")
    assert turn.agent_id == "dev-004" and 'read(path="a")' in turn.messages[-1].content
    assert ended.verdict.agreed is False and decided(ended) == "a"


def test_texts_that_are_counted_are_held_to_agreement_too() -> None:
    by_agent = dict(zip(agent_ids(5), ["red", "red", "red", "blue", "green"], strict=True))
    asked = specification(5, strategy="vote", agreement_min=0.8, on_disagreement="reply")
    ended = run(asked, CouncilScript(text=lambda call_id: by_agent[agent_of(call_id)]))
    assert ended.verdict.agreed is False and ended.verdict.action is None
    assert ended.content is not None and "- 3: red" in ended.content
    assert len(ended.all(StageOpened)) > 0
