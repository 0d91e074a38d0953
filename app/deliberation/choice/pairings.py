"""Pairs the candidates of a tournament, and assigns judges to the pairs.

The result depends only on the seed and on earlier comparisons, not on chance or the order of arrival.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from app.deliberation.choice.anonymity import nonce
from app.deliberation.choice.ballots import CandidateId, author

Pairing = tuple[CandidateId, CandidateId]
Judges = tuple[str, str]
"""The judge of a pair as it stands, and the judge of the swapped pair."""

# The opponent of a candidate that sits out; no agent's id is empty.
_BYE = ""


def bracket(candidates: Sequence[CandidateId], seed: int) -> list[CandidateId]:
    return sorted(candidates, key=lambda candidate: nonce(seed, "bracket", candidate))


def swiss_rounds_max(size: int) -> int:
    """The swiss rounds that are possible under any outcomes, since a perfect matching is left (Dirac, 1952)."""
    return (size + 1) // 2


def swiss_round(standing: Sequence[CandidateId], past: Sequence[Sequence[Pairing]]) -> list[Pairing]:
    """The next round: each candidate, best first, against the next in the standing that it has not met in `past`.

    Of an odd number, the last one that has not sat out yet does. Two candidates left without opponents split a pair
    that they may both meet; up to `swiss_rounds_max` rounds such a pair exists. Raises ValueError beyond.
    """
    met = {frozenset(pair) for pairs in past for pair in pairs}
    players = list(standing)
    if len(players) % 2:
        players.append(_BYE)
        for pairs in past:
            playing = {candidate for pair in pairs for candidate in pair}
            met |= {frozenset((candidate, _BYE)) for candidate in standing if candidate not in playing}
    opponent: dict[CandidateId, CandidateId] = {}

    def fresh(one: CandidateId, other: CandidateId) -> bool:
        return one != other and frozenset((one, other)) not in met

    for one in players:
        free = (other for other in players if one not in opponent and other not in opponent and fresh(one, other))
        if (nearest := next(free, None)) is not None:
            opponent |= {one: nearest, nearest: one}
    place = {player: index for index, player in enumerate(players)}
    while left := [player for player in players if player not in opponent]:
        one, other = left[:2]
        swaps = [(a, b) for a, b in opponent.items() if fresh(one, a) and fresh(other, b)]
        if not swaps:
            raise ValueError("too many rounds for so few candidates")
        a, b = min(swaps, key=lambda swap: abs(place[swap[0]] - place[one]) + abs(place[swap[1]] - place[other]))
        opponent |= {one: a, a: one, other: b, b: other}
    return [(one, opponent[one]) for one in standing if place[one] < place[opponent[one]] and opponent[one] != _BYE]


def knockout_rounds(size: int) -> int:
    return (size - 1).bit_length()


def knockout_round(alive: Sequence[CandidateId]) -> list[Pairing]:
    """The next round, in the bracket's order. The first ones sit out, so that a power of two is left for the next."""
    byes = 2 ** knockout_rounds(len(alive)) - len(alive)
    playing = alive[byes:]
    return [(playing[place], playing[-1 - place]) for place in range(len(playing) // 2)]


def judges(pairs: Sequence[Pairing], members: Sequence[str], load: Counter[str], seed: int, round: int) -> list[Judges]:
    """Two judges for each pair, neither its author; one judge twice where only one member is neutral.

    `load` counts the calls of each member, and is updated. Calls go to the members with the fewest, then move along
    paths that even out the loads (Harvey et al., J. Algorithms 59, 2006).
    """
    neutral = [[member for member in members if member not in (author(one), author(other))] for one, other in pairs]
    if not all(neutral):
        raise ValueError("a pair is judged by others than its authors")
    dealt: list[list[str]] = []
    for (one, other), candidates in zip(pairs, neutral, strict=True):
        drawn = {judge: nonce(seed, "judges", round, one, other, judge) for judge in candidates}
        least = sorted(candidates, key=lambda judge: (load[judge], drawn[judge]))[:2]
        dealt.append([least[0], least[-1]])
        load.update(dealt[-1])
    while any(
        _evened(dealt, neutral, load, heavy) for heavy in sorted(members, key=lambda member: (-load[member], member))
    ):
        pass
    return [(first, second) for first, second in dealt]


def _evened(dealt: Sequence[list[str]], neutral: Sequence[Sequence[str]], load: Counter[str], heavy: str) -> bool:
    """Move a call of `heavy` along a path to a member with at least two calls fewer; False when there is no path."""
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for pair, both in enumerate(dealt):
        for order, judge in enumerate(both):
            held[judge].append((pair, order))
    path_to: dict[str, tuple[str, int, int]] = {}
    reached = [heavy]
    for giver in reached:
        for pair, order in held[giver]:
            # One judge never gets both orders of a pair: no path visits a member twice.
            for taker in neutral[pair]:
                if taker in dealt[pair] or taker in path_to or taker == heavy:
                    continue
                path_to[taker] = giver, pair, order
                reached.append(taker)
                if load[taker] <= load[heavy] - 2:
                    load.update({taker: 1, heavy: -1})
                    while taker != heavy:
                        giver, pair, order = path_to[taker]
                        dealt[pair][order], taker = taker, giver
                    return True
    return False
