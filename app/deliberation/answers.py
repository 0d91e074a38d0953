"""Counts answers: normalises them so that equal answers are equal strings, and tallies the plurality.

Self-consistency (arXiv:2203.11171) takes the plurality of extracted answers. An answer that cannot be read in the
requested form is missing from the count; it is no vote for "unreadable".
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field, ValidationInfo

from app.deliberation.choice.letters import ANSWER, IS, STATED, settled, stated_choices, stated_letter
from app.deliberation.choice.numbers import DIGITS_MAX, READ_CHARS_MAX, last_number, shown
from app.deliberation.facts import Tally

Normaliser = Literal["text", "number", "choice", "json", "exact"]

FORMS = (
    "How answers are read before they are compared. Forms: `text` (case, white space, punctuation and Markdown do not "
    "matter), `number` (the last one), `choice` (a letter, or one of `options`), `json`, `exact`"
)
OPTIONS = "What a `choice` is one of; a letter A to Z if empty"

READ_AS: dict[Normaliser, str] = {
    "text": "text",
    "number": "a number",
    "choice": "a choice",
    "json": "JSON",
    "exact": "text",
}

TALLY_CHARS_MAX = 500


def _distinct_options(options: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if options and info.data.get("normaliser") != "choice":
        raise ValueError("options are for the normaliser choice alone")
    read = {_text(option) for option in options}
    if None in read or len(read) < len(options):
        raise ValueError("an option is blank, or two are read as the same")
    return options


Options = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...],
    Field(max_length=64, strict=False),
    AfterValidator(_distinct_options),
]
"""The options of a `choice`: a field of parameters that follows a field named `normaliser`."""

# Text

_FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_LINE_MARK = re.compile(r"^[ \t]*(?:#{1,6}|>|[-*+])[ \t]+", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,3}(?=[^\s*])|(?<=[^\s*])\*{1,3}(?![\w*])|`")
_MARKS = str.maketrans("‘’‚“”„«»「」『』–—−。，、；：！？،؛؟।॥", '\'\'\'"""""""""---            ')
# The Latin letters, digits and signs that Chinese and Japanese write as wide as their own.
_PLAIN = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | _MARKS
_EDGE_QUOTE = re.compile(r"\"|(?<!\w)'|(?<=\w\w)'(?![\w(])")
# Only the beginning of a run is tried, so that a long run takes linear time.
_SENTENCE_MARK = re.compile(r"(?<![,;:.…])[,;:.…]++(?=\s|$)|(?<=[^\W\d_])[!?]++(?=\s|$)")


def _text(text: str) -> str | None:
    if len(text) > READ_CHARS_MAX:
        return " ".join(unicodedata.normalize("NFC", text).casefold().split()) or None
    text = text if text.isascii() else unicodedata.normalize("NFC", text)
    bare = _LINE_MARK.sub("", _FENCE_LINE.sub("", text))
    # Each of these takes a long look at every character.
    bare = _EMPHASIS.sub("", bare) if "*" in bare or "`" in bare else bare
    bare = bare if bare.isascii() else bare.translate(_PLAIN)
    bare = _EDGE_QUOTE.sub("", bare) if '"' in bare or "'" in bare else bare
    bare = " ".join(_SENTENCE_MARK.sub(" ", bare).casefold().split())
    return bare or " ".join(text.casefold().split()) or None


# Choices

# A name ends with its word. In scripts without spaces a copula may follow, or a Chinese character, but none that
# denies the name or makes another word of it.
_ENDS = (
    r"(?:(?!\w)|(?=です|だ|である|입니다|이다|예요|이에요|합니다|한다|ครับ|ค่ะ)"
    r"|(?<=[\u3400-\u9fff])(?=[\u3400-\u9fff])(?![不没沒未否与與者书書]))"
)


def _option(text: str, options: Sequence[str]) -> str | None:
    by_text = {_text(option) or option: option for option in options}
    # Each of 64 options may be tried at each of these words.
    end = _text(text[-READ_CHARS_MAX:]) or ""
    beginning = end if len(text) <= READ_CHARS_MAX else _text(text[:READ_CHARS_MAX]) or ""
    lines = text.strip().splitlines()
    for whole in (end, (_text(lines[-1]) or "") if len(lines) > 1 else end):
        if whole in by_text:
            return by_text[whole]
    # The longest first: "yes, with changes" is not "yes".
    names = "|".join(re.escape(name) for name in sorted(by_text, key=lambda name: (-len(name), name)))
    if stated := stated_choices(re.finditer(rf"{STATED}{IS}({names}){_ENDS}", end)):
        # The marks that end words are gone from the bare text, so that "Answer: yes" is "answer yes" there.
        explicit = stated_choices(re.finditer(rf"{ANSWER}{IS}({names}){_ENDS}", end))
        chosen = settled(stated, explicit)
        return None if chosen is None else by_text[chosen]
    first = re.match(rf"({names}){_ENDS}", beginning)
    return None if first is None else by_text[first[1]]


# JSON

_FENCED = re.compile(r"```(?:json)?[ \t]*\n([^`]+)```", re.IGNORECASE)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return members


class _Number(str):
    """The one spelling of a number, as `shown` has it."""


def _json_number(digits: str) -> _Number:
    mantissa, _, exponent = digits.lower().partition("e")
    # The bound comes first: 1e999999999 is a number of a milliard digits.
    if len(mantissa) + abs(int(exponent or 0)) > DIGITS_MAX:
        raise ValueError("a number of too many digits")
    plain = f"{Decimal(digits):f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return _Number("0" if plain == "-0" else plain)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_json_text = json.JSONEncoder(ensure_ascii=False).encode


def _canonical(value: object) -> str:
    if type(value) is int:
        # Up to three and a third bits are a digit.
        if value.bit_length() > 3.3 * DIGITS_MAX:
            raise ValueError("a number of too many digits")
        return str(value)
    match value:
        case _Number():
            return value
        case dict():
            entries = cast(dict[str, object], value)
            return "{" + ",".join(f"{_json_text(name)}:{_canonical(entries[name])}" for name in sorted(entries)) + "}"
        case list():
            return "[" + ",".join([_canonical(entry) for entry in cast(list[object], value)]) + "]"
        case _:
            return _json_text(value)


def canonical_json(text: str) -> str | None:
    """The document with sorted names and numbers compared by value; None where it is no JSON document."""
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_float=_json_number, parse_constant=_refuse)
        canonical = _canonical(value)
        # Half of a surrogate pair can be escaped in JSON, but no fact could carry it.
        canonical.encode()
    except (ValueError, RecursionError):
        return None
    return canonical


def _json(text: str) -> str | None:
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    inside = text[min(starts) : max(text.rfind("}"), text.rfind("]")) + 1] if starts else ""
    fenced = [match[1] for match in _FENCED.finditer(text)]
    for document in dict.fromkeys((text, *fenced[-1:], inside)):
        canonical = canonical_json(document)
        if canonical is not None:
            return canonical
    return None


# Every decision replays the strategy. The bound keeps 64 of the longest answers at 32 MiB or less.
@lru_cache(maxsize=64)
def normalise(text: str, normaliser: Normaliser, options: tuple[str, ...] = ()) -> str | None:
    """The answer as it is compared; None when it cannot be read, which makes it missing from a count.

    - `text`: letter case, white space, Markdown marks, quotation marks and the marks that end words and sentences do
      not matter. Signs inside words do: `C++` is not `C`, `-5` is not `5`. Marks matter beyond 16,384 characters.
    - `number`: the last number in the text, exactly (`numbers.last_number`), in one spelling.
    - `choice`: one of `options`, or without them a letter A to Z, that the text states as its answer.
    - `json`: the document in the text, with sorted names and numbers compared by value.
    - `exact`: the text as it is, without the white space around it.
    """
    match normaliser:
        case "text":
            return _text(text)
        case "number":
            number = last_number(text)
            return None if number is None else shown(number)
        case "choice":
            return _option(text, options) if options else stated_letter(text)
        case "json":
            return _json(text)
        case "exact":
            return text.strip() or None


def requirement(normaliser: Normaliser, options: tuple[str, ...] = ()) -> str | None:
    match normaliser:
        case "number":
            return "The last number in the answer is the answer to the task. It is counted; write none after it."
        case "choice" if options:
            return (
                f"The last line of the answer is one of these, and nothing else: {'; '.join(options)}. It is counted."
            )
        case "choice":
            return "The last line of the answer is the letter of the choice, and nothing else. It is counted."
        case "json":
            return "The answer is one JSON document and nothing else. It is compared by its content."
        case "text" | "exact":
            return None


# Counting


@dataclass(frozen=True, slots=True)
class Group:
    """The agents that gave one answer, in counting order; `votes` may exceed their number. `final` as in `Tally`."""

    answer: str
    votes: int
    agents: tuple[str, ...]
    final: int | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """Answers with their votes, most votes first; a hash of the seed and the first voter, not of words, orders ties."""

    groups: tuple[Group, ...]

    @property
    def votes(self) -> int:
        return sum(group.votes for group in self.groups)

    @property
    def voters(self) -> frozenset[str]:
        return frozenset(agent for group in self.groups for agent in group.agents)

    @property
    def first(self) -> int:
        return self.groups[0].votes if self.groups else 0

    @property
    def second(self) -> int:
        return self.groups[1].votes if len(self.groups) > 1 else 0

    @property
    def tie(self) -> bool:
        return 0 < self.first == self.second

    @property
    def agreement(self) -> float | None:
        return self.share(self.first) if self.votes > 1 else None

    @property
    def margin(self) -> float | None:
        return self.share(self.first - self.second) if self.votes > 1 else None

    def share(self, votes: int) -> float:
        return float(Fraction(votes, self.votes))

    def votes_of(self, agent_id: str) -> int:
        """The votes for an agent's answer; 0 for one that could not be read."""
        return next((group.votes for group in self.groups if agent_id in group.agents), 0)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        return tuple(
            Tally(answer=group.answer[:TALLY_CHARS_MAX], votes=group.votes, final=group.final, agents=group.agents)
            for group in self.groups
        )


def tally(votes: Iterable[tuple[str, str | None]], seed: int) -> Count:
    """Count (agent, normalised answer) pairs, first votes first; None is missing. An agent may vote more than once."""
    counted: dict[str, list[str]] = {}
    for agent_id, answer in votes:
        if answer is not None:
            counted.setdefault(answer, []).append(agent_id)

    def place(answer: str) -> tuple[int, str]:
        return -len(counted[answer]), hashlib.sha256(f"{seed}:{counted[answer][0]}".encode()).hexdigest()

    return Count(
        tuple(
            Group(answer, len(counted[answer]), tuple(dict.fromkeys(counted[answer])))
            for answer in sorted(counted, key=place)
        )
    )
