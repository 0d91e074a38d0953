"""Who meets whom in a tournament, and who judges it.

All of it follows from the seed and from what was judged before: no chance, and no dependence on the order of arrival.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

from app.deliberation.choice.anonymity import nonce
from app.deliberation.choice.ballots import CandidateId, author

Pairing = tuple[CandidateId, CandidateId]
Judges = tuple[str, str]
"""Who judges a pair as it stands, and who judges it turned round."""

# Stands in for the opponent of whoever sits out; no agent's id is empty.
_BYE = ""


def bracket(candidates: Sequence[CandidateId], seed: int) -> list[CandidateId]:
    """The candidates in the order that the seed draws, whatever order they come in."""
    return sorted(candidates, key=lambda candidate: nonce(seed, "bracket", candidate))


def round_robin(candidates: Sequence[CandidateId]) -> list[Pairing]:
    """Everyone against everyone."""
    return list(combinations(candidates, 2))


def swiss_rounds_max(size: int) -> int:
    """How many swiss rounds are possible whatever their outcomes: ⌈size/2⌉.

    With so few rounds behind, everyone has at least half of the others still to meet, and such a graph always has a
    perfect matching (Dirac, 1952); one round more may be left with two groups of three that have all met.
    """
    return (size + 1) // 2


def swiss_round(standing: Sequence[CandidateId], past: Sequence[Sequence[Pairing]]) -> list[Pairing]:
    """The next round: everyone, best first, against the next in the standing whom it has not met in a `past` round.

    Of an odd number one sits out, the last that has not yet. Whoever is left without an opponent takes one from a pair
    whose other half may meet the other one left: up to `swiss_rounds_max` rounds there always is such a pair, since
    more candidates may meet the one or be freed for the other than there are. ValueError beyond.
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
    """How many rounds leave one of `size` candidates."""
    return (size - 1).bit_length()


def knockout_round(alive: Sequence[CandidateId]) -> list[Pairing]:
    """The next round of those who are left, in the order of the bracket.

    The first ones sit out, as many as make the rest a power of two in the next round: none after the first round.
    """
    byes = 2 ** knockout_rounds(len(alive)) - len(alive)
    playing = alive[byes:]
    return [(playing[place], playing[-1 - place]) for place in range(len(playing) // 2)]


def judges(pairs: Sequence[Pairing], members: Sequence[str], load: Counter[str], seed: int, round: int) -> list[Judges]:
    """Two judges for each pair, neither of them an author of it; one twice where only one member is neutral.

    `load` counts the calls that each member has had, and is brought up to date. The calls are dealt as evenly as that
    leaves possible: whoever had least goes first, drawn by the seed where several did, and then calls change hands
    along paths that make the loads more even, while there are any (Harvey et al., J. Algorithms 59 (2006)).
    ValueError: nobody is neutral.
    """
    neutral = [[each for each in members if each not in (author(one), author(other))] for one, other in pairs]
    if not all(neutral):
        raise ValueError("a pair is judged by others than its authors")
    dealt: list[list[str]] = []
    for (one, other), candidates in zip(pairs, neutral, strict=True):
        drawn = {each: nonce(seed, "judges", round, one, other, each) for each in candidates}
        least = sorted(candidates, key=lambda each: (load[each], drawn[each]))[:2]
        dealt.append([least[0], least[-1]])
        load.update(dealt[-1])
    while any(_evened(dealt, neutral, load, heavy) for heavy in sorted(members, key=lambda each: (-load[each], each))):
        pass
    return [(first, second) for first, second in dealt]


def _evened(dealt: Sequence[list[str]], neutral: Sequence[Sequence[str]], load: Counter[str], heavy: str) -> bool:
    """Whether a call of `heavy` could be passed on, along others, to somebody with two calls less; it then is."""
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for pair, both in enumerate(dealt):
        for order, judge in enumerate(both):
            held[judge].append((pair, order))
    given: dict[str, tuple[str, int, int]] = {}
    reached = [heavy]
    for giver in reached:
        for pair, order in held[giver]:
            # Both orders of a pair never come to one judge: no path passes through anybody twice.
            for taker in neutral[pair]:
                if taker in dealt[pair] or taker in given or taker == heavy:
                    continue
                given[taker] = giver, pair, order
                reached.append(taker)
                if load[taker] <= load[heavy] - 2:
                    load.update({taker: 1, heavy: -1})
                    while taker != heavy:
                        giver, pair, order = given[taker]
                        dealt[pair][order], taker = taker, giver
                    return True
    return False
