"""The numbers of a docx's paragraphs, which its text does not hold: counted as Word counts them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.inputs.word_elements import WORD, WordElement, attribute, child_of, number, value

LEVELS = 9
BULLET = "-"

_LABEL_CHARS_MAX = 32
_COUNT_MAX = 999_999
_ROMAN_MAX = 3_999
_ROMAN = (
    *((1_000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl")),
    *((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)


def _roman(count: int) -> str:
    if not 0 < count <= _ROMAN_MAX:
        return str(count)
    letters = ""
    for size, letter in _ROMAN:
        letters += letter * (count // size)
        count %= size
    return letters


def _letter(count: int) -> str:
    """`a` to `z`, then `aa`, `bb` and so on."""
    repeated = (count - 1) // 26 + 1
    return chr(ord("a") + (count - 1) % 26) * repeated if 0 < repeated <= _LABEL_CHARS_MAX else str(count)


_FORMATS: Mapping[str, Callable[[int], str]] = {
    "lowerRoman": _roman,
    "upperRoman": lambda count: _roman(count).upper(),
    "lowerLetter": _letter,
    "upperLetter": lambda count: _letter(count).upper(),
    "decimalZero": lambda count: f"{count:02}",
    "none": lambda count: "",
}


@dataclass(frozen=True, slots=True)
class _Level:
    start: int
    format: str
    text: str


@dataclass(frozen=True, slots=True)
class _List:
    """A list as paragraphs name it; lists with the same counter go on where the other one stands."""

    counter: str
    levels: Mapping[int, _Level]


@dataclass(slots=True)
class Numbering:
    """The lists of a document, and the number at which each of their levels stands."""

    lists: Mapping[str, _List]
    counts: dict[str, list[int | None]] = field(default_factory=dict[str, list[int | None]])

    def label(self, list_id: str, depth: int) -> str:
        """The number of the next paragraph of a list, such as `2.1`; `-` for a bullet, empty for no list."""
        numbered = self.lists.get(list_id)
        level = None if numbered is None else numbered.levels.get(depth)
        if numbered is None or level is None:
            return ""
        counts = self.counts.setdefault(numbered.counter, [None] * LEVELS)
        count = counts[depth]
        counts[depth] = level.start if count is None else min(count + 1, _COUNT_MAX)
        counts[depth + 1 :] = [None] * (LEVELS - depth - 1)
        return BULLET if level.format == "bullet" else _label(numbered.levels, counts, level.text)


def _label(levels: Mapping[int, _Level], counts: list[int | None], text: str) -> str:
    """The text of a level, in which `%1` is the number of the first level, and so on."""

    def counted(match: re.Match[str]) -> str:
        depth = int(match[1]) - 1
        level = levels.get(depth)
        if level is None:
            return ""
        count = counts[depth]
        return _FORMATS.get(level.format, str)(level.start if count is None else count)

    return re.sub("%([1-9])", counted, text)


def numbering_of(root: WordElement | None) -> Numbering:
    """The lists of the part that declares them; none without one."""
    abstract: dict[str, Mapping[int, _Level]] = {}
    lists: dict[str, _List] = {}
    for element in () if root is None else root:
        if element.tag == f"{WORD}abstractNum":
            abstract[attribute(element, "abstractNumId")] = _levels(element)
        elif element.tag == f"{WORD}num":
            abstract_id, list_id = value(element, "abstractNumId"), attribute(element, "numId")
            restarts = child_of(element, "lvlOverride") is not None
            lists[list_id] = _List(f"num {list_id}" if restarts else abstract_id, abstract.get(abstract_id, {}))
    return Numbering(lists)


def _levels(abstract: WordElement) -> dict[int, _Level]:
    return {
        number(attribute(element, "ilvl"), 0, LEVELS - 1): _Level(
            number(value(element, "start"), 0, _COUNT_MAX),
            value(element, "numFmt"),
            value(element, "lvlText")[:_LABEL_CHARS_MAX],
        )
        for element in abstract
        if element.tag == f"{WORD}lvl"
    }
