import random
from dataclasses import replace

from benchmarks.quality.aggregations import RULES, Situation, ballots, beyond_noise, hits, qualities

PLAIN = Situation(about="plain", agents=4, noise=0.0)


def test_only_whole_points_hide_the_best_text_from_reviewers_without_error() -> None:
    found = hits(PLAIN, 200, 1)
    assert found.keys() == set(RULES) and all(sum(hit) >= 170 for hit in found.values())


def test_a_hostile_reviewer_reverses_a_selfish_one_gives_nothing_and_ballots_get_lost() -> None:
    true = {"a0": 9.0, "a1": 7.0, "a2": 5.0, "a3": 3.0}

    def scores(situation: Situation) -> list[list[int]]:
        cast = ballots(situation, true, random.Random(1))
        return [[score for by in ballot.scores.values() for score in by.values()] for ballot in cast]

    assert scores(PLAIN)[0] == [7, 5, 3] and scores(replace(PLAIN, hostile=1))[0] == [4, 6, 8]
    assert scores(replace(PLAIN, selfish=1))[0] == [0, 0, 0] and len(scores(replace(PLAIN, lost=0.99))) == 1
    assert len(qualities(replace(PLAIN, clones=2), random.Random(1))) == 6


def test_rules_differ_beyond_noise_only_where_their_runs_do() -> None:
    assert beyond_noise([True, False] * 50, [True, False] * 50) == 0.0
    assert beyond_noise([True] * 90 + [False] * 10, [True] * 60 + [False] * 40) > 3
    mean, borda = (hits(replace(PLAIN, noise=1.5, selfish=1), 400, 1)[rule] for rule in ("mean", "borda"))
    assert beyond_noise(mean, borda) < -3
