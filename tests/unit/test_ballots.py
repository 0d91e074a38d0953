from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.ballots import (
    Ballot,
    Ranked,
    agreement,
    ballot,
    borda,
    criterion_means,
    dissent,
    kendall_tau,
    mean_scores,
    order,
    rank,
    weighted,
)
from app.deliberation.outputs import Output, Scores, parse_output
from app.deliberation.specification import DEFAULT_RUBRIC, Criterion

bounded = settings(max_examples=40, deadline=None, derandomize=True)


def rubric(**weights: float) -> tuple[Criterion, ...]:
    return tuple(Criterion(id=name, description=name, weight=weight) for name, weight in weights.items())


ONE = rubric(only=1)
TWO = rubric(right=3, clear=1)


def cast(reviewer: str, **scores: int) -> Ballot:
    return Ballot(reviewer, {candidate: {"only": score} for candidate, score in scores.items()})


def ranked(
    candidates: str, ballots: Sequence[Ballot], tokens: Mapping[str, int] | None = None, seed: int = 1
) -> Ranked:
    names = list(candidates)
    return rank(names, ballots, ONE, tokens or dict.fromkeys(names, 100), seed)


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


# ---- Borda and means


def tennessee() -> list[Ballot]:
    blocs = [(42, "MNCK"), (26, "NCKM"), (15, "CKNM"), (17, "KCNM")]
    voters = [preference for size, preference in blocs for _ in range(size)]
    return [
        cast(f"v{number}", **{city: 9 - place for place, city in enumerate(preference)})
        for number, preference in enumerate(voters)
    ]


def test_tennessee_has_its_known_borda_totals() -> None:
    totals = {city: round(score * 3 * 100, 9) for city, score in borda(tennessee(), ONE).items()}
    assert totals == {"M": 126, "N": 194, "C": 173, "K": 107}
    assert ranked("MNCK", tennessee()).order == ("N", "C", "M", "K")
    assert ranked("MNCK", tennessee()).margin == pytest.approx(21 / 300)


def test_ties_share_the_mean_of_their_places() -> None:
    assert borda([cast("r", a=9, b=5, c=5, d=1)], ONE) == {"a": 1, "b": 0.5, "c": 0.5, "d": 0}
    assert borda([cast("r", a=5, b=5)], ONE) == {"a": 0.5, "b": 0.5}


def test_ballots_of_fewer_than_two_say_nothing_to_borda() -> None:
    assert borda([cast("r", a=9), Ballot("s", {})], ONE) == {}
    assert borda([cast("r", a=0), cast("s", a=9, b=1)], ONE) == {"a": 1, "b": 0}


def test_means_are_over_the_ballots_that_show_the_candidate() -> None:
    ballots = [cast("r", a=8, b=2), cast("s", a=4), Ballot("t", {})]
    assert mean_scores(ballots, ONE) == {"a": 0.6, "b": 0.2}
    assert criterion_means(ballots) == {"a": {"only": 6}, "b": {"only": 2}}


@bounded
@given(st.integers(0, 2), st.lists(st.tuples(*[st.integers(0, 10)] * 3), min_size=3, max_size=3))
def test_a_missing_ballot_changes_no_score_of_what_others_saw_alike(missing: int, rows: list[tuple[int, ...]]) -> None:
    ballots = [Ballot(f"r{n}", {c: {"only": s} for c, s in zip("abc", row, strict=True)}) for n, row in enumerate(rows)]
    there = [entry for n, entry in enumerate(ballots) if n != missing]
    absent = [*there, Ballot(f"r{missing}", {})]
    assert borda(absent, ONE) == borda(there, ONE)
    assert mean_scores(absent, ONE) == mean_scores(there, ONE)
    assert ranked("abc", absent) == ranked("abc", there)


# ---- ranking


def test_a_council_of_two_is_ranked_by_mean_scores() -> None:
    first, second = (
        {"dev-002": {"only": 6}, "dev-002#1": {"only": 9}},
        {"dev-001": {"only": 4}, "dev-001#1": {"only": 8}},
    )
    versions = ["dev-001", "dev-001#1", "dev-002", "dev-002#1"]
    made = rank(versions, [Ballot("dev-001", first), Ballot("dev-002", second)], ONE, dict.fromkeys(versions, 1), 1)
    assert made.order == ("dev-002#1", "dev-001#1", "dev-002", "dev-001")
    assert made.scores["dev-002#1"] == 0.9
    assert made.margin == pytest.approx(0.1)


def test_a_ballot_of_one_authors_versions_does_not_lift_them_over_a_comparison() -> None:
    compared = {"b": {"only": 9}, "c": {"only": 8}, "c#1": {"only": 7}, "b#1": {"only": 1}}
    ballots = [
        Ballot("a", compared),
        Ballot("b", {"c": {"only": 9}, "c#1": {"only": 2}}),
        Ballot("c", {"b": {"only": 2}, "b#1": {"only": 9}}),
    ]
    made = rank(list(compared), ballots, ONE, dict.fromkeys(compared, 1), 1)
    assert made.order == ("b", "c", "c#1", "b#1")


def test_candidates_nobody_scored_come_last_without_a_score() -> None:
    made = ranked("abcd", [cast("r", a=0, b=0)], tokens={"a": 9, "b": 8, "c": 2, "d": 1})
    assert made.order == ("b", "a", "d", "c")
    assert made.scores == {"a": 0.5, "b": 0.5, "c": None, "d": None}


@pytest.mark.parametrize(
    ("ballots", "tie", "margin"),
    [
        ([], False, None),
        ([cast("r", a=3)], False, None),
        ([cast("r", a=9, b=3)], False, 1.0),
        ([cast("r", a=9, b=3), cast("s", a=3, b=7)], True, 0.0),
    ],
)
def test_tie_and_margin_are_told(ballots: list[Ballot], tie: bool, margin: float | None) -> None:
    made = ranked("ab", ballots)
    assert (made.tie, made.margin) == (tie, margin)


def two(reviewer: str, **scores: tuple[int, int]) -> Ballot:
    return Ballot(reviewer, {c: {"right": right, "clear": clear} for c, (right, clear) in scores.items()})


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


# ---- axioms

NAMES = "abcd"
Row = tuple[tuple[int, int], ...]
profiles = st.lists(
    st.tuples(*[st.tuples(st.integers(0, 10), st.integers(0, 10))] * len(NAMES)), min_size=1, max_size=5
)


def profile(rows: list[Row], recused: bool = False) -> list[Ballot]:
    return [
        two(f"r{n}", **{c: pair for c, pair in zip(NAMES, row, strict=True) if not recused or c != NAMES[n % 4]})
        for n, row in enumerate(rows)
    ]


def placed(ballots: list[Ballot], tokens: Mapping[str, int]) -> Ranked:
    return rank(NAMES, ballots, TWO, tokens, 5)


TOKENS = {"a": 1, "b": 2, "c": 3, "d": 4}


@bounded
@given(profiles, st.randoms(use_true_random=False), st.booleans())
def test_anonymity_the_order_and_names_of_the_reviewers_do_not_count(
    rows: list[Row], random: Random, recused: bool
) -> None:
    ballots = profile(rows, recused)
    shuffled = random.sample(ballots, len(ballots))
    renamed = [Ballot(f"x{n}", entry.scores) for n, entry in enumerate(shuffled)]
    assert placed(renamed, TOKENS) == placed(ballots, TOKENS)


@bounded
@given(profiles, st.sampled_from(list(permutations(NAMES))), st.booleans())
def test_neutrality_renamed_candidates_keep_their_places(
    rows: list[Row], names: tuple[str, ...], recused: bool
) -> None:
    new = dict(zip(NAMES, names, strict=True))
    ballots = profile(rows, recused)
    renamed = [Ballot(entry.reviewer, {new[c]: s for c, s in entry.scores.items()}) for entry in ballots]
    before = placed(ballots, TOKENS)
    after = placed(renamed, {new[c]: count for c, count in TOKENS.items()})
    assert after.order == tuple(new[c] for c in before.order)
    assert (after.tie, after.margin) == (before.tie, before.margin)
    assert after.scores == {new[c]: score for c, score in before.scores.items()}


@bounded
@given(profiles)
def test_unanimity_what_every_ballot_puts_above_is_above(rows: list[Row]) -> None:
    ballots = profile(rows)
    place = placed(ballots, TOKENS).order.index
    totals = [{c: weighted(s, TWO) for c, s in entry.scores.items()} for entry in ballots]
    for one, other in permutations(NAMES, 2):
        if all(total[one] > total[other] for total in totals):
            assert place(one) < place(other)


@bounded
@given(profiles, st.integers(0, 4), st.integers(1, 10), st.booleans())
def test_monotonicity_a_winner_that_gains_points_stays_the_winner(
    rows: list[Row], which: int, gain: int, recused: bool
) -> None:
    ballots = profile(rows, recused)
    winner = placed(ballots, TOKENS).order[0]
    entry = ballots[which % len(ballots)]
    if winner in entry.scores:
        raised = {c: min(10, s + gain) for c, s in entry.scores[winner].items()}
        ballots[which % len(ballots)] = Ballot(entry.reviewer, {**entry.scores, winner: raised})
    assert placed(ballots, TOKENS).order[0] == winner


@bounded
@given(profiles)
def test_reversed_ballots_reverse_the_borda_scores(rows: list[Row]) -> None:
    turned = profile([tuple((10 - right, 10 - clear) for right, clear in row) for row in rows])
    assert borda(turned, TWO) == pytest.approx({c: 1 - score for c, score in borda(profile(rows), TWO).items()})


@bounded
@given(profiles, st.booleans())
def test_scores_stay_in_bounds_and_every_candidate_is_ranked_once(rows: list[Row], recused: bool) -> None:
    made = placed(profile(rows, recused), TOKENS)
    assert sorted(made.order) == list(NAMES)
    known = [score for candidate in made.order if (score := made.scores[candidate]) is not None]
    assert all(0 <= score <= 1 for score in known)
    assert known == sorted(known, reverse=True)
    assert not made.tie or made.margin == 0


# ---- agreement and dissent


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
def test_kendall_tau_refuses_what_cannot_be_compared(first: str, second: str) -> None:
    with pytest.raises(ValueError, match="same candidates"):
        kendall_tau(first, second)


def test_agreement_is_the_mean_over_the_ballots_that_compare() -> None:
    assert agreement([cast("r", a=9, b=1), cast("s", a=1, b=9)], ("a", "b"), ONE) == 0
    assert agreement([cast("r", a=9, b=5, c=1), cast("s", b=9, c=1), cast("t", a=1)], ("a", "b", "c"), ONE) == 1
    assert agreement([cast("r", a=9), Ballot("s", {})], ("a", "b"), ONE) is None
    assert agreement([cast("r", a=9, z=1)], ("a", "b"), ONE) is None


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
    assert dissent(ballots, "w", ONE, author_of=lambda candidate: candidate) == (("p", "x#1"), ("r", "w#1"), ("t", "x"))
