"""Assigns candidates to reviewers, with an order and letters, and fences text that peers wrote.

Draws are sha256 of the seed and the purpose, not `random`, so that a replay under another Python draws the same.
"""

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product
from string import ascii_uppercase

from app.deliberation.choice.ballots import CandidateId, author

_LOOKALIKE = re.compile(
    r"<[ \t]*+<[ \t]*+<(?=\s*+(?:end[\s_\W]{0,3}of[\s_\W]{0,3})?peer[\s_\W]{0,3}text)", re.IGNORECASE
)
# Characters of no width: controls, marks of direction, joiners, fillers, selectors of variants, tags.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_NOBODY = -1
# Letters and digits that neither a fence has nor what NFKC makes one: ASCII, Greek to Arabic, Devanagari, Thai, CJK.
_PARTING = re.compile(
    "[0-9abcghijklmqsuvwyzABCGHIJKLMQSUVWYZ\u0391-\u03a1\u03b1-\u03c9\u0410-\u044f\u05d0-\u05ea\u0620-\u064a\u0904-\u0939"
    "\u0e01-\u0e30\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]"
)
# Those that NFKC makes of others too.
_ANGLE = re.compile("[<\ufe64\uff1c]")
PIECE_CHARS = 65_536


# Every decision replays the strategy, which repeats its draws.
@lru_cache(maxsize=4_096)
def _digest(*parts: str | int) -> bytes:
    # JSON keeps the parts apart: ("a", "bc") and ("ab", "c") are different draws.
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _shuffled(drawn: Iterable[str], *key: str | int) -> list[str]:
    return sorted(set(drawn), key=lambda member: _digest("shuffle", *key, member))


def nonce(seed: int, *parts: str | int) -> str:
    return _digest("nonce", seed, *parts).hex()[:12]


def call_seed(seed: int, call_id: str, attempt: int) -> int:
    """The engine's seed for one attempt of a call, 0 to 2³¹ - 1; each attempt draws anew."""
    return int.from_bytes(_digest("call", seed, call_id, attempt)[:4]) >> 1


def fence(text: str, nonce: str) -> str:
    """`text` as data between two lines with a mark. Anything like a fence is replaced inside.

    The mark is a hash of nonce and text: no writer can put a text's own mark into it, even if the seed is known. A text
    that reads like a fence without its invisible characters, or in plain letters, loses them.
    """
    mark = hashlib.sha256(f"{nonce}\n{text}".encode(errors="replace")).hexdigest()[:12]
    return f"<<<peer-text {mark}>>>\n{without_fences(text)}\n<<<end-of-peer-text {mark}>>>"


def input_fence(sha256: str) -> tuple[str, str]:
    """The lines before and after the text of an input, the same in all prompts that have it.

    The mark is a hash of the text's digest, so that no writer can put a text's own mark into it.
    """
    mark = hashlib.sha256(f"input\n{sha256}".encode()).hexdigest()[:12]
    return f"<<<peer-text {mark}>>>", f"<<<end-of-peer-text {mark}>>>"


def without_fences(text: str) -> str:
    """The text, in which anything like a fence is replaced."""
    bare = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if bare.count("<") < 3:
        return text
    bare = _INVISIBLE.sub("", bare)
    return _LOOKALIKE.sub("‹‹‹", bare) if _LOOKALIKE.search(bare) else text


def without_fences_in_pieces(text: str, piece_chars: int = PIECE_CHARS) -> Iterator[str]:
    """The pieces of a long text without fences, so that no step takes long.

    A piece ends after a letter or digit that no fence has. One that has none for as long as a piece loses all its `<`.
    """
    begin = 0
    while begin < len(text):
        soon, late = begin + piece_chars, begin + 2 * piece_chars
        parting = _PARTING.search(text, soon, late)
        end = min(parting.end() if parting is not None else late, len(text))
        parted = parting is not None or soon >= len(text)
        yield without_fences(text[begin:end]) if parted else _ANGLE.sub("‹", text[begin:end])
        begin = end


def labels(count: int) -> tuple[str, ...]:
    letters = ("".join(word) for width in range(1, count + 1) for word in product(ascii_uppercase, repeat=width))
    return tuple(islice(letters, count))


def lettered(shown: Sequence[str]) -> dict[str, str]:
    return dict(zip(labels(len(shown)), shown, strict=True))


def in_one_order(authors: Collection[str], seed: int) -> tuple[str, ...]:
    """The authors in an order that is drawn once for the deliberation: in every prompt two authors stand alike."""
    return tuple(_shuffled(authors, seed, "order"))


def ring(agents: Collection[str], k: int, seed: int, round: int) -> dict[str, tuple[str, ...]]:
    """The authors that each agent criticises: `k` others on a seeded ring, or all; each author gets `k` critics.

    Each round continues where the last one stopped, so a critic meets every author before it repeats one.
    """
    if k < 0:
        raise ValueError("the number of critics is not negative")
    seats = _shuffled(agents, seed, "ring")
    others = len(seats) - 1
    k = min(k, others)
    return {
        critic: tuple(seats[(seat + 1 + (round * k + step) % others) % len(seats)] for step in range(k))
        for seat, critic in sorted(enumerate(seats), key=lambda entry: entry[1])
    }


def arrangements(
    candidates: Collection[CandidateId], reviewers: Collection[str], seed: int, round: int
) -> dict[str, tuple[CandidateId, ...]]:
    """The candidates that each reviewer sees, in order, without its own.

    Over the reviewers, each candidate takes each place equally often, within one, when every reviewer is an author or
    all see equally many. Otherwise only reviewers without a candidate have the last places, and a candidate's places
    follow its share of each as nearly as whole numbers allow. The order of the arguments does not matter.
    """
    base = _shuffled(candidates, seed, round, "candidates")
    shown = {
        reviewer: [candidate for candidate in base if author(candidate) != reviewer]
        for reviewer in _shuffled(reviewers, seed, round, "reviewers")
    }
    shared = min((len(seen) for seen in shown.values() if seen), default=0)
    tails = _tails(shown, shared)
    heads = {
        reviewer: [candidate for candidate in seen if candidate not in tails[reviewer]]
        for reviewer, seen in shown.items()
        if seen
    }
    rows = _equitable(heads, shared)
    return {
        reviewer: (*rows[reviewer], *reversed(tails[reviewer])) if shown[reviewer] else () for reviewer in sorted(shown)
    }


def _tails(shown: Mapping[str, Sequence[CandidateId]], shared: int) -> dict[str, list[CandidateId]]:
    """The candidates on the places from `shared` on, last place first; only some reviewers' lists are that long.

    Each place takes the candidate that stood there least often, then the one with most places still open. When every
    reviewer is an author no candidate repeats there.
    """
    open_count: dict[CandidateId, int] = defaultdict(int)
    for seen in shown.values():
        for candidate in seen:
            open_count[candidate] += 1
    tails: dict[str, list[CandidateId]] = {reviewer: [] for reviewer in shown}
    for place in range(max(map(len, shown.values()), default=0) - 1, shared - 1, -1):
        taken: dict[CandidateId, int] = defaultdict(int)
        for reviewer in (reviewer for reviewer, seen in shown.items() if len(seen) > place):
            left = [candidate for candidate in shown[reviewer] if candidate not in tails[reviewer]]
            chosen = min(left, key=lambda candidate: (taken[candidate], -open_count[candidate]))
            taken[chosen] += 1
            open_count[chosen] -= 1
            tails[reviewer].append(chosen)
    return tails


def _equitable(heads: Mapping[str, Sequence[CandidateId]], places: int) -> dict[str, list[CandidateId]]:
    """Give each reviewer's `places` candidates a place each, so that a candidate's places differ by one at most.

    An equitable edge colouring of a bipartite graph (de Werra, 1971), with places for colours. A candidate is split
    into vertices of at most `places` edges; alternating paths colour the graph (Kőnig, 1916).
    """
    names: list[CandidateId] = []
    slots: list[list[int]] = [[_NOBODY] * places for _ in heads]
    edges: dict[CandidateId, int] = defaultdict(int)
    vertex: dict[CandidateId, int] = {}
    for reviewer, seen in enumerate(heads.values()):
        for candidate in seen:
            if edges[candidate] % places == 0:
                vertex[candidate] = len(slots)
                slots.append([_NOBODY] * places)
                names.append(candidate)
            edges[candidate] += 1
            _join(slots, reviewer, vertex[candidate])
    return {reviewer: [names[there - len(heads)] for there in slots[row]] for row, reviewer in enumerate(heads)}


def _join(slots: list[list[int]], reviewer: int, candidate: int) -> None:
    """Colour one more edge: a colour free at the reviewer, made free at the candidate along an alternating path."""
    wanted = slots[reviewer].index(_NOBODY)
    if slots[candidate][wanted] != _NOBODY:
        spare = slots[candidate].index(_NOBODY)
        path = [candidate]
        colour = wanted
        # The path reaches reviewers by `wanted` only, which this reviewer lacks, so it is never on the path.
        while (following := slots[path[-1]][colour]) != _NOBODY:
            path.append(following)
            colour = spare if colour == wanted else wanted
        for here in path:
            slots[here][wanted], slots[here][spare] = slots[here][spare], slots[here][wanted]
    slots[reviewer][wanted] = candidate
    slots[candidate][wanted] = reviewer
