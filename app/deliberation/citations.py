"""The evidence that an answer cites, and the pages of it, held to what was given.

Prompts ask for `[ID]` and `[ID, p. 12]`. `(ID, p. 12)`, several in one bracket, and `evidence ID` in prose count too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal

from app.deliberation.specification import Evidence, Value

CITATIONS_MAX = 100
PAGES_MAX = 100
# Of brackets, and of mentions in prose, so that no answer costs the event loop more than some milliseconds.
PLACES_MAX = 1_000
_BRACKETED = re.compile(r"([\[(])([^\[\]()\n]{1,200})[\])]")
_ID = r"[A-Za-z0-9_.-]{1,64}"
_PAGES = r"(?P<first>\d{1,4})(?:[ \t]*[-\u2013][ \t]*(?P<last>\d{1,4}))?"
_ITEM = re.compile(
    rf"(?P<word>evidence[ \t]+)?(?P<id>{_ID})?(?:[ \t]*(?<![\w.-])(?P<paged>pages?|pp?\.?)[ \t]*{_PAGES})?",
    re.IGNORECASE,
)
_FURTHER_PAGES = re.compile(_PAGES)
_IN_PROSE = re.compile(rf"\bevidence[ \t]+[\"'`*]{{0,2}}({_ID})", re.IGNORECASE)


class Citation(Value, frozen=True):
    """Evidence that an answer names. With a fault, nobody gave the evidence, or it lacks the pages."""

    evidence: str
    pages: tuple[int, ...] = ()
    fault: Literal["unknown_evidence", "unknown_page"] | None = None


def citations(answer: str, evidence: Iterable[Evidence]) -> tuple[Citation, ...]:
    """The citations that hold, then those with a fault, each by its first mention.

    The first PLACES_MAX places are read. At most CITATIONS_MAX are listed, and of each the first PAGES_MAX pages.
    """
    known = {piece.id: piece for piece in evidence}
    if not known:
        return ()
    pages, unknown = dict[str, set[int]](), dict[str, None]()
    for id, numbers in _mentions(answer, known):
        if id in known:
            pages.setdefault(id, set()).update(numbers)
        else:
            unknown.setdefault(id)
    held, faults = list[Citation](), [Citation(evidence=id, fault="unknown_evidence") for id in unknown]
    for id, numbers in pages.items():
        last = _page_count(known[id])
        held.append(Citation(evidence=id, pages=_first(page for page in numbers if page <= last)))
        if beyond := _first(page for page in numbers if page > last):
            faults.append(Citation(evidence=id, pages=beyond, fault="unknown_page"))
    return tuple([*held, *faults][:CITATIONS_MAX])


def _first(pages: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(pages)[:PAGES_MAX])


def _page_count(evidence: Evidence) -> int:
    return (evidence.file.pages or 0) if evidence.file is not None else 0


def _mentions(answer: str, known: Mapping[str, Evidence]) -> Iterator[tuple[str, range]]:
    """Ids with ranges of pages; an id that is not known only where the answer calls it evidence."""
    for bracket in islice(_BRACKETED.finditer(answer), PLACES_MAX):
        yield from _in_bracket(bracket[1], bracket[2], known)
    for named in islice(_IN_PROSE.finditer(answer), PLACES_MAX):
        id = named[1] if named[1] in known else named[1].rstrip(".")
        if id in known:
            yield id, range(0)


def _in_bracket(opening: str, inside: str, known: Mapping[str, Evidence]) -> Iterator[tuple[str, range]]:
    items = [(item.strip(), _ITEM.fullmatch(item.strip())) for item in re.split("[,;]", inside)]
    # Round brackets hold much else, such as the arguments of a call.
    if opening == "(" and not any(item and (item["word"] or item["paged"]) for _, item in items):
        return
    current = ""
    for text, item in items:
        further = _FURTHER_PAGES.fullmatch(text) if current else None
        if further is not None:
            yield current, _range(further)
            continue
        id = current if item is None or not item["id"] else item["id"]
        current = id if item is not None and (id in known or item["word"]) else ""
        if item is not None and current:
            yield current, _range(item)


def _range(cited: re.Match[str]) -> range:
    first = int(cited["first"] or 0)
    last = int(cited["last"] or first)
    # An answer may repeat a range of thousands of pages as often as it has room.
    return range(first, min(last, first + PAGES_MAX - 1) + 1) if first else range(0)
