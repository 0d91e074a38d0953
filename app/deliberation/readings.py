"""Reads an engine's reply: finds the answer in the text, checks it once, and says what was read leniently.

The last object that satisfies the call's form counts, beside the model's reasoning. Faults of parts that decide nothing
cost no answer: surplus fields, missing reasons, the order and spelling of names. A score is taken as it is or not at
all. Every recorded text satisfies `parse_output`, so later readers do not check it against the client's schema.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import ValidationError

from app.deliberation.answer_schema import STEPS_MAX, StepBudget, TooManySteps, violation
from app.deliberation.errors import InvalidOutput
from app.deliberation.json_objects import Reasoning, Span, mended, objects, reasoning
from app.deliberation.outputs import WHERE_CHARS_MAX, IssueResponse, Output, json_schema, parse_output

# The end of a longer reply is read. A token may be a hundred blanks.
READ_CHARS_MAX = 524_288
# As long as so many values of a client's schema, the look at an object takes.
OBJECT_STEPS = 100

Leniency = Literal[
    "thinking",
    "fence",
    "prose",
    "wrapper",
    "control_characters",
    "syntax",
    "extra_fields",
    "extra_items",
    "missing",
    "spelling",
    "order",
    "text",
    "confidence",
    "responses",
    "surrogates",
]
LENIENCIES: Mapping[Leniency, str] = {
    "thinking": "reasoning stands before the answer, or holds it",
    "fence": "a Markdown fence stands around it",
    "prose": "other text stands around it",
    "wrapper": "it stands within another object",
    "control_characters": "a string has a line break or another control character",
    "syntax": "a comma before an end, or an unknown escape",
    "extra_fields": "fields that were not asked for, dropped",
    "extra_items": "more items than asked for, the last ones dropped",
    "missing": "a text that decides nothing is missing, and is empty",
    "spelling": "a name in another spelling",
    "order": "criteria in another order",
    "text": "a value of another type where a text is wanted, as its JSON; or the text of an object that is wanted",
    "confidence": "a confidence in words, as a share, out of bounds or missing",
    "responses": "responses to issues that are malformed or missing, dropped",
    "surrogates": "half of a surrogate pair, replaced",
}

_BLANKS = " \t\r\n\ufeff"
_FENCE = re.compile(r"\s*+(?:```|~~~)[ \t]*\w{0,20}\s*+|\s*+")
_CONFIDENCE = re.compile(r"\s*(\d{1,3}(?:\.\d{1,20})?)\s*(%?)\s*")
_ANSWERS = ("answer", "code")

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """A text that satisfies its form, as it is recorded, and what was read leniently."""

    text: str
    lenient: tuple[Leniency, ...] = ()


def read_output(output: Output, text: str, *, cut_off: bool = False) -> Reading:
    """The answer in a reply; raises InvalidOutput naming the first fault of the last object.

    Of a reply that was cut off only the object at its end counts, so that no draft stands for an answer.
    """
    reader = _Reader(output)
    try:
        return reader.reading(text[-READ_CHARS_MAX:], cut_off)
    except TooManySteps:
        raise InvalidOutput(reader.fault or f"the reply takes more than {STEPS_MAX:,} steps to check") from None
    except RecursionError:
        raise InvalidOutput("the document: is nested too deeply") from None


def _distinct(pairs: list[tuple[str, object]]) -> Fields:
    # Parsers disagree on which of two equal names in an object counts, so such an answer is refused.
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise InvalidOutput(f"{repeated[:WHERE_CHARS_MAX]}: stands twice in one object")
    return found


_STRICT = json.JSONDecoder(object_pairs_hook=_distinct)
_TOLERANT = json.JSONDecoder(object_pairs_hook=_distinct, strict=False)


class _Reader:
    """Reads one reply within one budget of steps. `fault` is that of the object that is looked at first.

    Faults are kept as texts: an error holds the frames that raised it, with all that was parsed there.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._schema: Fields = {}
        self._budget = StepBudget()
        self.fault = ""

    def reading(self, text: str, cut_off: bool) -> Reading:
        bare = text.strip(_BLANKS)
        try:
            self._check(bare, _STRICT.decode)
            return Reading(bare)
        except InvalidOutput as fault:
            whole = str(fault)
        if (inner := _unquoted(bare)) is not None:
            found = self.reading(inner, cut_off)
            return Reading(found.text, tuple(sorted({*found.lenient, "text"})))
        self._schema = json_schema(self._output)
        thoughts = reasoning(text)
        for span in _candidates(text, thoughts, cut_off):
            found = self._in_object(text[span.start : span.end])
            if found is not None:
                around = _surroundings(text, span, thoughts)
                return Reading(found.text, tuple(sorted({*around, *found.lenient})))
        raise InvalidOutput(self.fault or whole)

    def _check(self, document: str, decode: Callable[[str], Any]) -> None:
        parse_output(self._output, document)
        self._check_schema(decode(document))

    def _check_schema(self, fields: Fields) -> None:
        schema = self._output.answer_schema
        if schema and (fault := violation(schema, fields.get("answer"), "answer", self._budget)) is not None:
            raise InvalidOutput(fault)

    def _in_object(self, document: str) -> Reading | None:
        """The object or one within it that satisfies the form, else one that does when it is read leniently."""
        try:
            value, notes = _decoded(document)
        except InvalidOutput as fault:
            self.fault = self.fault or str(fault)
            return None
        names = self._schema["properties"].keys()
        for fields in self._nested(value):
            if fields.keys() == names and self._satisfied(fields, document):
                how = notes | _wrapper(fields, value)
                return self._recorded(fields, how) if how else Reading(document)
        for fields in self._nested(value):
            form = Form(self._schema, own=bool(self._output.answer_schema))
            shaped = form.shaped(fields)
            if (not self.fault or shaped.keys() == names) and self._satisfied(shaped, document):
                return self._recorded(shaped, notes | form.notes | _wrapper(fields, value))
        return None

    def _nested(self, value: Fields) -> Iterator[Fields]:
        """An object, then those within it, the last ones first."""
        pending: list[object] = [value]
        while pending:
            each = pending.pop()
            if isinstance(each, dict):
                fields = cast("Fields", each)
                self._budget.spend(OBJECT_STEPS + len(fields))
                yield fields
                pending += fields.values()
            elif isinstance(each, list):
                items = cast("list[object]", each)
                self._budget.spend(1 + len(items))
                pending += items

    def _satisfied(self, fields: Fields, document: str) -> bool:
        # An answer that becomes text is written anew, whatever its depth.
        self._budget.spend(1 + len(document) // 64)
        try:
            self._check_schema(fields)
            parse_output(self._output, fields)
        except InvalidOutput as fault:
            self.fault = self.fault or str(fault)
            return False
        return True

    def _recorded(self, fields: Fields, notes: set[Leniency]) -> Reading:
        text = json.dumps(fields, ensure_ascii=False)
        parse_output(self._output, text)
        return Reading(text, tuple(notes))


def _unquoted(text: str) -> str | None:
    """The text within a reply that is one JSON string, as of engines that encode an answer twice."""
    try:
        value: object = _TOLERANT.decode(text) if text.startswith('"') else None
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _wrapper(fields: Fields, value: Fields) -> set[Leniency]:
    return set() if fields is value else {"wrapper"}


def _decoded(document: str) -> tuple[Fields, set[Leniency]]:
    attempts: tuple[tuple[json.JSONDecoder, Callable[[str], str], set[Leniency]], ...] = (
        (_STRICT, str, set()),
        (_TOLERANT, str, {"control_characters"}),
        (_TOLERANT, mended, {"syntax"}),
    )
    for decoder, prepared, notes in attempts:
        try:
            return decoder.decode(prepared(document)), notes
        except ValueError:
            continue
    raise InvalidOutput("the document: an object in it is no JSON")


def _candidates(text: str, thoughts: Reasoning, cut_off: bool) -> Iterator[Span]:
    """The objects that may be the answer, the likeliest first: the last one that stands outside of the reasoning.

    Reasoning that never ends may hold the answer, and so may one that nothing but blanks stands beside.
    """
    beside: list[Span] = []
    unended: list[Span] = []
    within: list[Span] = []
    last = len(thoughts.spans) - 1 if thoughts.unclosed else -1
    for span in reversed(objects(text)):
        number = thoughts.around(span)
        (beside if number is None else unended if number == last else within).append(span)
    if cut_off:
        last_beginning = text.rfind("{")
        return (span for span in beside if span.end > last_beginning)
    return iter([*beside, *unended, *(() if _beside(text, thoughts.spans).strip(_BLANKS) else within)])


def _beside(text: str, spans: Iterable[Span]) -> str:
    """A text without some spans."""
    parts: list[str] = []
    place = 0
    for span in spans:
        parts.append(text[place : span.start])
        place = span.end
    return "".join([*parts, text[place:]])


def _surroundings(text: str, span: Span, thoughts: Reasoning) -> set[Leniency]:
    found: set[Leniency] = {"thinking"} if thoughts.spans else set()
    before = _beside(text[: span.start], (each for each in thoughts.spans if each.end <= span.start))
    after = text[span.end :]
    if (before + after).strip(_BLANKS):
        found.add("fence" if _FENCE.fullmatch(before) and _FENCE.fullmatch(after) else "prose")
    return found


class Form:
    """Brings an object into the form of an output where its meaning is plain; `notes` says how.

    `own`: the answer has a schema of the client's, which is kept to the letter.
    """

    def __init__(self, schema: Fields, *, own: bool) -> None:
        self.notes: set[Leniency] = set()
        self._schema = schema
        self._own = own

    def shaped(self, fields: Fields) -> Fields:
        """The fields that were asked for, in their order. Values without a plain meaning stay as they are."""
        return self._object(self._schema, fields)

    def _value(self, name: str, schema: Fields, given: object) -> object:
        if name == "confidence":
            return self._confidence(given)
        if name == "answer" and self._own:
            return self._own_object(given)
        if "enum" in schema:
            return self._named(given, schema["enum"]) or given
        if schema.get("type") == "string":
            return self._text(given)
        if isinstance(given, dict) and "properties" in schema:
            return self._object(schema, cast("Fields", given))
        if isinstance(given, list):
            return self._list(schema, cast("list[object]", given))
        return cast("object", given)

    def _object(self, schema: Fields, given: Fields) -> Fields:
        properties: Fields = schema["properties"]
        keys = {name: name if name in given else None for name in properties}
        if None in keys.values() and given.keys() - properties.keys():
            spelt: dict[str, str | None] = {}
            for key in given.keys() - properties.keys():
                # Of two fields of one spelling neither is meant.
                spelt[_spelling(key)] = None if _spelling(key) in spelt else key
            for name in (name for name, key in keys.items() if key is None):
                keys[name] = spelt.get(_spelling(name))
                self.notes |= {"spelling"} if keys[name] else set()
        if len(given) > sum(key is not None for key in keys.values()):
            self.notes.add("extra_fields")
        made: Fields = {}
        for name, key in keys.items():
            value = None if key is None else given[key]
            if value is not None:
                made[name] = self._value(name, properties[name], value)
            elif name == "confidence":
                made[name] = self._confidence(None)
            elif properties[name].get("type") == "string" and name not in _ANSWERS:
                self.notes.add("missing")
                made[name] = ""
            elif name == "responses":
                self.notes.add("responses")
                made[name] = []
        return made

    def _named(self, given: object, names: Sequence[str]) -> str | None:
        """The one of some names that a text is, but for its spelling."""
        if not isinstance(given, str):
            return None
        matching = [given] if given in names else [name for name in names if _spelling(name) == _spelling(given)]
        if len(matching) != 1:
            return None
        if matching[0] != given:
            self.notes.add("spelling")
        return matching[0]

    def _list(self, schema: Fields, given: list[object]) -> list[Any]:
        if "prefixItems" in schema:
            return self._criteria(schema["prefixItems"], given)
        items: Fields = schema.get("items", {})
        if "maxItems" in schema and len(given) > schema["maxItems"] and "issue" not in items.get("properties", {}):
            self.notes.add("extra_items")
            given = given[: schema["maxItems"]]
        made = [self._value("", items, each) for each in given]
        if "issue" not in items.get("properties", {}):
            return made
        kept = [each for each in made if _is_response(each)]
        if len(kept) < len(made):
            self.notes.add("responses")
        return kept

    def _criteria(self, wanted: Sequence[Fields], given: list[object]) -> list[Any]:
        """The scores in the rubric's order, if each criterion has one."""
        names: list[str] = [each["properties"]["id"]["const"] for each in wanted]
        form: Fields = {**wanted[0], "properties": {**wanted[0]["properties"], "id": {}}} if wanted else {}
        made = [self._value("", form, each) for each in given]
        scores: dict[str, Fields] = {}
        for each in made:
            entry = cast("Fields", each) if isinstance(each, dict) else {}
            name = self._named(entry.get("id"), names)
            if name is None:
                self.notes.add("extra_fields")
            elif name in scores:
                return made
            else:
                scores[name] = {**entry, "id": name}
        if scores.keys() != set(names):
            return made
        if list(scores) != names:
            self.notes.add("order")
        return [scores[name] for name in names]

    def _text(self, given: object) -> str:
        if not isinstance(given, str):
            self.notes.add("text")
            given = json.dumps(given, ensure_ascii=False)
        if given.isascii():
            return given
        whole = given.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if whole != given:
            self.notes.add("surrogates")
        return whole

    def _own_object(self, given: object) -> object:
        """An object of the client's schema, also where the model wrote it as a text."""
        if isinstance(given, str):
            try:
                value: object = _STRICT.decode(given)
            except ValueError:
                return given
            if isinstance(value, dict):
                self.notes.add("text")
                return cast("object", value)
        return given

    def _confidence(self, given: object) -> int | None:
        """Whole percent, of a number, a percentage or a share; None for anything else."""
        if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= 100:
            return given
        self.notes.add("confidence")
        percentage = _CONFIDENCE.fullmatch(given) if isinstance(given, str) else None
        if percentage is not None:
            number, share = float(percentage[1]), "." in percentage[1] and not percentage[2]
        elif isinstance(given, float):
            number, share = given, True
        else:
            return None
        number *= 100 if share and 0 < number < 1 else 1
        return round(number) if 0 <= number <= 100 else None


def _spelling(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _is_response(given: object) -> bool:
    try:
        IssueResponse.model_validate(given)
    except ValidationError:
        return False
    return True
