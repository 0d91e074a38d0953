import re
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.calls import Call
from app.deliberation.choice.ballots import author
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, agent_ids, answer, run, turn
from tests.unit.strategies.debating import Turns, asked, council, spoke, votes
from tests.unit.strategies.every_strategy import prompt

SIZES = (1, 2, 3, 5, 9)

# Accounting


@pytest.mark.parametrize(
    ("drafts", "turns", "rounds"),
    [
        pytest.param("aaa", {}, [], id="all agree"),
        pytest.param("aaaab", {}, [], id="four of five are enough"),
        pytest.param("aab", {}, ["3"], id="the dissenter speaks, and keeps its answer: nothing is left to say"),
        pytest.param("aab", {"dev-003": "a"}, ["3"], id="the dissenter is convinced"),
        pytest.param("abc", {"dev-001": "b"}, ["123", "3"], id="all speak while the first place is shared"),
        pytest.param("aabb", {"s2-dev-001": "b"}, ["1234", "2"], id="a tie is broken, and the minority speaks"),
        pytest.param("aabb", {"s2-dev-001": "b", "s2-dev-003": "a"}, ["1234", "1234"], id="two that cross"),
        pytest.param("aaabc", {"dev-004": "c"}, ["45", "45"], id="a dissenter that joins another speaks again"),
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
        ("a" * 14 + "bcdefghijkl", 0.56, False),
        ("a" * 13 + "bcdefghijklm", 0.56, True),
    ],
)
def test_the_share_that_is_enough_is_a_parameter(drafts: str, agreement: float, debated: bool) -> None:
    ended = run(asked(len(drafts), agreement=agreement), council(drafts))
    assert bool(spoke(ended)) == debated


@pytest.mark.parametrize(
    ("drafts", "turns", "winner", "tally"),
    [
        pytest.param("aab", {}, "a", {"a": 4, "b": 2}, id="first and final answers have a vote each"),
        pytest.param("aaaab", {}, "a", {"a": 4, "b": 1}, id="no debate: one vote each"),
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
    if not ended.verdict.tie:
        assert ended.content == winner
    assert ended.verdict.tie == (len([each for each in tally.values() if each == max(tally.values())]) > 1)
    total = sum(tally.values())
    first, second = sorted(tally.values(), reverse=True)[:2]
    assert ended.verdict.agreement == first / total
    assert ended.verdict.margin == pytest.approx((first - second) / total)


@given(
    drafts=st.text("abc", min_size=3, max_size=7),
    said=st.lists(st.sampled_from("abcd"), min_size=21, max_size=21),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_the_answer_of_more_than_half_of_the_drafts_wins_under_any_turns(
    drafts: str, said: list[str], seed: int
) -> None:
    turns = {f"s{stage}-{agent}": said.pop() for stage in (2, 3, 4) for agent in agent_ids(len(drafts))}
    ended = run(asked(len(drafts), rounds=3, seed=seed, agreement=1.0), council(drafts, turns))
    leader, count = Counter(drafts).most_common(1)[0]
    if count * 2 > len(drafts):
        assert ended.content == leader
        assert not ended.verdict.tie
    assert sum(votes(ended).values()) == len(drafts) * (2 if spoke(ended) else 1)
    assert sum(standing.rank for standing in ended.verdict.ranking) == sum(range(1, len(drafts) + 1))


@pytest.mark.parametrize("error", ["", "  ", "\n", "-", "…"])
def test_a_switch_without_an_error_does_not_count_and_is_reported(error: str) -> None:
    drafting = council("aab")
    ended = run(asked(3), lambda call: Reply(text=turn("a", error)) if call.output.kind == "turn" else drafting(call))
    assert votes(ended) == {"a": 4, "b": 2}
    assert [(each.agent_id, each.preferred) for each in ended.verdict.dissent] == [("dev-003", "dev-003")]
    assert ended.degraded == ("1 of 1 turns of round 1 switched without an error and do not count",)


def test_the_same_answer_in_other_words_is_no_switch() -> None:
    drafting = council("aab")
    ended = run(
        asked(3), lambda call: Reply(text=turn("**B.**", "typo")) if call.output.kind == "turn" else drafting(call)
    )
    assert (votes(ended), ended.degraded) == ({"a": 4, "b": 2}, ())
    assert [standing.version for standing in ended.verdict.ranking] == [0, 0, 0]


def test_authors_rank_by_the_votes_for_their_final_answer() -> None:
    ended = run(asked(5, rounds=2), council("aabcc", {"dev-003": "a"}))
    assert [(each.agent_id, each.rank, each.score, each.version) for each in ended.verdict.ranking] == [
        ("dev-001", 1, 0.5, 0),
        ("dev-002", 2, 0.5, 0),
        ("dev-003", 3, 0.5, 1),
        ("dev-004", 4, 0.4, 0),
        ("dev-005", 5, 0.4, 0),
    ]
    assert (ended.winner, ended.verdict.call_id) == ("dev-001", "s1-dev-001")
    assert [(each.agent_id, each.preferred) for each in ended.verdict.dissent] == [
        ("dev-004", "dev-004"),
        ("dev-005", "dev-004"),
    ]
    assert [each.agents for each in ended.verdict.tally] == [
        ("dev-001", "dev-002", "dev-003"),
        ("dev-004", "dev-005"),
        ("dev-003",),
    ]


@pytest.mark.parametrize(
    ("drafts", "turns", "finals"),
    [
        pytest.param("aab", {"dev-003": "a"}, {"a": (5, 3), "b": (1, 0)}, id="after a switch"),
        pytest.param("aab", {}, {"a": (4, 2), "b": (2, 1)}, id="all keep their answers"),
        pytest.param("aaaab", {}, {"a": (4, None), "b": (1, None)}, id="no debate"),
    ],
)
def test_a_tally_says_how_many_votes_are_final(
    drafts: str, turns: Turns, finals: dict[str, tuple[int, int | None]]
) -> None:
    ended = run(asked(len(drafts)), council(drafts, turns))
    assert {each.answer: (each.votes, each.final) for each in ended.verdict.tally} == finals


def test_an_answer_that_all_have_left_is_shown_as_it_was_first_written() -> None:
    left = run(asked(4), council("aabb", {each: letter for each, letter in zip(agent_ids(4), "wxyz", strict=True)}))
    assert votes(left) == {"a": 2, "b": 2, "w": 1, "x": 1, "y": 1, "z": 1}
    assert left.verdict.tie
    first = left.verdict.ranking[0]
    assert (left.content, first.version) in {("a", 0), ("b", 0)}
    assert left.verdict.call_id == f"s1-{left.winner}"
    assert len(left.verdict.dissent) == 4, "no agent holds the winning answer"


@pytest.mark.parametrize("seed", range(4))
def test_of_two_answers_of_one_author_with_equally_many_votes_the_later_stands(seed: int) -> None:
    ended = run(asked(2, seed=seed), council("ab", {"dev-001": "c", "dev-002": "d"}))
    assert votes(ended) == dict.fromkeys("abcd", 1)
    assert ended.content in ("c", "d")
    assert [standing.version for standing in ended.verdict.ranking] == [1, 1]


def test_a_turn_shows_the_own_answer_among_its_neighbours_with_reasons_under_the_letters_on_record() -> None:
    drafts = {agent: f"canary<{agent[-1]}>" for agent in agent_ids(5)}

    def script(call: Call) -> Reply:
        return Reply(text=answer(drafts[call.agent_id])) if call.output.kind == "answer" else CouncilScript()(call)

    ended = run(asked(5), script)
    assert len(ended.asked("debate")) == 5
    for call in ended.asked("debate"):
        text = prompt(call)
        assert len(call.labels) == 3
        shown = re.findall(r"Candidate ([A-Z]):\n<<<peer-text \w+>>>\n(.*)\n", text)
        assert shown == [(letter, drafts[agent]) for letter, agent in call.labels.items()]
        assert text.count("Its reasons:\n<<<peer-text") == 3
        assert text.count("canary<") == 3
        assert call.labels[own_letter(call)] == call.agent_id
        assert not any(agent in text for agent in agent_ids(5))


def own_letter(call: Call) -> str:
    return prompt(call).splitlines()[-1].removeprefix("Candidate ").removesuffix(" is your own earlier answer.")


def test_prompts_that_show_the_same_answers_differ_in_their_last_line_alone() -> None:
    ended = run(asked(3, rounds=2), council("abc", {"s2-dev-001": "d", "s2-dev-002": "e", "s2-dev-003": "f"}))
    for stage in (2, 3):
        prompts = [prompt(call) for call in ended.asked("debate") if call.call_id.startswith(f"s{stage}-")]
        assert len({text.rpartition("\n")[0] for text in prompts}) == 1
        assert len(set(prompts)) == 3


def test_two_answers_stand_in_one_order_in_all_prompts_of_a_debate_and_in_either_over_debates() -> None:
    first = Counter[str]()
    for seed in range(30):
        rows = [[*map(author, call.labels.values())] for call in run(asked(4, rounds=2, seed=seed)).asked("debate")]
        order = {(one, other) for row in rows for one, other in combinations(row, 2)}
        assert not any((other, one) in order for one, other in order)
        first.update({one for one, _ in order} - {other for _, other in order})
    assert min(first[agent] for agent in agent_ids(4)) >= 2
