"""Pairwise rules: Copeland, Schulze and Kemeny, over how many ballots put one candidate above another.

A ballot that does not show both candidates of a pair does not count for it; one that puts them level counts for
neither. All numbers are whole.

Schulze and Kemeny give no points: they allow certain orders, often several. `Orders` holds them all. A tie is therefore
what the rule itself leaves open, and tie-breaks always end in an allowed order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, groupby

CandidateId = str
"""An agent and, after `#`, the version of its text: `dev-001`, `dev-001#1`."""

KEMENY_MAX = 12
"""The largest cycle of candidates for which Kemeny's order is computed: the search visits 2^n sets."""


@dataclass(frozen=True)
class Duels:
    """How many ballots put candidate i above j (`above[i][j]`), and how many show both as equals (`level[i][j]`)."""

    candidates: tuple[CandidateId, ...]
    above: tuple[tuple[int, ...], ...]
    level: tuple[tuple[int, ...], ...]

    def among(self, members: Sequence[int]) -> "Duels":
        """The duels of these candidates, given by index."""
        return Duels(
            tuple(self.candidates[i] for i in members),
            tuple(tuple(self.above[i][j] for j in members) for i in members),
            tuple(tuple(self.level[i][j] for j in members) for i in members),
        )

    def wins(self) -> list[int]:
        """By candidate, the set of candidates that it beats, as bits."""
        indices = range(len(self.candidates))
        return [_bits(j for j in indices if self.above[i][j] > self.above[j][i]) for i in indices]


def duels(candidates: Sequence[CandidateId], ballots: Sequence[Mapping[CandidateId, int]]) -> Duels:
    """Count the duels of the candidates; each ballot gives points to those that it shows."""
    size = len(candidates)
    above = [[0] * size for _ in candidates]
    level = [[0] * size for _ in candidates]
    for cast in ballots:
        shown = [(i, cast[candidate]) for i, candidate in enumerate(candidates) if candidate in cast]
        for (i, points), (j, others) in combinations(shown, 2):
            if points == others:
                level[i][j] += 1
                level[j][i] += 1
            elif points > others:
                above[i][j] += 1
            else:
                above[j][i] += 1
    return Duels(tuple(candidates), tuple(map(tuple, above)), tuple(map(tuple, level)))


@dataclass(frozen=True)
class Orders:
    """All orders of some candidates that a rule allows. Sets of candidates are bits, by index.

    `blocks`, best first, are the smallest sets of members that stand together, in this sequence, in every order.
    `next_of` returns which of the remaining candidates may come next. `exact` is False where another rule replaces one
    that is too expensive.
    """

    candidates: tuple[CandidateId, ...]
    blocks: tuple[int, ...]
    next_of: Callable[[int], int]
    exact: bool = True

    def tiers(self) -> list[set[CandidateId]]:
        """The blocks by name."""
        return [{self.candidates[index] for index in _indices(block)} for block in self.blocks]

    def first(self, preferred: Sequence[CandidateId]) -> list[CandidateId]:
        """The allowed order that takes, at each place, the first of `preferred` that may stand there."""
        bit = {candidate: 1 << index for index, candidate in enumerate(self.candidates)}
        waiting = [candidate for candidate in preferred if candidate in bit]
        order: list[CandidateId] = []
        remaining = _all(len(self.candidates))
        while waiting:
            allowed = self.next_of(remaining)
            chosen = next(candidate for candidate in waiting if bit[candidate] & allowed)
            waiting.remove(chosen)
            order.append(chosen)
            remaining ^= bit[chosen]
        return order


def wins_less_losses(table: Duels) -> dict[CandidateId, int]:
    """Pairwise wins less losses: of two candidates, the one that more ballots put above the other has won."""
    points = dict.fromkeys(table.candidates, 0)
    for candidate, beaten in zip(table.candidates, table.wins(), strict=True):
        points[candidate] += beaten.bit_count()
        for index in _indices(beaten):
            points[table.candidates[index]] -= 1
    return points


def copeland(table: Duels) -> dict[CandidateId, Fraction]:
    """Copeland's score, in [0, 1]: duels won and half of those drawn, of all. A pair that no ballot shows is drawn.

    Copeland, 1951; Saari and Merlin, Economic Theory 8 (1996). Needs two candidates at least.
    """
    rivals = len(table.candidates) - 1
    return {candidate: Fraction(points + rivals, 2 * rivals) for candidate, points in wins_less_losses(table).items()}


def schulze(table: Duels) -> Orders:
    """The orders in which no candidate stands above another that has the stronger path to it.

    A path of duels is as strong as its weakest duel, measured by the winner's ballots (winning votes, which Schulze
    recommends for partial ballots). Schulze, Social Choice and Welfare 36 (2011); arXiv:1804.02973.
    """
    indices = range(len(table.candidates))
    above = table.above
    strength = [[above[i][j] if above[i][j] > above[j][i] else 0 for j in indices] for i in indices]
    for via in indices:
        onward = strength[via]
        for i, row in enumerate(strength):
            reach = row[via]
            if reach and i != via:
                strength[i] = [max(direct, min(reach, on)) for direct, on in zip(row, onward, strict=True)]
    better = [_bits(j for j in indices if strength[i][j] > strength[j][i]) for i in indices]
    worse = [_bits(j for j in indices if strength[i][j] < strength[j][i]) for i in indices]

    def next_of(remaining: int) -> int:
        return _bits(i for i in _indices(remaining) if not worse[i] & remaining)

    return Orders(table.candidates, tuple(_blocks(better)), next_of)


def _blocks(better: Sequence[int]) -> Iterator[int]:
    """The blocks of all orders that extend a transitive relation, `better[i]` being those below i.

    A cut lies where all before it are better than all after it: each of these has more below it than each of those.
    """
    order = sorted(range(len(better)), key=lambda i: -better[i].bit_count())
    rest = below_all_so_far = _all(len(better))
    block = 0
    for i in order:
        block |= 1 << i
        rest ^= 1 << i
        below_all_so_far &= better[i]
        if rest & below_all_so_far == rest:
            yield block
            block = 0


def kemeny(table: Duels) -> list[Orders]:
    """The orders that contradict the fewest votes on pairs, in parts: one order of each part.

    Candidates that win against all others stand above them in each such order (Truchon's extended Condorcet criterion,
    1998), so only cycles are searched. A part of more than KEMENY_MAX takes Schulze's orders and is not exact.
    Kemeny, Daedalus 88 (1959); Young and Levenglick, 1978.
    """
    return [
        _least_contradicted(part) if len(part.candidates) <= KEMENY_MAX else replace(schulze(part), exact=False)
        for part in _circles(table)
    ]


def _circles(table: Duels) -> Iterator[Duels]:
    """The strong components of "does not lose to", best first: between any two of them, one wins every duel."""
    size = len(table.candidates)
    lost = table.wins()
    reach = [_bits(j for j in range(size) if not lost[j] >> i & 1) for i in range(size)]
    for via in range(size):
        reach = [row | reach[via] if row >> via & 1 else row for row in reach]
    # Of two components the better reaches the worse and all that it reaches; members of one reach the same.
    order = sorted(range(size), key=lambda i: (-reach[i].bit_count(), i))
    for _, members in groupby(order, key=lambda i: reach[i]):
        yield table.among(list(members))


def _least_contradicted(part: Duels) -> Orders:
    """Held and Karp's recursion over subsets, from the last place up."""
    size = len(part.candidates)
    # gains[i][s]: votes that agree with putting i above all of the set s.
    gains: list[list[int]] = []
    for row in part.above:
        gain = [0]
        for count in row:
            gain += [known + count for known in gain]
        gains.append(gain)
    best = [0] * (1 << size)
    firsts = [0] * (1 << size)
    for members in range(1, 1 << size):
        scores = {i: gains[i][members] + best[members ^ 1 << i] for i in _indices(members)}
        best[members] = max(scores.values())
        firsts[members] = _bits(i for i, score in scores.items() if score == best[members])

    blocks: list[int] = []
    remaining = {_all(size)}
    uncut = _all(size)
    for _ in range(size):
        remaining = {members ^ 1 << i for members in remaining for i in _indices(firsts[members])}
        if len(remaining) == 1:
            (rest,) = remaining
            blocks.append(uncut ^ rest)
            uncut = rest
    return Orders(part.candidates, tuple(blocks), firsts.__getitem__)


def _all(size: int) -> int:
    return (1 << size) - 1


def _bits(indices: Iterator[int]) -> int:
    return sum(1 << index for index in indices)


def _indices(members: int) -> Iterator[int]:
    while members:
        low = members & -members
        yield low.bit_length() - 1
        members ^= low
