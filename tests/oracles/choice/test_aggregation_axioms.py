from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.choice.aggregation import Aggregation
from app.deliberation.choice.ballots import Ballot, Ranked, mean_scores, rank
from tests.unit.choice.ballots_of import RULES, TWO, two

bounded = settings(max_examples=30, deadline=None, derandomize=True)

NAMES = "abcd"
TOKENS = {"a": 1, "b": 2, "c": 3, "d": 4}

Row = tuple[tuple[int, int] | None, ...]

scores = st.tuples(st.integers(0, 10), st.integers(0, 10))
level = st.tuples(st.integers(4, 6), st.just(5))
"""Few values, so that ties are frequent."""


def rows(score: st.SearchStrategy[tuple[int, int] | None]) -> st.SearchStrategy[list[Row]]:
    return st.lists(st.tuples(*[score] * len(NAMES)), min_size=1, max_size=6)


full = rows(scores) | rows(level)
partial = full | rows(scores | st.none()) | rows(level | st.none())


def profile(rows: Sequence[Row]) -> list[Ballot]:
    return [
        two(f"r{n}", **{c: pair for c, pair in zip(NAMES, row, strict=True) if pair is not None})
        for n, row in enumerate(rows)
    ]


def placed(ballots: Sequence[Ballot], rule: Aggregation, tokens: Mapping[str, int] = TOKENS) -> Ranked:
    return rank(NAMES, ballots, TWO, tokens, 5, rule)


def totals(entry: Ballot) -> dict[str, float]:
    return mean_scores([entry], TWO)


@bounded
@given(partial, st.randoms(use_true_random=False))
def test_anonymity_neither_order_nor_names_of_the_reviewers_change_a_byte(rows: list[Row], random: Random) -> None:
    ballots = profile(rows)
    shuffled = random.sample(ballots, len(ballots))
    renamed = [Ballot(f"x{n}", dict(list(entry.scores.items())[::-1])) for n, entry in enumerate(shuffled)]
    for rule in RULES:
        assert repr(placed(renamed, rule)) == repr(placed(ballots, rule))


@bounded
@given(partial, st.sampled_from(list(permutations(NAMES))))
def test_neutrality_renamed_candidates_keep_their_places(rows: list[Row], names: tuple[str, ...]) -> None:
    new = dict(zip(NAMES, names, strict=True))
    ballots = profile(rows)
    renamed = [Ballot(entry.reviewer, {new[c]: s for c, s in entry.scores.items()}) for entry in ballots]
    for rule in RULES:
        before = placed(ballots, rule)
        after = placed(renamed, rule, {new[c]: count for c, count in TOKENS.items()})
        assert after.order == tuple(new[c] for c in before.order)
        assert after.scores == {new[c]: score for c, score in before.scores.items()}
        assert (after.tie, after.margin, after.degraded) == (before.tie, before.margin, before.degraded)


@bounded
@given(full)
def test_unanimity_a_candidate_above_another_on_every_ballot_ranks_above_it(rows: list[Row]) -> None:
    ballots = profile(rows)
    given_totals = [totals(entry) for entry in ballots]
    for rule in RULES:
        place = placed(ballots, rule).order.index
        for one, other in permutations(NAMES, 2):
            if all(total[one] > total[other] for total in given_totals):
                assert place(one) < place(other), rule


@bounded
@given(partial, st.integers(0, 5), st.integers(1, 10))
def test_monotonicity_a_winner_that_gains_points_stays_the_winner(rows: list[Row], which: int, gain: int) -> None:
    ballots = profile(rows)
    entry = ballots[which % len(ballots)]
    for rule in RULES:
        winner = placed(ballots, rule).order[0]
        if winner in entry.scores:
            raised = {criterion: min(10, score + gain) for criterion, score in entry.scores[winner].items()}
            better = [
                Ballot(cast.reviewer, {**cast.scores, winner: raised}) if cast is entry else cast for cast in ballots
            ]
            assert placed(better, rule).order[0] == winner, rule


@bounded
@given(partial)
def test_reversed_ballots_reverse_the_scores(rows: list[Row]) -> None:
    turned = [tuple(pair and (10 - pair[0], 10 - pair[1]) for pair in row) for row in rows]
    for rule in RULES:
        before, after = placed(profile(rows), rule), placed(profile(turned), rule)
        expected = {c: None if score is None else pytest.approx(1 - score) for c, score in before.scores.items()}
        assert after.scores == expected, rule


@bounded
@given(partial)
def test_a_candidate_that_wins_every_duel_wins(rows: list[Row]) -> None:
    ballots = profile(rows)
    given_totals = [totals(entry) for entry in ballots]
    for one in NAMES:
        leads = [
            sum(
                (cast[one] > cast[other]) - (cast[one] < cast[other])
                for cast in given_totals
                if {one, other} <= cast.keys()
            )
            for other in NAMES
            if other != one
        ]
        if min(leads) > 0:
            assert placed(ballots, "copeland").order[0] == one


@bounded
@given(partial, st.integers(0, 6))
def test_a_ballot_that_shows_nothing_changes_nothing(rows: list[Row], where: int) -> None:
    ballots = profile(rows)
    for rule in RULES:
        assert placed([*ballots[:where], Ballot("absent", {}), *ballots[where:]], rule) == placed(ballots, rule)


@bounded
@given(partial)
def test_scores_are_in_bounds_and_fall_along_the_order(rows: list[Row]) -> None:
    ballots = profile(rows)
    shown = {candidate for entry in ballots for candidate in entry.scores}
    for rule in RULES:
        made = placed(ballots, rule)
        assert sorted(made.order) == list(NAMES)
        known = [score for candidate in made.order if (score := made.scores[candidate]) is not None]
        assert {candidate for candidate, score in made.scores.items() if score is not None} == shown
        assert all(0 <= score <= 1 for score in known)
        assert known == sorted(known, reverse=True)
        assert made.tie == (len(known) > 1 and known[0] == known[1])
        assert made.margin == (pytest.approx(known[0] - known[1]) if len(known) > 1 else None)


@bounded
@given(full)
def test_no_reviewer_alone_is_overruled(rows: list[Row]) -> None:
    entry = profile(rows)[0]
    points = totals(entry)
    for rule in RULES:
        place = placed([entry], rule).order.index
        for one, other in combinations(NAMES, 2):
            if points[one] != points[other]:
                assert (place(one) < place(other)) == (points[one] > points[other]), rule
