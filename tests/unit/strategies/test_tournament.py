from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.deliberation.calls import Call
from app.deliberation.choice.comparisons import Comparison, ranked, rates, wins
from app.deliberation.choice.pairings import (
    Pairing,
    bracket,
    judges,
    swiss_round,
    swiss_rounds_max,
)
from app.deliberation.facts import Failed, StageOpened
from app.deliberation.specification import Budget
from app.deliberation.strategies.tournament import TournamentParameters
from tests.unit.facts_of import CouncilScript, Run, agent_ids, by_number, run
from tests.unit.strategies.tournaments import FORMATS, asked, brief, every_format, judged, shown


def rounds(ended: Run) -> list[list[Call]]:
    by_id = {call.call_id: call for call in ended.calls}
    return [
        [by_id[call.call_id] for call in stage.calls] for stage in ended.all(StageOpened) if stage.purpose == "judge"
    ]


def met(calls: Sequence[Call]) -> list[frozenset[str]]:
    return list(dict.fromkeys(frozenset(shown(call)) for call in calls))


def test_stages_follow_the_rounds_of_pairs() -> None:
    stages = {
        form: [(stage.purpose, stage.round, stage.quorum) for stage in run(asked(5, form)).all(StageOpened)]
        for form in FORMATS
    }
    assert stages == {
        "round_robin": [("propose", 0, 3), ("judge", 1, 12)],
        "swiss": [("propose", 0, 3), ("judge", 1, 3), ("judge", 2, 3), ("judge", 3, 3)],
        "knockout": [("propose", 0, 3), ("judge", 1, 2), ("judge", 2, 3), ("judge", 3, 2)],
    }
    assert [stage.quorum for stage in run(asked(4, "knockout")).all(StageOpened)] == [2, 2, 2], "never one order alone"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"format": "league"}, "format"),
        ({"format": "swiss", "rounds_of_pairs": 0}, "rounds_of_pairs"),
        ({"format": "swiss", "rounds_of_pairs": 17}, "rounds_of_pairs"),
        ({"format": "knockout", "rounds_of_pairs": 2}, "rounds_of_pairs"),
        ({"rounds_of_pairs": 2}, "rounds_of_pairs"),
        ({"pairs": 2}, "pairs"),
    ],
)
def test_parameters_that_mean_nothing_are_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TournamentParameters.model_validate(given)
    assert [error["loc"] for error in refused.value.errors()] == [(field,)]


@every_format
@pytest.mark.parametrize("size", [3, 4, 5, 9])
def test_judges_are_neutral_see_both_orders_between_them_and_share_the_work(form: str, size: int) -> None:
    ended = run(asked(size, form), CouncilScript(text=lambda call_id: f"canary-{call_id}"))
    load = Counter(dict.fromkeys(agent_ids(size), 0))
    for calls in rounds(ended):
        by_pair: dict[frozenset[str], list[Call]] = {}
        for call in calls:
            load[call.agent_id] += 1
            by_pair.setdefault(frozenset(shown(call)), []).append(call)
            assert call.agent_id not in shown(call)
            assert f"canary-s1-{call.agent_id}" not in call.messages[-1].content
            assert all(f"canary-s1-{each}" in call.messages[-1].content for each in shown(call))
        for one, other in by_pair.values():
            assert shown(one) == shown(other)[::-1]
            assert (one.agent_id != other.agent_id) == (size > 3), "of three only one is neutral"
    assert size == 3 or max(load.values()) - min(load.values()) <= 1


def test_of_two_answers_the_other_members_judge_and_a_council_of_two_scores_each_other() -> None:
    two_left = run(asked(4), CouncilScript(failing=["s1-dev-002", "s1-dev-003"]))
    assert {call.agent_id for calls in rounds(two_left) for call in calls} == {"dev-002", "dev-003"}
    assert (two_left.order, two_left.degraded) == (["dev-001", "dev-004"], ("2 of 4 agents answered",))
    of_two = run(asked(2))
    assert of_two.purposes == ["propose", "score"]
    assert all(call.agent_id not in call.labels.values() for call in of_two.asked("score"))


def test_the_order_of_the_members_changes_nothing() -> None:
    for form in FORMATS:
        straight = asked(5, form)
        turned = straight.model_copy(update={"agents": straight.agents[::-1]})
        one, other = run(straight), run(turned)
        assert [call.call_id for call in one.asked("judge")] == [call.call_id for call in other.asked("judge")]
        assert [shown(call) for call in one.asked("judge")] == [shown(call) for call in other.asked("judge")]
        assert one.verdict == other.verdict


@pytest.mark.parametrize("size", [4, 5, 8, 9])
def test_swiss_opponents_are_new_and_near_and_no_candidate_sits_out_twice(size: int) -> None:
    ended = run(asked(size, "swiss", pairs=3))
    pairs = [met(calls) for calls in rounds(ended)]
    flat = [each for found in pairs for each in found]
    assert len(set(flat)) == len(flat)
    out = [set(agent_ids(size)) - {each for both in found for each in both} for found in pairs]
    assert all(len(sitting) == size % 2 for sitting in out)
    assert size % 2 == 0 or len({each for sitting in out for each in sitting}) == len(out)
    if size == 8:
        first = {min(both, key=lambda each: -by_number(each)) for both in pairs[0]}
        assert sum(len(both & first) == 1 for both in pairs[1]) == 0


@pytest.mark.parametrize("size", range(2, 10))
def test_a_knockout_drops_losers_and_gives_byes_in_the_first_round_only(size: int) -> None:
    pairs = [met(calls) for calls in rounds(run(asked(size, "knockout", seed=size)))]
    if size == 2:
        assert pairs == []
        return
    alive = set(agent_ids(size))
    for number, found in enumerate(pairs):
        playing = {each for both in found for each in both}
        assert playing <= alive
        assert number == 0 or playing == alive
        alive -= {max(both, key=lambda each: -by_number(each)) for both in found}
        assert len(alive).bit_count() == 1
    assert alive == {"dev-001"}


@settings(max_examples=30, deadline=None, database=None)
@given(size=st.integers(2, 32), seed=st.integers(0, 99))
def test_swiss_pairs_all_candidates_under_any_standings(size: int, seed: int) -> None:
    draw, standing, past = Random(seed), agent_ids(size), list[list[Pairing]]()
    for _ in range(swiss_rounds_max(size)):
        if seed % 2:
            draw.shuffle(standing)
        found = swiss_round(standing, past)
        assert len({each for both in found for each in both}) == 2 * len(found) == size - size % 2
        past.append(found)
    pairs = [frozenset(both) for found in past for both in found]
    assert len(set(pairs)) == len(pairs)
    assert size % 2 == 0 or {len({each for both in found for each in both}) for found in past} == {size - 1}


def test_more_swiss_rounds_than_there_are_opponents_are_refused() -> None:
    standing = agent_ids(4)
    past: list[list[Pairing]] = []
    with pytest.raises(ValueError, match="too many rounds"):
        for _ in range(4):
            past.append(swiss_round(standing, past))


@settings(max_examples=25, deadline=None, database=None)
@given(size=st.integers(4, 12), seed=st.integers(0, 999))
def test_judging_is_dealt_evenly_over_rounds_of_any_pairs(size: int, seed: int) -> None:
    draw, load = Random(seed), Counter[str]()
    members = agent_ids(size)
    for round in range(1, 4):
        found = draw.sample(list(combinations(members, 2)), draw.randint(1, size))
        for both, (one, other) in zip(found, judges(found, members, load, seed, round), strict=True):
            assert one != other
            assert not {one, other} & set(both)
    dealt = [load[each] for each in members]
    assert sum(dealt) == load.total()
    everyone = Counter[str]()
    judges(list(combinations(members, 2)), members, everyone, seed, 1)
    assert set(everyone.values()) == {size - 1}


def said(text: str) -> list[Comparison]:
    return [Comparison(f"j{place}", (each[0], each[1]), each[3:] or None) for place, each in enumerate(text.split())]


@pytest.mark.parametrize(
    ("comparisons", "a", "b"),
    [
        ("ab>a ba>a", Fraction(1), Fraction(0)),
        ("ab>a ba>b", Fraction(1, 2), Fraction(1, 2)),
        ("ab>b ba>a", Fraction(1, 2), Fraction(1, 2)),
        ("ab>a ba=", Fraction(1, 2), Fraction(1, 2)),
        ("ab= ba=", Fraction(1, 2), Fraction(1, 2)),
        ("ab>a", Fraction(1, 2), Fraction(0)),
        ("ba>b", Fraction(0), Fraction(1, 2)),
        ("ab=", Fraction(1, 4), Fraction(1, 4)),
    ],
)
def test_a_pair_is_won_where_both_orders_agree_and_one_order_is_half(
    comparisons: str, a: Fraction, b: Fraction
) -> None:
    assert wins(said(comparisons)) == {("a", "b"): a, ("b", "a"): b}
    assert wins(said(comparisons)[::-1]) == wins(said(comparisons))


def test_a_win_over_a_strong_candidate_lifts_more_and_ties_are_broken_down_the_chain() -> None:
    comparisons = said("ab>a ba>a bc>b cb>b cd>c dc>c")
    found = ranked("dcba", comparisons, dict.fromkeys("abcd", 1), 7)
    assert found.order == ("a", "b", "c", "d")
    assert found.scores == rates("abcd", comparisons)
    assert (found.tie, found.margin) == (False, pytest.approx((found.scores["a"] or 0) - (found.scores["b"] or 0)))
    circle = said("ab>a ba>a bc>b cb>b ca>c ac>c")
    fewer = ranked("abc", circle, {"a": 3, "b": 2, "c": 9}, 7)
    assert (fewer.order, fewer.tie, fewer.margin) == (("b", "a", "c"), True, 0.0)
    assert {ranked("abc", circle, dict.fromkeys("abc", 1), seed).order[0] for seed in range(20)} == set("abc")


def test_of_equal_strengths_the_one_that_won_between_them_is_first() -> None:
    comparisons = said("ab>a ba>a bc>b cb>b ca>c ac>c ad>a da>a bd>b db>b")
    found = ranked("abcd", comparisons, {"a": 9, "b": 1, "c": 1, "d": 1}, 7)
    assert found.scores["a"] == found.scores["b"]
    assert (found.order, found.tie, found.margin) == (("a", "b", "c", "d"), True, 0.0)


def test_uncompared_candidates_have_no_score_and_come_last() -> None:
    found = ranked("abc", said("ab>b ba>b"), {"a": 1, "b": 1, "c": 0}, 7)
    assert (found.order, found.scores["c"]) == (("b", "a", "c"), None)
    alone = ranked("ab", [], {"a": 2, "b": 1}, 7)
    assert (alone.order, alone.scores, alone.margin, alone.tie) == (("b", "a"), {"b": None, "a": None}, None, False)


def test_a_survivor_by_ties_ranks_below_winners_of_matches() -> None:
    first, second, third, _ = bracket(agent_ids(4), 7)

    def says(call: Call) -> str:
        both = {name: letter for letter, name in call.labels.items()}
        return both[second] if both.keys() == {second, third} else "tie"

    ended = run(asked(4, "knockout"), judged(says, usage=brief(first)))
    assert met(rounds(ended)[1]) == [frozenset({first, second})], "the first got on by its fewer tokens"
    assert (ended.order[0], ended.order[-1]) == (second, third)


@pytest.mark.parametrize(
    ("max_calls", "form", "purposes", "ranked_ones"),
    [
        (4, "round_robin", [], 0),
        (24, "round_robin", ["propose"], 0),
        (25, "round_robin", ["propose", "judge"], 5),
        (8, "swiss", ["propose"], 0),
        (9, "swiss", ["propose", "judge"], 4),
        (13, "swiss", ["propose", "judge", "judge"], 5),
        (17, "swiss", ["propose", "judge", "judge", "judge"], 5),
        (7, "knockout", ["propose", "judge"], 2),
        (11, "knockout", ["propose", "judge", "judge"], 5),
        (13, "knockout", ["propose", "judge", "judge", "judge"], 5),
    ],
)
def test_a_refused_round_leaves_the_verdict_to_those_before_it(
    max_calls: int, form: str, purposes: list[str], ranked_ones: int
) -> None:
    ended = run(asked(5, form, budget=Budget(max_calls=max_calls)))
    assert ended.purposes == purposes
    if not purposes:
        assert isinstance(ended.end, Failed)
        return
    scored = [standing for standing in ended.verdict.ranking if standing.score is not None]
    assert len(scored) == ranked_ones
    assert ("unscored" in ended.degraded) == (purposes == ["propose"])
    complete = len(ended.calls) == max_calls and purposes == run(asked(5, form)).purposes
    assert ("budget" in ended.degraded) != complete
    assert ended.content is not None
