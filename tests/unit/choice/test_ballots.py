from collections.abc import Sequence
from fractions import Fraction

import pytest

from app.deliberation.choice import aggregation as rules
from app.deliberation.choice.ballots import (
    Ballot,
    agreement,
    ballot,
    dissent,
    effective_votes,
    kendall_tau,
    mean_scores,
    order,
    rank,
)
from app.deliberation.outputs import Output, Scores, parse_output
from app.deliberation.specification import DEFAULT_RUBRIC, Criterion
from tests.unit.choice.ballots_of import ONE, TWO, blocs, cast, ranked, rubric, two

# ---- one ballot


def test_a_ballot_puts_the_candidates_behind_the_letters() -> None:
    entry = '{"criteria":[{"id":"only","rationale":"r","score":%d}]}'
    text = f'{{"A":{entry % 4},"B":{entry % 9}}}'
    scores = parse_output(Output(kind="score", labels=("A", "B"), criteria=("only",)), text)
    assert isinstance(scores, Scores)
    made = ballot("qa-001", {"A": "dev-002#1", "B": "dev-001", "C": "dev-003"}, scores)
    assert made == Ballot("qa-001", {"dev-002#1": {"only": 4}, "dev-001": {"only": 9}})
    with pytest.raises(KeyError):
        ballot("qa-001", {"A": "dev-001"}, scores)


def test_the_weighted_mean_follows_the_weights_and_never_guesses_a_missing_score() -> None:
    def weighted(scores: dict[str, int], criteria: Sequence[Criterion]) -> float:
        return 10 * mean_scores([Ballot("r", {"a": scores})], criteria)["a"]

    assert weighted({"correctness": 10, "completeness": 4, "clarity": 1}, DEFAULT_RUBRIC) == pytest.approx(39 / 6)
    assert weighted({"right": 7, "clear": 7}, TWO) == 7
    with pytest.raises(KeyError):
        weighted({"right": 7}, TWO)
    with pytest.raises(ValueError, match="criterion"):
        weighted({}, ())


def test_equal_totals_share_a_tier_even_where_floats_would_differ() -> None:
    decimal = rubric(a=0.1, b=0.2, c=0.3)
    scores = {"x": {"a": 1, "b": 1, "c": 0}, "y": {"a": 0, "b": 0, "c": 1}, "z": {"a": 0, "b": 0, "c": 2}}
    assert 0.1 + 0.2 != 0.3
    assert order(Ballot("r", scores), decimal) == [("z",), ("x", "y")]


def borda(ballots: Sequence[Ballot]) -> dict[str, Fraction]:
    return rules.borda([{candidate: given["only"] for candidate, given in cast.scores.items()} for cast in ballots])


def tennessee() -> list[Ballot]:
    return blocs((42, "MNCK"), (26, "NCKM"), (15, "CKNM"), (17, "KCNM"))


def test_tennessee_has_its_known_borda_totals() -> None:
    totals = {city: score * 3 * 100 for city, score in borda(tennessee()).items()}
    assert totals == {"M": 126, "N": 194, "C": 173, "K": 107}
    assert ranked("MNCK", tennessee()).order == ("N", "C", "M", "K")
    assert ranked("MNCK", tennessee()).margin == pytest.approx(21 / 300)


def test_ties_share_the_mean_of_their_places() -> None:
    assert borda([cast("r", a=9, b=5, c=5, d=1)]) == {"a": 1, "b": 0.5, "c": 0.5, "d": 0}
    assert borda([cast("r", a=5, b=5)]) == {"a": 0.5, "b": 0.5}


def test_ballots_of_fewer_than_two_say_nothing_to_borda() -> None:
    assert borda([cast("r", a=9), Ballot("s", {})]) == {}
    assert borda([cast("r", a=0), cast("s", a=9, b=1)]) == {"a": 1, "b": 0}


def test_a_ballot_of_one_authors_versions_does_not_lift_them_over_a_comparison() -> None:
    compared = {"b": {"only": 9}, "c": {"only": 8}, "c#1": {"only": 7}, "b#1": {"only": 1}}
    ballots = [
        Ballot("a", compared),
        Ballot("b", {"c": {"only": 9}, "c#1": {"only": 2}}),
        Ballot("c", {"b": {"only": 2}, "b#1": {"only": 9}}),
    ]
    made = rank(list(compared), ballots, ONE, dict.fromkeys(compared, 1), 1)
    assert made.order == ("b", "c", "c#1", "b#1")


@pytest.mark.parametrize(
    ("ballots", "tie", "margin"),
    [
        ([], False, None),
        ([cast("r", a=3)], False, None),
        ([cast("r", a=9, b=3)], False, 1.0),
        ([cast("r", a=9, b=3), cast("s", a=3, b=7)], True, 0.0),
    ],
)
def test_tie_and_margin_are_reported(ballots: list[Ballot], tie: bool, margin: float | None) -> None:
    made = ranked("ab", ballots)
    assert (made.tie, made.margin) == (tie, margin)


TIE_BREAKS = {
    # b has the better worst criterion and fewer tokens: the mean goes before both.
    "mean score": (
        [two("r", a=(10, 1), b=(2, 4)), two("s", a=(4, 1), b=(5, 4))],
        {"a": 9, "b": 1},
        "ab",
    ),
    # Equal Borda and equal means over three candidates; a is above b on two ballots of three.
    "head to head": (
        [two("r", a=(8, 8), b=(6, 6), c=(2, 2)), two("s", a=(8, 8), b=(6, 6), c=(2, 2)),
         two("t", b=(8, 8), c=(6, 6), a=(4, 4))],
        {"a": 9, "b": 1, "c": 1},
        "abc",
    ),
    "worst criterion": ([two("r", a=(6, 6), b=(5, 9)), two("s", a=(6, 6), b=(5, 9))], {"a": 9, "b": 1}, "ab"),
    "fewer tokens": ([two("r", a=(6, 6), b=(6, 6))], {"a": 9, "b": 10}, "ab"),
}  # fmt: skip


@pytest.mark.parametrize("rule", TIE_BREAKS)
def test_ties_are_broken_in_order(rule: str) -> None:
    ballots, tokens, expected = TIE_BREAKS[rule]
    made = rank(list(expected), ballots, TWO, tokens, 1)
    assert made.order == tuple(expected)
    assert made.tie
    assert made.scores["a"] == made.scores["b"]
    if rule != "mean score":
        means = mean_scores(ballots, TWO)
        assert means["a"] == means["b"]


def test_only_level_candidates_are_compared_head_to_head() -> None:
    # All are level by Borda and b with c by the mean too; c beats b, though over all three each has won one duel.
    ballots = [cast("r", a=8, b=2, c=4), cast("s", a=6, b=8, c=4), cast("t", a=4, b=6, c=8)]
    assert ranked("abc", ballots, tokens={"a": 9, "b": 1, "c": 2}).order == ("a", "c", "b")


CIRCLES = {
    "all see all": [cast("r", a=6, b=4, c=2), cast("s", b=6, c=4, a=2), cast("t", c=6, a=4, b=2)],
    "recused": [cast("c", a=6, b=4), cast("a", b=6, c=4), cast("b", c=6, a=4)],
}


@pytest.mark.parametrize("circle", CIRCLES)
def test_a_circle_of_three_falls_through_to_the_next_rule(circle: str) -> None:
    assert ranked("abc", CIRCLES[circle], tokens={"a": 3, "b": 1, "c": 2}).order == ("b", "c", "a")


def test_the_last_rule_is_a_hash_of_the_seed() -> None:
    ballots = [cast("r", a=5, b=5)]
    winners = {ranked("ab", ballots, seed=seed).order[0] for seed in range(20)}
    assert winners == {"a", "b"}
    assert ranked("ab", ballots, seed=7) == ranked("ab", ballots, seed=7)


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ("abcd", "abcd", 1.0),
        ("abcd", "dcba", -1.0),
        ("abc", "acb", 1 / 3),
        (["a", "bc"], "abc", 2 / 6**0.5),
        (["a", "bc"], ["a", "bc"], 1.0),
        (["abc"], "abc", 0.0),
    ],
)
def test_kendall_tau(first: Sequence[str], second: Sequence[str], tau: float) -> None:
    assert kendall_tau(first, second) == pytest.approx(tau)
    assert kendall_tau(second, first) == pytest.approx(tau)


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("ab", "abc"), ("ab", "ac")])
def test_kendall_tau_refuses_orders_of_different_candidates(first: str, second: str) -> None:
    with pytest.raises(ValueError, match="same candidates"):
        kendall_tau(first, second)


def test_agreement_is_the_mean_over_the_ballots_that_compare() -> None:
    assert agreement([cast("r", a=9, b=1), cast("s", a=1, b=9)], ("a", "b"), ONE) == 0
    assert agreement([cast("r", a=9, b=5, c=1), cast("s", b=9, c=1), cast("t", a=1)], ("a", "b", "c"), ONE) == 1
    assert agreement([cast("r", a=9), Ballot("s", {})], ("a", "b"), ONE) is None
    assert agreement([cast("r", a=9, z=1)], ("a", "b"), ONE) is None


CROWDS = {
    "alike": ([cast(f"r{n}", a=9, b=5, c=1) for n in range(9)], 1.0),
    "opposed": ([cast("r", a=9, b=1), cast("s", a=1, b=9)], 2.0),
    # The three τ are 1/3, 1/3 and -1/3: their mean is 1/9.
    "in part": (blocs((1, "abc"), (1, "acb"), (1, "bac")), 27 / 11),
    "only what both show": ([cast("r", a=9, b=5, c=1), cast("s", b=2, c=1, d=9)], 1.0),
    "ties": ([cast("r", a=9, b=5, c=5), cast("s", a=9, b=5, c=1)], 2 / (1 + 2 / 6**0.5)),
    # The third puts all level, so it is compared with no other ballot.
    "one says nothing": ([*blocs((1, "abc"), (1, "acb")), cast("t", a=4, b=4, c=4), cast("u", a=4)], 3 / 2),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_effective_votes_fall_as_ballots_correlate(crowd: str) -> None:
    ballots, votes = CROWDS[crowd]
    assert effective_votes(ballots, ONE) == pytest.approx(votes)
    assert effective_votes(ballots[::-1], ONE) == effective_votes(ballots, ONE)


@pytest.mark.parametrize(
    "ballots",
    [
        [],
        [cast("r", a=9, b=1)],
        [cast("r", a=9, b=1), cast("s", b=9, c=1)],
        [cast("r", a=9, b=1), cast("s", a=5, b=5)],
        [cast("r", a=9, b=1), Ballot("s", {})],
    ],
)
def test_ballots_that_cannot_be_compared_have_no_effective_votes(ballots: list[Ballot]) -> None:
    assert effective_votes(ballots, ONE) is None


def test_dissent_names_the_reviewers_that_preferred_another_author() -> None:
    ballots = [
        Ballot("t", {"w": {"only": 3}, "w#1": {"only": 8}, "x": {"only": 9}, "y": {"only": 9}}),
        Ballot("r", {"w": {"only": 1}, "w#1": {"only": 9}, "x": {"only": 8}}),
        Ballot("s", {"w": {"only": 7}, "x": {"only": 7}}),
        Ballot("p", {"w": {"only": 2}, "x#1": {"only": 7}}),
        Ballot("w", {"x": {"only": 9}, "y": {"only": 1}}),
        Ballot("q", {}),
    ]
    assert dissent(ballots, "w", ONE) == (("p", "x"), ("t", "x"))
    assert dissent(ballots, "w#1", ONE) == dissent(ballots, "w", ONE)
