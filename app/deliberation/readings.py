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

from app.deliberation.actions import as_action
from app.deliberation.answer_schema import STEPS_MAX, StepBudget, TooManySteps, violation
from app.deliberation.errors import InvalidOutput
from app.deliberation.json_objects import Reasoning, Span, has_plain_backslashes, mended, objects, reasoning
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
    "json",
    "confidence",
    "responses",
    "surrogates",
    "action",
]
LENIENCIES: Mapping[Leniency, str] = {
    "thinking": "reasoning stands before the answer, or holds it",
    "fence": "a Markdown fence stands around it",
    "prose": "other text stands around it",
    "wrapper": "it stands within another object",
    "control_characters": "a string has a line break or another control character",
    "syntax": "a comma before an end, or backslashes that stand for themselves",
    "extra_fields": "fields that were not asked for, dropped",
    "extra_items": "more items than asked for, the last ones dropped",
    "missing": "a text that decides nothing is missing, and is empty",
    "spelling": "a name in another spelling",
    "order": "criteria in another order, or as an object by their ids",
    "text": "a value of another type where a text is wanted, as its JSON; or the text of an object that is wanted",
    "json": "an answer that is an object or a list where a text is wanted, as its JSON",
    "confidence": "a confidence in words, as a share, out of bounds or missing",
    "responses": "responses to issues that are malformed or missing, dropped",
    "surrogates": "half of a surrogate pair, replaced",
    "action": "an action in another form, such as a call alone, or arguments or numbers within strings",
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
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise InvalidOutput(f"{repeated[:WHERE_CHARS_MAX]}: stands twice in one object")
    return fields


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
        bare, strict, whole = text.strip(_BLANKS), False, ""
        try:
            self._check(bare, _STRICT.decode)
            strict = True
        except InvalidOutput as fault:
            whole = str(fault)
        if strict and not has_plain_backslashes(bare):
            return Reading(bare)
        if (inner := _unquoted(bare)) is not None:
            parsed = self.reading(inner, cut_off)
            return Reading(parsed.text, tuple(sorted({*parsed.lenient, "text"})))
        self._schema = json_schema(self._output)
        thoughts = reasoning(text)
        for span in _candidates(text, thoughts, cut_off):
            parsed = self._in_object(text[span.start : span.end])
            if parsed is not None:
                around = _surroundings(text, span, thoughts)
                return Reading(parsed.text, tuple(sorted({*around, *parsed.lenient})))
        if strict:
            return Reading(bare)
        raise InvalidOutput(self.fault or whole)

    def _check(self, document: str, decode: Callable[[str], Any]) -> None:
        parse_output(self._output, document)
        self._check_schema(decode(document))

    def _check_schema(self, fields: Fields) -> None:
        schema = self._output.answer_schema
        if schema and (fault := violation(schema, fields.get("answer"), "answer", self._budget)) is not None:
            raise InvalidOutput(fault)

    def _in_object(self, document: str) -> Reading | None:
        """The first object of the document that satisfies the form, else the first that a lenient reading mends."""
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
            own = bool(self._output.answer_schema)
            form = Form(self._schema, own=own, is_action=self._output.is_action)
            shaped = form.shaped(fields)
            if (not self.fault or shaped.keys() == names) and self._satisfied(shaped, document):
                return self._recorded(shaped, notes | form.notes | _wrapper(fields, value))
        return None

    def _nested(self, value: Fields) -> Iterator[Fields]:
        """An object, then the objects within it, the last first."""
        pending: list[object] = [value]
        while pending:
            node = pending.pop()
            if isinstance(node, dict):
                fields = cast("Fields", node)
                self._budget.spend(OBJECT_STEPS + len(fields))
                yield fields
                pending += fields.values()
            elif isinstance(node, list):
                items = cast("list[object]", node)
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
    attempts: list[tuple[json.JSONDecoder, Callable[[str], str], set[Leniency]]] = [
        (_STRICT, str, set()),
        (_TOLERANT, str, {"control_characters"}),
        (_TOLERANT, mended, {"syntax"}),
    ]
    for decoder, prepared, notes in attempts[2:] if has_plain_backslashes(document) else attempts:
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
    leniencies: set[Leniency] = {"thinking"} if thoughts.spans else set()
    before = _beside(text[: span.start], (thought for thought in thoughts.spans if thought.end <= span.start))
    after = text[span.end :]
    if (before + after).strip(_BLANKS):
        leniencies.add("fence" if _FENCE.fullmatch(before) and _FENCE.fullmatch(after) else "prose")
    return leniencies


class Form:
    """Brings an object into the form of an output where its meaning is plain; `notes` says how.

    `own`: the answer has a schema of the client's, which is kept to the letter; `is_action`: that of an action.
    """

    def __init__(self, schema: Fields, *, own: bool, is_action: bool = False) -> None:
        self.notes: set[Leniency] = set()
        self._schema = schema
        self._own = own
        self._is_action = is_action

    def shaped(self, fields: Fields) -> Fields:
        """The fields that were asked for, in their order. Values without a plain meaning stay as they are."""
        return self._object(self._schema, fields)

    def _value(self, name: str, schema: Fields, value: object) -> object:
        if name == "confidence":
            return self._confidence(value)
        if name == "answer" and self._own:
            value = self._own_object(value)
            return self._action(schema, value) if self._is_action else value
        if "enum" in schema:
            return self._named(value, schema["enum"]) or value
        if schema.get("type") == "string":
            return self._text(value, is_answer=name in _ANSWERS)
        if "prefixItems" in schema.get("properties", {}).get("criteria", {}):
            return (
                self._object(schema, self._with_criteria(cast("object", value)))
                if isinstance(value, dict | list)
                else value
            )
        if isinstance(value, dict) and "prefixItems" in schema:
            return self._criteria(schema["prefixItems"], self._by_id(cast("Fields", value)))
        if isinstance(value, dict) and "properties" in schema:
            return self._object(schema, cast("Fields", value))
        if isinstance(value, list):
            return self._list(schema, cast("list[object]", value))
        return cast("object", value)

    def _object(self, schema: Fields, fields: Fields) -> Fields:
        properties: Fields = schema["properties"]
        keys = {name: name if name in fields else None for name in properties}
        if None in keys.values() and fields.keys() - properties.keys():
            spelt: dict[str, str | None] = {}
            for key in fields.keys() - properties.keys():
                # Of two fields of one spelling neither is meant.
                spelt[_spelling(key)] = None if _spelling(key) in spelt else key
            for name in (name for name, key in keys.items() if key is None):
                keys[name] = spelt.get(_spelling(name))
                self.notes |= {"spelling"} if keys[name] else set()
        if len(fields) > sum(key is not None for key in keys.values()):
            self.notes.add("extra_fields")
        made: Fields = {}
        for name, key in keys.items():
            value = None if key is None else fields[key]
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

    def _named(self, written: object, names: Sequence[str]) -> str | None:
        """The name that a text spells, but for case and separators."""
        if not isinstance(written, str):
            return None
        matching = [written] if written in names else [name for name in names if _spelling(name) == _spelling(written)]
        if len(matching) != 1:
            return None
        if matching[0] != written:
            self.notes.add("spelling")
        return matching[0]

    def _list(self, schema: Fields, values: list[object]) -> list[Any]:
        if "prefixItems" in schema:
            return self._criteria(schema["prefixItems"], values)
        items: Fields = schema.get("items", {})
        if "maxItems" in schema and len(values) > schema["maxItems"] and "issue" not in items.get("properties", {}):
            self.notes.add("extra_items")
            values = values[: schema["maxItems"]]
        made = [self._value("", items, value) for value in values]
        if "issue" not in items.get("properties", {}):
            return made
        kept = [response for response in made if _is_response(response)]
        if len(kept) < len(made):
            self.notes.add("responses")
        return kept

    def _with_criteria(self, candidate: object) -> Fields:
        """The scores of a candidate, also where its criteria stand there directly."""
        fields = cast("Fields", candidate) if isinstance(candidate, dict) else {}
        if any(_spelling(name) == "criteria" for name in fields):
            return fields
        self.notes.add("wrapper")
        return {"criteria": candidate}

    def _by_id(self, scores: Fields) -> list[object]:
        self.notes.add("order")
        return [
            {**cast("Fields", score), "id": id} if isinstance(score, dict) else {"id": id, "score": score}
            for id, score in scores.items()
        ]

    def _criteria(self, wanted: Sequence[Fields], values: list[object]) -> list[Any]:
        """The scores in the rubric's order, if each criterion has one."""
        names: list[str] = [criterion["properties"]["id"]["const"] for criterion in wanted]
        form: Fields = {**wanted[0], "properties": {**wanted[0]["properties"], "id": {}}} if wanted else {}
        made = [self._value("", form, value) for value in values]
        scores: dict[str, Fields] = {}
        for score in made:
            entry = cast("Fields", score) if isinstance(score, dict) else {}
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

    def _text(self, value: object, *, is_answer: bool) -> str:
        if not isinstance(value, str):
            self.notes.add("json" if is_answer and isinstance(value, dict | list) else "text")
            value = json.dumps(value, ensure_ascii=False)
        if value.isascii():
            return value
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if whole != value:
            self.notes.add("surrogates")
        return whole

    def _own_object(self, written: object) -> object:
        """An object of the client's schema, also where the model wrote it as a text."""
        if isinstance(written, str):
            try:
                value, notes = _decoded(written)
            except InvalidOutput:
                return written
            if isinstance(value, dict):  # pyright: ignore[reportUnnecessaryIsInstance] -- any document
                self.notes |= {"text", *notes}
                return value
        return written

    def _action(self, schema: Fields, written: object) -> object:
        action = as_action(written, schema)
        self.notes |= {"action"} if action != written else set()
        return action

    def _confidence(self, value: object) -> int | None:
        """Whole percent, of a number, a percentage or a share; None for anything else."""
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
            return value
        self.notes.add("confidence")
        percentage = _CONFIDENCE.fullmatch(value) if isinstance(value, str) else None
        if percentage is not None:
            number, share = float(percentage[1]), "." in percentage[1] and not percentage[2]
        elif isinstance(value, float):
            number, share = value, True
        else:
            return None
        number *= 100 if share and 0 < number < 1 else 1
        return round(number) if 0 <= number <= 100 else None


def _spelling(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def _is_response(value: object) -> bool:
    try:
        IssueResponse.model_validate(value)
    except ValidationError:
        return False
    return True
