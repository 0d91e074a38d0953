import json
from datetime import date
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from app.deliberation.answer_schema import (
    ITEMS_MAX,
    SchemaRefused,
    StepBudget,
    rebuilt_schema,
    replaced_keywords,
    violation,
)
from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import Answer, DebateTurn, Output, OutputKind, Revision, json_schema, parse_output
from app.deliberation.readings import read_output

PERSON: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "In full", "title": "Name"},
        "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
        "home": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b", 1]}, "maxItems": 2},
        "kind": {"const": "person"},
        "score": {"type": ["number", "null"]},
        "marks": {"type": "object", "additionalProperties": {"type": "integer"}},
        "pet": {
            "oneOf": [
                {"type": "object", "properties": {"t": {"const": "cat"}}, "required": ["t"]},
                {"type": "object", "properties": {"t": {"enum": ["dog", True]}}, "required": ["t"]},
                {"type": "string"},
            ],
            "discriminator": {"propertyName": "t"},
        },
        "nick": {"$ref": "#/properties/name", "description": "For short"},
        "alias": {"allOf": [{"$ref": "#/properties/name"}], "default": ""},
        "more": True,
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}
VALUES: list[object] = [
    {"name": "Ada", "kind": "person"},
    {"name": "Ada", "kind": "person", "age": 36.0, "home": {"city": "London"}, "tags": ["a", 1], "score": 0.5},
    {"name": "Ada", "kind": "person", "home": None, "score": None},
    {"name": "Ada", "kind": "person", "home": {}},
    {"name": "Ada", "kind": "person", "home": "London"},
    {"name": "Ada", "kind": "person", "score": 1e300},
    {"name": "Ada", "kind": "person", "age": -1},
    {"name": "Ada", "kind": "person", "age": 150},
    {"name": "Ada", "kind": "person", "age": 1.5},
    {"name": "Ada", "kind": "person", "age": True},
    {"name": "Ada", "kind": "person", "tags": ["a", "b", "a"]},
    {"name": "Ada", "kind": "person", "tags": [True]},
    {"name": "Ada", "kind": "person", "tags": ["c"]},
    {"name": "Ada", "kind": "person", "other": 1},
    {"name": "Ada", "kind": "robot"},
    {"name": "Ada", "kind": "person", "marks": {"a": 1, "b": 2}, "pet": {"t": "dog"}, "more": [{}]},
    {"name": "Ada", "kind": "person", "marks": {"a": "1"}},
    {"name": "Ada", "kind": "person", "marks": [1]},
    {"name": "Ada", "kind": "person", "pet": {"t": 1}},
    {"name": "Ada", "kind": "person", "pet": {}},
    {"name": "Ada", "kind": "person", "pet": "Tom", "nick": "A", "alias": "A"},
    {"name": "Ada", "kind": "person", "nick": 1},
    {"name": "Ada", "kind": "person", "alias": 1},
    {"name": 1, "kind": "person"},
    {"kind": "person"},
    {},
    [],
    "Ada",
    None,
]


@pytest.mark.parametrize("value", VALUES, ids=json.dumps)
def test_agrees_with_jsonschema(value: object) -> None:
    found = violation(json.dumps(rebuilt_schema(PERSON)), value, "answer", StepBudget())
    assert (found is None) == jsonschema.Draft202012Validator(PERSON).is_valid(value)
    assert found is None or found.startswith("answer")


def test_a_rebuilt_schema_has_supported_keywords_and_no_references() -> None:
    rebuilt = rebuilt_schema(PERSON)
    assert "$ref" not in json.dumps(rebuilt) and "title" not in rebuilt
    assert rebuilt["properties"]["home"]["anyOf"][0]["required"] == ["city"]
    assert rebuilt["properties"]["kind"] == {"enum": ["person"]}
    assert rebuilt_schema(rebuilt) == rebuilt


def of(schema: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def doubled(levels: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {**of({"$ref": "#/$defs/d0"}), "$defs": {**definitions, f"d{levels}": {"type": "null"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = of(schema)
    return schema


TAGGED: dict[str, Any] = {"type": "object", "properties": {"t": {"const": "a"}}, "required": ["t"]}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "names by a regular expression": (of({"patternProperties": {"a": {}}}), "patternProperties"),
    "several in one": (of({"allOf": [{}, {}]}), "schema/properties/x/allOf"),
    "a type beside a reference": (
        {**of({"$ref": "#/$defs/a", "type": "object"}), "$defs": {"a": {}}},
        "type stands beside",
    ),
    "a tuple": (of({"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]}), "prefixItems"),
    "entries that overlap": (of({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "may fit two"),
    "entries without their constants": (of({"oneOf": [TAGGED, {**TAGGED, "required": []}]}), "may fit two"),
    "entries with one constant": (of({"oneOf": [TAGGED, TAGGED]}), "may fit two"),
    "entries of no type": (of({"oneOf": [{k: TAGGED[k] for k in ("properties", "required")}, {}]}), "may fit two"),
    "many entries": (of({"oneOf": [{"const": n} for n in range(33)]}), "may fit two"),
    "no object": ({"type": "array"}, "an answer is an object"),
    "an unknown type": (of({"type": "date"}), "must be one of object"),
    "a malformed type": (of({"type": 3}), "must be a list"),
    "no schema": (of(False), "must be an object"),
    "a foreign reference": (of({"$ref": "https://example.org/x"}), "$ref must name"),
    "the root's reference": (of({"$ref": "#"}), "$ref must name"),
    "a reference beyond a list": (of({"$ref": "#/required/00009"}), "$ref must name"),
    "a malformed reference": (of({"$ref": []}), "$ref must name"),
    "a list of malformed types": (of({"type": [[]]}), "must be one of object"),
    "a long pattern that references repeat": (
        {
            "type": "object",
            "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(400)},
            "$defs": {"a": {"pattern": "x" * 100}},
        },
        "characters",
    ),
    "a circle": ({**of({"$ref": "#/$defs/a"}), "$defs": {"a": of({"$ref": "#/$defs/a"})}}, "back to itself"),
    "an explosion": (doubled(12), "nodes"),
    "deep nesting": (nested(40), "levels"),
    "many properties": ({"type": "object", "properties": {f"p{n}": {} for n in range(600)}}, "nodes"),
    "an empty enum": (of({"enum": []}), "must be a list of 1"),
    "an enum of objects": (of({"enum": [{}]}), "only texts"),
    "a huge list": (of({"type": "array", "minItems": ITEMS_MAX + 1}), "minItems"),
    "a bound that is no number": (of({"minimum": "0"}), "minimum"),
    "long descriptions": (of({"description": "x" * 20_000}), "characters"),
    "a long text that references repeat": (
        {
            "type": "object",
            "properties": {f"p{n}": {"$ref": "#/$defs/a"} for n in range(500)},
            "$defs": {"a": {"enum": ["x" * 100]}},
        },
        "characters",
    ),
    "lists that multiply": (
        of({"type": "array", "minItems": 200, "items": {"type": "array", "minItems": 200}}) | {"required": ["x"]},
        "lower `minItems`",
    ),
    "alternatives of a long list": (
        of({"type": "array", "minItems": 500, "items": {"anyOf": [{"type": "integer"}] * 100}}) | {"required": ["x"]},
        "schema/properties/x: its smallest answer takes more than 25,000 steps to check",
    ),
    "an unknown keyword": ({"type": "object", "k" * 500: 1}, "k" * 64),
}


@pytest.mark.parametrize(("schema", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses_what_an_engine_or_this_check_may_not_bear(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(SchemaRefused) as refused:
        rebuilt_schema(schema)
    assert named in str(refused.value) and len(str(refused.value)) < 300


class Cat(BaseModel):
    t: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    t: Literal["dog", "hound"]
    born: date = Field(description="In the register")


class Household(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="t")]
    ages: dict[str, Annotated[int, Field(ge=0)]]
    post: Annotated[str, Field(pattern="^[0-9]{5}$", min_length=5, max_length=5)]
    tags: set[str] = set()
    place: tuple[float, float] | None = None
    anything: Any = None


# As `z.toJSONSchema` of zod 4.1 writes an object with an email, a safe integer, a record and a union.
ZOD: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "mail": {"type": "string", "format": "email", "pattern": "^(?!\\.)[a-z@.]+$"},
        "count": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "marks": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        "pet": {"oneOf": [TAGGED, {**TAGGED, "properties": {"t": {"type": "string", "const": "b"}}}]},
    },
    "required": ["mail", "count", "marks", "pet"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "replaced", "valid", "invalid"),
    [
        (
            Household.model_json_schema(),
            {"oneOf", "format", "pattern", "minLength", "maxLength", "uniqueItems", "prefixItems"},
            {"pet": {"t": "dog", "born": "2020-02-03"}, "ages": {"Ada": 3}, "post": "10115", "place": [1, 2.5]},
            {"pet": {"lives": 9}, "ages": {}, "post": ""},
        ),
        (
            ZOD,
            {"oneOf", "format", "pattern"},
            {"mail": "a@b.c", "count": 1, "marks": {"x": 0.5}, "pet": {"t": "b"}},
            {"mail": "a@b.c", "count": 1, "marks": {"x": "0.5"}, "pet": {"t": "b"}},
        ),
    ],
    ids=["pydantic", "zod"],
)
def test_takes_what_libraries_write_and_names_what_it_replaces(
    schema: dict[str, Any], replaced: set[str], valid: object, invalid: object
) -> None:
    rebuilt = rebuilt_schema(schema)
    assert replaced_keywords(schema).keys() == replaced
    faults = [violation(json.dumps(rebuilt), value, "answer", StepBudget()) for value in (valid, invalid)]
    assert faults[0] is None and faults[1] is not None
    assert rebuilt_schema(rebuilt) == rebuilt and replaced_keywords(rebuilt) == {}


def test_a_replaced_keyword_stands_in_the_description() -> None:
    mail = {"type": "string", "format": "email", "minLength": 3, "description": "The sender"}
    schema = {**of({"$ref": "#/$defs/mail", "description": "Of the letter"}), "$defs": {"mail": mail}}
    described = rebuilt_schema(schema)["properties"]["x"]["description"]
    assert described == "Of the letter The sender (format: email; minLength: 3)"


FORMS: list[tuple[OutputKind, dict[str, Any], type]] = [
    ("answer", {"reasoning": "r"}, Answer),
    ("revision", {"responses": []}, Revision),
    ("turn", {"reasoning": "r", "error": ""}, DebateTurn),
]


@pytest.mark.parametrize(("kind", "others", "form"), FORMS)
def test_an_answer_of_a_schema_becomes_its_json(kind: OutputKind, others: dict[str, Any], form: type) -> None:
    output = Output(kind=kind).with_answers_of(json.dumps(rebuilt_schema(PERSON)))
    assert json_schema(output)["properties"]["answer"]["required"] == ["name", "kind"]
    person = {"name": "Zoë", "kind": "person"}
    parsed = parse_output(output, json.dumps({**others, "answer": person, "confidence": 7}))
    assert isinstance(parsed, Answer | Revision | DebateTurn) and isinstance(parsed, form)
    assert json.loads(parsed.answer) == person


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ('{"name": "Ada"}', "answer/kind: is missing"),
        ('"Ada"', "answer: must be of type object"),
        ("NaN", "answer: must be of type object"),
        ('{"name": "Ada", "kind": "person", "score": Infinity}', "infinite"),
    ],
)
def test_an_answer_that_breaks_its_schema_is_invalid(answer: str, fault: str) -> None:
    output = Output(kind="answer").with_answers_of(json.dumps(rebuilt_schema(PERSON)))
    with pytest.raises(InvalidOutput, match=fault):
        read_output(output, f'{{"reasoning": "r", "answer": {answer}, "confidence": 7}}')


def test_a_repeated_name_within_an_answer_is_invalid() -> None:
    output = Output(kind="answer").with_answers_of(json.dumps({"type": "object"}))
    with pytest.raises(InvalidOutput, match="stands twice"):
        read_output(output, '{"reasoning": "r", "answer": {"a": 1, "a": 2}, "confidence": 7}')


def test_outputs_without_an_answer_ignore_the_schema() -> None:
    assert Output(kind="critique").with_answers_of(json.dumps({"type": "object"})) == Output(kind="critique")


def of_branches(*branches: dict[str, Any]) -> Output:
    items = {"type": "array", "items": {"anyOf": list(branches)}}
    return Output(kind="answer").with_answers_of(json.dumps(rebuilt_schema(of(items))))


def integers(count: int) -> str:
    return json.dumps({"reasoning": "r", "answer": {"x": list(range(count))}, "confidence": 7})


def test_a_check_beyond_its_budget_of_steps_finds_the_answer_invalid() -> None:
    objects = of_branches(*[{"type": "object", "required": [f"r{n}"]} for n in range(200)], {"type": "object"})
    text = json.dumps({"reasoning": "r", "answer": {"x": [{}] * 1_000}, "confidence": 7})
    assert read_output(objects, text).text == text
    with pytest.raises(InvalidOutput, match="the reply takes more than 250,000 steps to check"):
        read_output(objects, text.replace("{}", ", ".join(["{}"] * 2)))


def test_alternatives_are_told_apart_by_type_and_constant_before_they_are_tried() -> None:
    constants = [{"enum": [f"c{n}", n + 0.5, None]} for n in range(200)]
    output, budget = of_branches(*constants, {"type": "object"}, {"type": "integer"}), StepBudget()
    for value in ([1] * 10_000, ["c7"] * 10_000, [3.5] * 10_000):
        budget.steps = 20_003
        assert violation(output.answer_schema, {"x": value}, "answer", budget) is None
    for value in ("c200", True, 1.25, [], 2e300):
        expected = value == 2e300
        assert (violation(output.answer_schema, {"x": [value]}, "answer", StepBudget()) is None) == expected


def test_a_record_is_trusted_and_not_checked_against_the_schema_again() -> None:
    output = of_branches({"type": "null"})
    with pytest.raises(InvalidOutput, match="fits no schema"):
        read_output(output, integers(3))
    assert parse_output(output, integers(3)) == Answer(reasoning="r", answer='{"x":[0,1,2]}', confidence=7)
