"""The winners of each rule are those that votelib and pref_voting find, on twelve thousand random profiles.

Votelib runs here. Its Kemeny and Borda know no ties, and its Schulze counts defeats; the tests use its parts there.
The winners by pref_voting are recorded (`recorded.py`).
"""

from collections import Counter
from functools import cache
from itertools import permutations

from votelib.component.rankscore import Borda
from votelib.convert import RankedToCondorcetVotes, RankedToPositionalVotes
from votelib.evaluate.condorcet import Copeland, KemenyYoung, Schulze, pairwise_wins

from app.deliberation.choice.aggregation import Aggregation, aggregate
from tests.oracles.choice.profiles import COUNT, KINDS, Profile, profiles
from tests.oracles.choice.recorded import RULES, answers
from tests.unit.choice.ballots_of import first_places

PERMUTED_MAX = 5
"""The most candidates for which all orders are tried; six would take most of the time, and pref_voting covers them."""


def candidates(ballots: Profile) -> list[str]:
    return sorted({name for ballot in ballots for name in ballot})


def winners(rule: Aggregation, ballots: Profile) -> set[str]:
    made = aggregate(rule, candidates(ballots), ballots, ballots, best=10)
    if made.orders:
        return first_places(made.orders[0])
    return {candidate for candidate, score in made.scores.items() if score == max(made.scores.values())}


@cache
def all_winners() -> tuple[dict[Aggregation, set[str]], ...]:
    """By profile, the winners by rule."""
    return tuple({rule: winners(rule, ballots) for rule in RULES} for _, ballots in profiles())


def best(scores: dict[str, int]) -> set[str]:
    highest = max(scores.values())
    return {name for name, score in scores.items() if score == highest}


def ranked_votes(ballots: Profile) -> Counter[tuple[object, ...]]:
    """The profile as votelib reads it: names best first, a frozen set where they are level."""
    votes: Counter[tuple[object, ...]] = Counter()
    for ballot in ballots:
        tiers = [
            [name for name in ballot if ballot[name] == points] for points in sorted({*ballot.values()}, reverse=True)
        ]
        votes[tuple(tier[0] if len(tier) == 1 else frozenset(tier) for tier in tiers)] += 1
    return votes


def test_the_winners_are_those_of_pref_voting() -> None:
    asked: Counter[tuple[str, str]] = Counter()
    for (kind, ballots), by_rule, expected in zip(profiles(), all_winners(), answers(), strict=True):
        found = {rule: by_rule[rule] for rule in expected}
        assert found == expected, (kind, ballots)
        asked.update((rule, kind) for rule in found)
    a_kind = COUNT // len(KINDS)
    assert asked == {(rule, kind): a_kind for rule in RULES for kind in KINDS if (rule, kind) != ("borda", "recused")}


def votelib_winners(ballots: Profile) -> dict[str, set[str]]:
    names = candidates(ballots)
    counts = RankedToCondorcetVotes(unranked_at_bottom=False).convert(ranked_votes(ballots))
    paths = Schulze.widest_paths(counts)
    losers = {loser for _, loser in pairwise_wins(paths)}
    found = {
        "copeland": best(dict.fromkeys(names, 0) | Copeland.scores(pairwise_wins(counts))),
        "schulze": set(names) - losers,
    }
    if len(names) <= PERMUTED_MAX:
        orders = {order: KemenyYoung.score(order, counts) for order in permutations(names)}
        highest = max(orders.values())
        found["kemeny"] = {order[0] for order, score in orders.items() if score == highest}
    return found


def test_the_winners_are_those_of_votelib() -> None:
    for (kind, ballots), by_rule in zip(profiles(), all_winners(), strict=True):
        expected = votelib_winners(ballots)
        if kind == "strict":
            expected["borda"] = best(RankedToPositionalVotes(Borda(base=0)).convert(ranked_votes(ballots)))
        assert {rule: by_rule[rule] for rule in expected} == expected, (kind, ballots)
