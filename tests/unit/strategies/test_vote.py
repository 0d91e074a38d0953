from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.deliberation.answers import normalise, tally
from app.deliberation.facts import Failed, StageOpened
from app.deliberation.specification import Budget
from app.deliberation.strategies.strategy_run import Candidate
from app.deliberation.strategies.vote import VoteParameters, may_stop
from tests.unit.facts_of import Run, agent_ids, run, specification
from tests.unit.strategies.voting import FAILS, answering, waves


def vote(
    answers: Sequence[str],
    parameters: Mapping[str, Any] | None = None,
    *,
    seed: int = 7,
    quorum: int | None = None,
    budget: Budget | None = None,
    **more: Any,
) -> Run:
    asked = specification(len(answers), strategy="vote", parameters=parameters, seed=seed, quorum=quorum, budget=budget)
    return run(asked, answering(answers, **more))


@pytest.mark.parametrize(
    ("answers", "stop", "sizes"),
    [
        ("a", "unassailable", [1]),
        ("aa", "unassailable", [2]),
        ("aab", "unassailable", [2]),
        ("aba", "unassailable", [2, 1]),
        ("aaabb", "unassailable", [3]),
        ("aabab", "unassailable", [3, 1]),
        ("aabba", "unassailable", [3, 1, 1]),
        ("aaaabbb", "unassailable", [4]),
        ("aaabb", "none", [5]),
        ("aaabb", "beta", [3]),
        ("a" * 32, "beta", [4]),
        ("aaab" + "a" * 28, "beta", [4, 3]),
        ("a" * 32, "unassailable", [17]),
    ],
)
def test_a_wave_asks_the_fewest_that_could_decide_the_vote(answers: str, stop: str, sizes: list[int]) -> None:
    ended = vote(answers, {"stop": stop, "normaliser": "choice"})
    assert waves(ended) == sizes
    assert ended.purposes == ["propose"] * len(sizes)
    assert ended.content == "a"
    assert ended.degraded == ()


def test_agents_are_asked_in_the_councils_order_each_with_its_own_approach() -> None:
    ended = vote("aabba", {"normaliser": "choice"})
    assert [call.agent_id for call in ended.calls] == agent_ids(5)
    whole = vote("aabba", {"normaliser": "choice", "stop": "none"})
    assert [call.messages for call in ended.calls] == [call.messages for call in whole.calls]


def test_without_approaches_agents_get_one_prompt_and_a_seed_each() -> None:
    said = ["one", "two", "one", "two", "three", "one", "three", "two", "one"]
    ended = vote(said, {"approaches": False})
    calls = [call for call in ended.calls if call.output.kind == "answer"]
    assert len(ended.all(StageOpened)) > 1 and len(calls) == 9
    assert len({call.messages for call in calls}) == 1
    assert len({call.seed for call in calls}) == 9


answers = st.lists(st.sampled_from(["a", "a", "b", "b", "c", "seven", FAILS]), min_size=1, max_size=12)


def drafted(said: Sequence[str]) -> list[Candidate]:
    pairs = zip(agent_ids(len(said)), said, strict=True)
    return [Candidate(agent, 0, text, 0, agent) for agent, text in pairs if text != FAILS]


def one_by_one(said: Sequence[str], seed: int, stop: Any) -> int:
    for asked in range(len(said)):
        read = [(draft.author, normalise(draft.text, "choice")) for draft in drafted(said[:asked])]
        found = tally(read, seed)
        if may_stop(stop, found.first, found.second, len(said) - asked):
            return asked
    return len(said)


@settings(max_examples=20, deadline=None)
@given(answers, st.integers(0, 2**31), st.sampled_from(["unassailable", "beta"]))
def test_calls_are_those_of_one_by_one_and_the_winner_is_the_full_votes(said: list[str], seed: int, stop: str) -> None:
    ended = vote(said, {"stop": stop, "normaliser": "choice"}, seed=seed, quorum=1)
    whole = vote(said, {"stop": "none", "normaliser": "choice"}, seed=seed, quorum=1)
    if not any(said):
        assert isinstance(ended.end, Failed) and isinstance(whole.end, Failed)
        assert ended.end.problem is not None and ended.end.problem.code == "no_answers"
        return
    picks = ended.purposes.count("pick")
    assert len(ended.calls) == one_by_one(said, seed, stop) + picks
    if stop == "unassailable" and not picks:
        assert (ended.winner, ended.content) == (whole.winner, whole.content)
        assert ended.verdict.tie == whole.verdict.tie or not ended.verdict.tie


@pytest.mark.parametrize(
    ("said", "sizes", "winner"),
    [
        ((FAILS, "a", "a", "b", "b"), [3, 1, 1], None),
        (("a", "a", FAILS, "a", "b"), [3, 1], "a"),
        ((FAILS, FAILS, FAILS, "a", "a"), [3, 2], "a"),
        ((FAILS, FAILS, FAILS, FAILS, "b"), [3, 2], "b"),
    ],
)
def test_a_failed_sample_is_missing_and_leaves_fewer_votes_to_come(
    said: Sequence[str], sizes: list[int], winner: str | None
) -> None:
    ended = vote(said, {"normaliser": "choice"})
    assert waves(ended) == sizes
    assert winner is None or ended.content == winner
    asked = sum(sizes)
    assert ended.degraded[0] == f"{sum(map(bool, said[:asked]))} of {asked} agents answered"


def test_agents_that_never_answer_are_not_waited_for_beyond_the_quorum() -> None:
    ended = vote("aaaab", {"normaliser": "choice"}, quorum=2, silent={"s1-dev-002"})
    assert waves(ended) == [3, 1]
    assert (ended.content, ended.degraded) == ("a", ("3 of 4 agents answered",))


def test_a_verdict_holds_the_count_and_every_standing() -> None:
    ended = vote(("7", "It is 8.", "The answer is 7.0", "none", "$8", "7"), {"normaliser": "number", "stop": "none"})
    found = ended.verdict
    assert (found.winner, found.content, found.call_id) == ("dev-001", "7", "s1-dev-001")
    assert [(each.answer, each.votes, each.agents) for each in found.tally] == [
        ("7", 3, ("dev-001", "dev-003", "dev-006")),
        ("8", 2, ("dev-002", "dev-005")),
    ]
    assert (found.agreement, found.margin, found.tie) == (0.6, 0.2, False)
    assert [(each.agent_id, each.score, each.rank) for each in found.ranking] == [
        ("dev-001", 0.6, 1),
        ("dev-003", 0.6, 2),
        ("dev-006", 0.6, 3),
        ("dev-002", 0.4, 4),
        ("dev-005", 0.4, 5),
        ("dev-004", None, 6),
    ]
    assert [(each.agent_id, each.preferred) for each in found.dissent] == [
        ("dev-002", "dev-002"),
        ("dev-005", "dev-002"),
    ]
    assert ended.degraded == ("1 of 6 answers could not be read as a number",)


def test_a_tie_is_reported_and_broken_by_the_seed() -> None:
    ended = [vote("abab", {"normaliser": "choice"}, seed=seed) for seed in range(12)]
    assert {each.content for each in ended} == {"a", "b"}
    assert all(each.verdict.tie and each.verdict.margin == 0 for each in ended)
    assert {tuple(each.purposes) for each in ended} == {("propose", "propose")}, (
        "choices that differ are not picked from"
    )


def choosing(agent: str) -> dict[str, Any]:
    return {"score": lambda candidate: int(candidate == agent)}


@pytest.mark.parametrize("parameters", [{}, {"normaliser": "none"}, {"normaliser": "exact"}, {"normaliser": "json"}])
def test_where_no_two_answers_agree_one_author_picks_without_seeing_its_own(parameters: dict[str, str]) -> None:
    said = ['"first"', '"second"', '"third"', '"fourth"']
    picker = vote(said, parameters).asked("pick")[0].agent_id
    chosen = next(agent for agent in agent_ids(4) if agent != picker)
    ended = vote(said, parameters, **choosing(chosen))
    (call,) = ended.asked("pick")
    assert call.output.kind == "choice"
    assert sorted(call.labels.values()) == [agent for agent in agent_ids(4) if agent != picker]
    assert call.output.labels == tuple(call.labels) == ("A", "B", "C")
    prompt = call.messages[-1].content
    assert said[agent_ids(4).index(picker)] not in prompt
    assert not any(agent in prompt for agent in agent_ids(4))
    assert (ended.winner, ended.content) == (chosen, said[agent_ids(4).index(chosen)])
    assert ended.order[0] == chosen and sorted(ended.order) == agent_ids(4)
    assert len(ended.calls) == 5 and ended.degraded == ()
    counted_ = [] if parameters.get("normaliser") == "none" else [each for each in agent_ids(4) if each != chosen]
    assert [each.agent_id for each in ended.verdict.dissent] == counted_
    assert call.temperature <= 0.3, "picking is judging"


def test_only_answers_that_were_read_are_picked_from() -> None:
    ended = vote(['"one"', "no JSON", '"two"', '"three"'], {"normaliser": "json", "stop": "none"})
    (call,) = ended.asked("pick")
    assert {call.agent_id, *call.labels.values()} == {"dev-001", "dev-003", "dev-004"}


def test_two_texts_that_agree_are_counted_and_nothing_is_picked() -> None:
    ended = vote(["Blue, I say", "Red", "**blue, I say.**"])
    assert (ended.purposes, ended.content) == (["propose", "propose"], "Blue, I say")


def test_where_nothing_can_be_read_a_call_picks() -> None:
    ended = vote(["one", "two", "three"], {"normaliser": "number"})
    assert ended.purposes[-1] == "pick"
    assert ended.degraded == ("3 of 3 answers could not be read as a number",)


def test_a_pick_that_is_missing_leaves_the_seeds_order() -> None:
    said = ["one", "two", "three"]
    failing = [f"s3-{agent}" for agent in agent_ids(3)]
    ended = vote(said, failing=failing)
    assert ended.degraded == ("the pick is missing",)
    assert ended.verdict.tie
    assert {vote(said, seed=seed, failing=failing).winner for seed in range(20)} == set(agent_ids(3))
    brief = vote(said, {"normaliser": "none"}, failing=[f"s2-{agent}" for agent in agent_ids(3)])
    assert (brief.degraded, brief.verdict.tie) == (("the pick is missing",), True)


@pytest.mark.parametrize(
    ("said", "normaliser", "purposes"),
    [
        (("a", "b", FAILS, FAILS, FAILS), "choice", ["judge"]),
        (("a", "b", FAILS, FAILS, FAILS), "text", ["judge"]),
        (("a", "b", FAILS, FAILS, FAILS), "none", ["judge"]),
        (("a", "a", FAILS, FAILS, FAILS), "choice", []),
        (("a", "unread", FAILS, FAILS, FAILS), "choice", []),
        (("a", FAILS, FAILS, FAILS, FAILS), "choice", []),
    ],
)
def test_two_answers_below_the_quorum_that_differ_are_judged_as_a_pair(
    said: Sequence[str], normaliser: str, purposes: list[str]
) -> None:
    ended = vote(said, {"normaliser": normaliser, "stop": "none"})
    assert ended.purposes[1:] == purposes
    assert ended.winner == "dev-001"
    assert ("pair judged: below the quorum" in ended.degraded) == bool(purposes)
    assert ("unreviewed" in ended.degraded) == (said.count(FAILS) == 4)
    assert len(ended.verdict.tally) == (0 if normaliser == "none" else 1 + (said[1] == "b"))


@pytest.mark.parametrize(
    ("max_calls", "purposes", "content"),
    [(3, ["propose"], "a"), (4, ["propose"] * 2, None), (5, ["propose"] * 3, "b")],
)
def test_a_wave_that_the_budget_refuses_leaves_the_count_so_far(
    max_calls: int, purposes: list[str], content: str | None
) -> None:
    ended = vote("aabbb", {"normaliser": "choice"}, budget=Budget(max_calls=max_calls))
    assert ended.purposes == purposes
    assert content is None or ended.content == content
    assert ended.degraded == (("budget",) if max_calls < 5 else ())


@pytest.mark.parametrize(
    ("given_", "where"),
    [
        ({"normaliser": "words"}, ("normaliser",)),
        ({"stop": "soon"}, ("stop",)),
        ({"options": ["a", "b"]}, ("options",)),
        ({"normaliser": "number", "options": ["1"]}, ("options",)),
        ({"normaliser": "choice", "options": ["Yes", "yes."]}, ("options",)),
        ({"normaliser": "choice", "options": [" "]}, ("options",)),
        ({"normaliser": "choice", "options": ["a", ""]}, ("options", 1)),
        ({"confidence": True}, ("confidence",)),
    ],
)
def test_parameters_that_mean_nothing_are_refused_by_name(given_: dict[str, Any], where: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        VoteParameters.model_validate(given_)
    assert [error["loc"] for error in refused.value.errors()] == [where]
