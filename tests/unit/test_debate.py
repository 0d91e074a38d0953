"""`debate`: who speaks, whom they read, what it takes to switch, and what counting first and final answers gives."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.deliberation.calls import Call
from app.deliberation.engine import Strategy
from app.deliberation.facts import Failed, StageOpened, Verdict
from app.deliberation.fold import fold
from app.deliberation.specification import Budget, Specification
from app.deliberation.strategies import STRATEGIES
from app.deliberation.strategies.debate import DEBATE, DebateParameters, continue_from
from app.deliberation.strategies.steps import Course
from app.projection import resource
from app.testing import Reply
from tests.unit.facts_of import BROKEN, Minds, Run, agent_ids, answer, run, specification, turn

SIZES = (1, 2, 3, 5, 9)
Turns = Mapping[str, str]
"""What an agent says when it speaks, by call id or agent; `X!` is X without an error cited, absent keeps its answer."""


def asked(
    size: int, *, rounds: int = 1, seed: int = 7, budget: Budget | None = None, **parameters: Any
) -> Specification:
    told = specification(size, strategy="debate", rounds=rounds, seed=seed, budget=budget)
    return told.model_copy(update={"parameters": parameters})


def council(drafts: str, turns: Turns | None = None, failing: Sequence[str] = ()) -> Callable[[Call], Reply]:
    """Agents whose drafts are these letters, in the council's order, and who say `turns`."""
    said: dict[str, str] = dict(zip(agent_ids(len(drafts)), drafts, strict=True))

    def script(call: Call) -> Reply:
        if call.call_id in failing:
            return Reply(problem=BROKEN)
        if call.output.kind != "turn":
            return Reply(text=answer(said[call.agent_id])) if call.output.kind == "answer" else Minds()(call)
        told = (turns or {}).get(call.call_id, (turns or {}).get(call.agent_id, said[call.agent_id]))
        if not told.endswith("!"):
            said[call.agent_id] = told
        return Reply(text=turn(told.removesuffix("!"), "" if told.endswith("!") else "step 2 is wrong"))

    return script


def verdict(ended: Run) -> Verdict:
    assert ended.completed.verdict is not None
    return ended.completed.verdict


def votes(ended: Run) -> dict[str, int]:
    return {each.answer: each.votes for each in verdict(ended).tally}


def spoke(ended: Run) -> list[str]:
    """The numbers of those who spoke, by round: `12 2` is the first two, then the second."""
    rounds = [stage for stage in ended.all(StageOpened) if stage.purpose == "debate"]
    return ["".join(call.agent_id[-1] for call in stage.calls) for stage in rounds]


def prompt(call: Call) -> str:
    return "\n".join(each.content for each in call.messages)


# Accounting


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
@pytest.mark.parametrize("size", SIZES)
def test_calls_are_the_drafts_when_they_agree_and_one_for_each_and_round_when_none_ever_does(
    size: int, rounds: int
) -> None:
    agreeing = run(asked(size, rounds=rounds), Minds(text=lambda _: "The same."))
    assert len(agreeing.calls) == agreeing.end.usage.calls == size
    differing = run(asked(size, rounds=rounds))
    assert len(differing.calls) == differing.end.usage.calls == (1 if size == 1 else size * (1 + rounds))
    assert (agreeing.completed.degraded, differing.completed.degraded) == (None, None)


@pytest.mark.parametrize(
    ("drafts", "turns", "rounds"),
    [
        pytest.param("aaa", {}, [], id="all agree"),
        pytest.param("aaaab", {}, [], id="four of five are enough"),
        pytest.param("aab", {}, ["3"], id="the dissenter speaks, and keeps its answer: nothing is left to say"),
        pytest.param("aab", {"dev-003": "a"}, ["3"], id="the dissenter is convinced"),
        pytest.param("abc", {"dev-001": "b"}, ["123", "3"], id="all speak while the first place is shared"),
        pytest.param("aabb", {"s2-dev-001": "b"}, ["1234", "2"], id="a tie is broken, and who is left behind speaks"),
        pytest.param("aabb", {"s2-dev-001": "b", "s2-dev-003": "a"}, ["1234", "1234"], id="two that cross"),
        pytest.param("aaabc", {"dev-004": "c"}, ["45", "45"], id="who moves among the dissenters speaks again"),
        pytest.param("abcde", {"dev-001": "x!"}, ["12345"], id="what does not count is no change"),
    ],
)
def test_dissenters_speak_until_enough_agree_or_nothing_changes(drafts: str, turns: Turns, rounds: list[str]) -> None:
    ended = run(asked(len(drafts), rounds=2), council(drafts, turns))
    assert spoke(ended) == rounds
    assert len(ended.calls) == len(drafts) + sum(map(len, rounds))


@pytest.mark.parametrize(
    ("drafts", "agreement", "debated"),
    [
        ("aaaab", 0.8, False),
        ("aaabb", 0.8, True),
        ("aaabb", 0.6, False),
        ("aab", 0.67, True),
        ("aab", 0.66, False),
        ("aaaaaaaabb", 0.8, False),
        ("aaaab", 1.0, True),
    ],
)
def test_the_share_that_is_enough_is_a_parameter(drafts: str, agreement: float, debated: bool) -> None:
    ended = run(asked(len(drafts), agreement=agreement), council(drafts))
    assert bool(spoke(ended)) == debated


@pytest.mark.parametrize(
    "parameters",
    [
        {"agreement": 0.5},
        {"agreement": 1.1},
        {"neighbours": 0},
        {"neighbours": 9},
        {"normaliser": "none"},
        {"depth": 1},
    ],
)
def test_parameters_outside_their_bounds_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(parameters))):
        DebateParameters.model_validate(parameters)


def test_time_is_left_for_every_round() -> None:
    stages = run(asked(3, rounds=3)).all(StageOpened)
    shares = [(stage.soft_deadline_at - stages[0].ts).total_seconds() for stage in stages]
    assert shares == pytest.approx([25, 100 / 3, 50, 98])


# What counts


@pytest.mark.parametrize(
    ("drafts", "turns", "winner", "tally"),
    [
        pytest.param("aab", {}, "a", {"a": 4, "b": 2}, id="first and final answers have a vote each"),
        pytest.param("aaaab", {}, "a", {"a": 4, "b": 1}, id="nobody debated: one vote each"),
        pytest.param("aab", {"dev-003": "a"}, "a", {"a": 5, "b": 1}, id="a switch moves one of two votes"),
        pytest.param(
            "aabcd", dict.fromkeys(agent_ids(5)[2:], "d"), "d", {"d": 4, "a": 4, "b": 1, "c": 1}, id="a swing"
        ),
        pytest.param("aab", {"dev-003": "c"}, "a", {"a": 4, "b": 1, "c": 1}, id="to something new"),
    ],
)
def test_first_and_final_answers_are_counted(drafts: str, turns: Turns, winner: str, tally: dict[str, int]) -> None:
    ended = run(asked(len(drafts)), council(drafts, turns))
    assert votes(ended) == tally
    if not verdict(ended).tie:
        assert ended.content == winner
    assert verdict(ended).tie == (len([each for each in tally.values() if each == max(tally.values())]) > 1)
    total = sum(tally.values())
    first, second = sorted(tally.values(), reverse=True)[:2]
    assert verdict(ended).agreement == first / total
    assert verdict(ended).margin == pytest.approx((first - second) / total)


@given(
    drafts=st.text("abc", min_size=3, max_size=7),
    said=st.lists(st.sampled_from("abcd"), min_size=21, max_size=21),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_what_more_than_half_of_the_drafts_say_wins_whatever_is_said(drafts: str, said: list[str], seed: int) -> None:
    turns = {f"s{stage}-{agent}": said.pop() for stage in (2, 3, 4) for agent in agent_ids(len(drafts))}
    ended = run(asked(len(drafts), rounds=3, seed=seed, agreement=1.0), council(drafts, turns))
    leader, count = Counter(drafts).most_common(1)[0]
    if count * 2 > len(drafts):
        assert ended.content == leader
        assert not verdict(ended).tie
    assert sum(votes(ended).values()) == len(drafts) * (2 if spoke(ended) else 1)
    assert sum(standing.rank for standing in verdict(ended).ranking) == sum(range(1, len(drafts) + 1))


@pytest.mark.parametrize("error", ["", "  ", "\n", "-", "…"])
def test_a_switch_without_an_error_does_not_count_and_is_told(error: str) -> None:
    drafting = council("aab")
    ended = run(asked(3), lambda call: Reply(text=turn("a", error)) if call.output.kind == "turn" else drafting(call))
    assert votes(ended) == {"a": 4, "b": 2}
    assert [(each.agent_id, each.preferred) for each in verdict(ended).dissent] == [("dev-003", "dev-003")]
    assert ended.degraded == ("1 of 1 turns of round 1 switched without an error and do not count",)


def test_who_says_the_same_in_other_words_has_not_switched() -> None:
    drafting = council("aab")
    ended = run(
        asked(3), lambda call: Reply(text=turn("**B.**", "typo")) if call.output.kind == "turn" else drafting(call)
    )
    assert (votes(ended), ended.degraded) == ({"a": 4, "b": 2}, ())
    assert [standing.version for standing in verdict(ended).ranking] == [0, 0, 0]


def test_authors_stand_by_the_votes_for_what_they_hold_at_the_end() -> None:
    ended = run(asked(5, rounds=2), council("aabcc", {"dev-003": "a"}))
    assert [(each.agent_id, each.rank, each.score, each.version) for each in verdict(ended).ranking] == [
        ("dev-001", 1, 0.5, 0),
        ("dev-002", 2, 0.5, 0),
        ("dev-003", 3, 0.5, 1),
        ("dev-004", 4, 0.4, 0),
        ("dev-005", 5, 0.4, 0),
    ]
    assert (ended.winner, verdict(ended).call_id) == ("dev-001", "s1-dev-001")
    assert [(each.agent_id, each.preferred) for each in verdict(ended).dissent] == [
        ("dev-004", "dev-004"),
        ("dev-005", "dev-004"),
    ]
    assert [each.agents for each in verdict(ended).tally] == [
        ("dev-001", "dev-002", "dev-003"),
        ("dev-004", "dev-005"),
        ("dev-003",),
    ]


def test_an_answer_that_all_have_left_is_shown_as_it_was_first_written() -> None:
    left = run(asked(4), council("aabb", {each: letter for each, letter in zip(agent_ids(4), "wxyz", strict=True)}))
    assert votes(left) == {"a": 2, "b": 2, "w": 1, "x": 1, "y": 1, "z": 1}
    assert verdict(left).tie
    first = verdict(left).ranking[0]
    assert (left.content, first.version) in {("a", 0), ("b", 0)}
    assert verdict(left).call_id == f"s1-{left.winner}"
    assert len(verdict(left).dissent) == 4, "nobody holds the winning answer"


# Versions


def test_the_version_that_stands_is_the_text_that_the_resource_shows() -> None:
    """A turn that did not count is a version too: who switches at the second attempt stands with the third text."""
    turns = {"s2-dev-001": "z!", "s2-dev-002": "c", "s3-dev-001": "c"}
    ended = run(asked(3, rounds=2), council("abc", turns))
    assert spoke(ended) == ["123", "1"]
    assert votes(ended) == {"c": 4, "a": 1, "b": 1}
    state = fold(enumerate(ended.facts, start=1))
    assert state is not None
    shown = {each.agent_id: each for each in resource(state, epoch="e", retention_s=60).proposals}
    assert {agent: proposal.content for agent, proposal in shown.items()} == dict.fromkeys(agent_ids(3), "c")
    assert [version.content for version in shown["dev-001"].revisions] == ["a", "z"]
    assert {each.agent_id: each.version for each in verdict(ended).ranking} == {
        "dev-001": 2,
        "dev-002": 1,
        "dev-003": 0,
    }


# What a turn shows


def test_a_turn_shows_the_own_answer_with_its_reasons_and_neighbours_under_the_letters_on_record() -> None:
    drafts = {agent: f"canary<{agent[-1]}>" for agent in agent_ids(5)}

    def script(call: Call) -> Reply:
        return Reply(text=answer(drafts[call.agent_id])) if call.output.kind == "answer" else Minds()(call)

    ended = run(asked(5), script)
    assert len(ended.asked("debate")) == 5
    for call in ended.asked("debate"):
        text = prompt(call)
        assert "Your answer:\n<<<peer-text" in text
        assert (
            text.index("Your answer:")
            < text.index(drafts[call.agent_id])
            < text.index("Your reasons:")
            < text.index("Candidate A:")
        )
        assert len(call.labels) == 2
        shown = re.findall(r"Candidate ([A-Z]):\n<<<peer-text \w+>>>\n(.*)\n", text)
        assert shown == [(letter, drafts[agent]) for letter, agent in call.labels.items()]
        assert text.count("Its reasons:\n<<<peer-text") == 2
        assert text.count("canary<") == 3
        assert not any(agent in text for agent in agent_ids(5))


def test_a_latest_answer_is_read_in_the_next_round() -> None:
    ended = run(asked(3, rounds=2), council("abc", {"s2-dev-001": "d", "s2-dev-002": "e", "s2-dev-003": "f"}))
    second = [call for call in ended.asked("debate") if call.call_id.startswith("s3-")]
    assert {shown for call in second for shown in call.labels.values()} == {f"{agent}#1" for agent in agent_ids(3)}


# What fails


def subsets(of: Sequence[str]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(of, count) for count in range(len(of) + 1)))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_pattern_of_failed_drafts_comes_to_the_end_that_the_quorum_rules_say(size: int) -> None:
    for failing in subsets([f"s1-{agent}" for agent in agent_ids(size)]):
        ended = run(asked(size), Minds(failing=failing))
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
def test_a_missing_turn_keeps_the_answer_and_is_told(kind: str) -> None:
    turns = [f"s2-{agent}" for agent in agent_ids(3)]
    for missing in subsets(turns):
        minds = Minds()
        setattr(minds, kind, missing)
        ended = run(asked(3), minds)
        assert ended.degraded == ((f"{len(missing)} of 3 turns of round 1 are missing",) if missing else ())
        versions = {each.agent_id: each.version for each in verdict(ended).ranking}
        kept = {call_id.partition("-")[2] for call_id in missing}
        # Only the winner may stand with its first text although it switched.
        assert {agent for agent, version in versions.items() if version == 0} - {ended.winner} == kept - {ended.winner}


def test_a_round_in_which_nobody_speaks_is_the_last_and_no_vote() -> None:
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
    """The third has no number: it dissents and gives one. The fourth's turn has none, and its draft stands."""
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
    assert [(each.agent_id, each.score) for each in verdict(whole).ranking][-1] == ("dev-003", None)


def test_a_voter_cannot_agree_with_itself() -> None:
    drafts = dict(zip(agent_ids(2), ["7", "many"], strict=True))

    def script(call: Call) -> Reply:
        return Reply(text=turn("more") if call.output.kind == "turn" else answer(drafts[call.agent_id]))

    ended = run(asked(2, normaliser="number"), script)
    assert (spoke(ended), votes(ended)) == (["2"], {"7": 2})
    assert (verdict(ended).agreement, verdict(ended).margin) == (None, None)


@pytest.mark.parametrize("size", [1, 3])
def test_when_nothing_can_be_read_an_answer_is_given_all_the_same_and_told(size: int) -> None:
    ended = run(asked(size, normaliser="number"), Minds(text=lambda _: "many"))
    assert (ended.content, verdict(ended).tally, verdict(ended).agreement) == ("many", (), None)
    assert ended.degraded == (f"{size} of {size} answers could not be read as a number",)
    assert {each.score for each in verdict(ended).ranking} == {None}
    assert verdict(ended).tie == (size > 1)


def test_options_of_a_choice_are_read() -> None:
    drafts = dict(zip(agent_ids(3), ["yes", "The answer is: Yes", "no"], strict=True))
    told = asked(3, rounds=0, normaliser="choice", options=["yes", "no"])
    ended = run(told, lambda call: Reply(text=answer(drafts[call.agent_id])))
    assert votes(ended) == {"yes": 2, "no": 1}


# Going on from drafts that exist


def test_it_goes_on_from_drafts_of_some_members_as_another_strategy_leaves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def escalating(told: Specification) -> Strategy:
        part = Course(told.model_copy(update={"agents": told.agents[:3]}))
        drafts = yield from part.propose(stages_left=2)
        return (yield from continue_from(Course(told, stage=part.stage), drafts[::-1]))

    monkeypatch.setattr("app.testing.STRATEGIES", {"debate": replace(DEBATE, run=escalating)})
    ended = run(asked(5), council("abbcc"))
    assert spoke(ended) == ["1"]
    assert votes(ended) == {"b": 4, "a": 2}


def test_the_strategy_is_registered() -> None:
    assert STRATEGIES["debate"] is DEBATE
    assert DEBATE.rounds
