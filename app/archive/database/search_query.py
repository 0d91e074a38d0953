"""A client's search, and its forms for SQLite's FTS5 and PostgreSQL's tsquery.

A search finds texts with all words. A phrase in quotes keeps its order; `a OR b` takes either; `-a` excludes a word;
`deci*` matches any word that begins so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from app.archive.database.words import SINGLE, split
from app.deliberation.errors import InvalidRequest

QUERY_CHARS_MAX = 256
PREFIX_CHARS_MIN = 3
# A character of an Indic script and its neighbours is a syllable.
_SYLLABLES_FROM, SYLLABLES_MIN = "\u0900", 2
# Each is looked up as all words that begin so, which takes a hundred times as long as one word.
PREFIXES_MAX = 4
# Matches an optional minus and a quoted phrase, closed or not; else a run without spaces and quotes.
_PART = re.compile(r'(-?)"([^"]*)(?:"|$)|([^\s"]+)')


class InvalidSearch(InvalidRequest):
    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail, "q")
        self.remedy = remedy


class SearchTooSlow(InvalidSearch):
    code = "search_too_slow"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, "Give rarer words, fewer beginnings of words, or created_after and created_before.")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words that follow each other; the last may be the beginning of one."""

    words: tuple[str, ...]
    prefix: bool = False

    def fts5(self) -> str:
        return f'"{" ".join(self.words)}"{"*" if self.prefix else ""}'

    def tsquery(self) -> str:
        words = " <-> ".join(f"'{word}'" for word in self.words)
        return f"({words}{':*' if self.prefix else ''})"


@dataclass(frozen=True, slots=True)
class Search:
    """A deliberation matches with a phrase of each group in `required` and none of `excluded`.

    `red OR blue lantern` requires two groups: `red`, `blue`; and `lantern`.
    """

    required: tuple[tuple[Phrase, ...], ...]
    excluded: tuple[Phrase, ...] = ()

    def with_words(self, groups: Sequence[Sequence[str]], excluded: Sequence[str]) -> "Search":
        """The same search, which also asks for a word of each group, and for no excluded word."""
        added = tuple(tuple(Phrase((word,)) for word in group) for group in groups)
        return Search((*added, *self.required), (*self.excluded, *(Phrase((word,)) for word in excluded)))

    def fts5(self) -> str:
        query = " AND ".join(f"({' OR '.join(term.fts5() for term in group)})" for group in self.required)
        if not self.excluded:
            return query
        return f"({query}) NOT ({' OR '.join(term.fts5() for term in self.excluded)})"

    def tsquery(self) -> str:
        groups = [f"({' | '.join(term.tsquery() for term in group)})" for group in self.required]
        return " & ".join([*groups, *(f"!{term.tsquery()}" for term in self.excluded)])


def parse(text: str) -> Search:
    """Parse a search; raises InvalidSearch. Punctuation is no word, so it is not searched for."""
    required, excluded, joins = list[list[Phrase]](), list[Phrase](), False
    for minus, quoted, bare in _PART.findall(text):
        if bare == "OR":
            joins = bool(required)
            continue
        phrase = _phrase(quoted, bare.removeprefix("-"))
        if phrase is None:
            continue
        if minus or bare.startswith("-"):
            if joins:
                raise InvalidSearch("OR stands before a word with a minus", "Write the words to leave out at the end.")
            excluded.append(phrase)
        elif joins:
            required[-1].append(phrase)
        else:
            required.append([phrase])
        joins = False
    if sum(phrase.prefix for phrase in chain(excluded, *required)) > PREFIXES_MAX:
        raise InvalidSearch(f"More than {PREFIXES_MAX} words end with *", "Write some of them out, or leave them out.")
    if not required:
        raise InvalidSearch("There is no word to find", "Give at least one word or number without a minus.")
    return Search(tuple(map(tuple, required)), tuple(excluded))


def _phrase(quoted: str, bare: str) -> Phrase | None:
    words = tuple(split(quoted or bare))
    # A word of one character is no beginning of a longer word: the text goes on with other words.
    prefix = bare.endswith("*") and bool(words) and SINGLE.fullmatch(words[-1]) is None
    least = SYLLABLES_MIN if words and words[-1] >= _SYLLABLES_FROM else PREFIX_CHARS_MIN
    if prefix and len(words[-1]) < least:
        raise InvalidSearch("The beginning of a word is too short", f"Give {least} letters before *.")
    return Phrase(words, prefix) if words else None
