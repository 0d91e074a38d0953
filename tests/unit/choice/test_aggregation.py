from fractions import Fraction
from math import exp, tanh

import pytest

from app.deliberation.choice.aggregation import Aggregation, trimmed_mean
from app.deliberation.choice.ballots import Ballot, rank
from app.deliberation.choice.bradley_terry import PRIOR_WINS, bradley_terry, win_rates
from tests.unit.choice.ballots_of import ONE, RULES, blocs, cast, ranked


def schulze_voters() -> list[Ballot]:
    return blocs(
        *(
            (5, "ACBED"),
            (5, "ADECB"),
            (8, "BEDAC"),
            (3, "CABED"),
            (7, "CAEBD"),
            (2, "CBADE"),
            (7, "DCEBA"),
            (8, "EBADC"),
        )
    )


def test_schulzes_45_voters_have_their_known_scores() -> None:
    points = ranked("ABCDE", schulze_voters()).scores
    assert {c: round((score or 0) * 4 * 45) for c, score in points.items()} == dict(A=98, B=92, C=89, D=69, E=102)
    duels = ranked("ABCDE", schulze_voters(), "copeland").scores
    assert duels == dict(A=0.5, B=0.5, C=0.5, D=0.25, E=0.75)


def test_tennessee_elects_its_condorcet_winner() -> None:
    tennessee = blocs((42, "MNCK"), (26, "NCKM"), (15, "CKNM"), (17, "KCNM"))
    assert ranked("MNCK", tennessee, "copeland").order == ("N", "C", "K", "M")


def test_borda_may_pass_over_a_condorcet_winner() -> None:
    ballots = blocs((3, "abc"), (2, "bca"))
    assert {rule: ranked("abc", ballots, rule).order[0] for rule in RULES if "mean" not in rule} == {
        "borda": "b",
        "copeland": "a",
    }


def test_a_circle_of_three_is_a_tie() -> None:
    made = ranked("abcd", blocs((1, "abcd"), (1, "bcad"), (1, "cabd")), "copeland", tokens=dict(a=3, b=1, c=2, d=0))
    assert (made.tie, made.margin, made.order[0], made.order[3]) == (True, 0, "b", "d")
    assert made.scores["a"] == made.scores["b"] == made.scores["c"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((9,), (9,)),
        ((9, 2), (9, 2)),
        ((9, 2, 4), (4,)),
        ((0, 6, 8, 10), (6, 8)),
        ((0, 0, 0, 1, 2, 3, 4, 5, 6, 10), (0, 1, 2, 3, 4, 5)),
    ],
)
def test_the_trimmed_mean_drops_a_fifth_at_each_end_and_one_at_least_of_three(
    given: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    assert trimmed_mean([{"a": total} for total in given], 10) == {"a": Fraction(sum(kept), 10 * len(kept))}


def test_one_outlying_reviewer_moves_the_mean_and_not_the_trimmed_mean() -> None:
    ballots = [*(cast(f"r{n}", a=8, b=7) for n in range(4)), cast("hater", a=0, b=10)]
    assert ranked("ab", ballots, "mean").order == ("b", "a")
    assert ranked("ab", ballots, "trimmed_mean").order == ("a", "b")


@pytest.mark.parametrize("rule", RULES)
def test_a_candidate_missing_from_a_ballot_never_counts_as_zero(rule: Aggregation) -> None:
    # On the three ballots that do not show a, zeros would put b above it.
    ballots = [cast(f"r{n}", a=9, b=5, c=4) for n in range(2)] + [cast(f"s{n}", b=5, c=4) for n in range(3)]
    assert ranked("abc", ballots, rule).order == ("a", "b", "c")


@pytest.mark.parametrize("rule", RULES)
def test_unscored_candidates_come_last_without_a_score(rule: Aggregation) -> None:
    made = ranked("abcd", [cast("r", a=0, b=0)], rule, tokens={"a": 9, "b": 8, "c": 2, "d": 1})
    assert made.order == ("b", "a", "d", "c")
    level = 0.0 if "mean" in rule else 0.5
    assert (made.scores, made.degraded) == ({"a": level, "b": level, "c": None, "d": None}, ())


@pytest.mark.parametrize("rule", RULES)
def test_a_council_of_two_is_ranked_by_means_and_reports_another_chosen_rule(rule: Aggregation) -> None:
    shown = [("dev-001", {"dev-002": 6, "dev-002#1": 9}), ("dev-002", {"dev-001": 4, "dev-001#1": 8})]
    ballots = [Ballot(reviewer, {c: {"only": score} for c, score in scores.items()}) for reviewer, scores in shown]
    made = ranked(["dev-001", "dev-001#1", "dev-002", "dev-002#1"], ballots, rule)
    assert made.order == ("dev-002#1", "dev-001#1", "dev-002", "dev-001")
    assert (made.scores["dev-002#1"], made.margin) == (0.9, pytest.approx(0.1))
    reasons = (f"too few ballots for {rule}: ranked by the mean scores",)
    assert made.degraded == (reasons if rule == "copeland" else ())


def test_copeland_ignores_unlisted_candidates() -> None:
    ballots = blocs((2, "zab"), (1, "bza"), (2, "azb"))
    listed = rank("ab", ballots, ONE, {"a": 1, "b": 1}, 1, "copeland")
    alone = rank("ab", blocs((2, "ab"), (1, "ba"), (2, "ab")), ONE, {"a": 1, "b": 1}, 1, "copeland")
    assert (listed.order, listed.scores) == (alone.order, alone.scores)


def test_without_a_game_all_are_average_and_an_unbeaten_candidate_stays_finite() -> None:
    assert bradley_terry("ab", {}) == {"a": 0, "b": 0}
    assert bradley_terry("", {}) == {}
    unbeaten = bradley_terry("ab", {("a", "b"): 10})
    assert unbeaten["b"] == pytest.approx(-unbeaten["a"])
    # Where the slope of the log-posterior, 10·log σ(2s) + log σ(s) + log σ(-s), is nil.
    assert 20 / (1 + exp(2 * unbeaten["a"])) == pytest.approx(tanh(unbeaten["a"] / 2))
    assert max(bradley_terry("ab", {("a", "b"): 10**6}).values()) < 20


WILD = {
    (0, 1): 50, (0, 3): 1000, (0, 4): 5, (0, 6): 5, (1, 2): 1, (1, 3): 10**6, (1, 6): 50, (2, 1): 1, (2, 5): 2,
    (2, 6): 5, (2, 7): 1, (3, 0): 2, (3, 2): 1, (3, 6): 10**6, (4, 1): 10**6, (4, 2): 2, (4, 3): 1, (4, 5): 50,
    (4, 7): 10**6, (5, 0): 1000, (5, 3): 10**6, (6, 3): 1, (6, 4): 2, (6, 5): 1, (6, 7): 50, (7, 0): 1, (7, 3): 5,
}  # fmt: skip
"""On these, Newton's method overshoots ever further unless its steps are damped."""


def test_at_the_fitted_strengths_expected_wins_equal_observed_wins() -> None:
    outcomes = {(f"c{winner}", f"c{loser}"): count for (winner, loser), count in WILD.items()}
    strengths = bradley_terry([f"c{number}" for number in range(8)], outcomes)
    for name, strength in strengths.items():
        expected, won = 2 * PRIOR_WINS / (1 + exp(-strength)), PRIOR_WINS
        for (winner, loser), count in outcomes.items():
            if name in (winner, loser):
                rival = loser if name == winner else winner
                expected += count / (1 + exp(strengths[rival] - strength))
                won += count if name == winner else 0
        assert expected == pytest.approx(won, rel=1e-6)


def test_bradley_terry_reads_the_same_from_any_order_of_candidates_and_outcomes() -> None:
    outcomes = {("a", "b"): Fraction(1, 2), ("b", "a"): Fraction(1, 2), ("c", "a"): 2, ("b", "c"): 1}
    turned = dict(reversed(outcomes.items()))
    assert list(bradley_terry("abc", outcomes).items()) == list(bradley_terry("cbacb", turned).items())


@pytest.mark.parametrize("outcome", [(("a", "a"), 1), (("a", "z"), 1), (("z", "a"), 1), (("a", "b"), -1)])
def test_bradley_terry_refuses_invalid_outcomes(outcome: tuple[tuple[str, str], int]) -> None:
    with pytest.raises(ValueError, match="not an outcome"):
        bradley_terry("ab", dict([outcome]))


def test_win_rates_are_mean_chances_against_the_others() -> None:
    assert win_rates({}) == {}
    assert win_rates({"a": 3.0}) == {"a": 0.5}
    assert win_rates({"a": 0.0, "b": 0.0}) == {"a": 0.5, "b": 0.5}
    rates = win_rates({"a": 1.0, "b": 0.0, "c": -1000.0})
    assert rates["a"] == pytest.approx((0.7310586 + 1) / 2)
    assert (rates["c"], sum(rates.values())) == (0, pytest.approx(1.5))
