"""The simulator's JSON: valid for any bounded schema, or refused with a reason."""

import json
import re
from collections.abc import Sequence

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.outputs import Output, json_schema, parse_output
from serve_deployments.simulator.dice import Dice
from serve_deployments.simulator.json_values import Path, fit, generate
from serve_deployments.simulator.patterns import PatternUnsupported, draw_match
from serve_deployments.simulator.schemas import Json, SchemaRefused, is_valid

bounded = settings(max_examples=150, deadline=None, derandomize=True)
Schema = dict[str, Json]


class Rambler:
    """An author who always has too much to say and no opinion."""

    def text(self, path: Path, chars_max: int | None) -> str | None:
        return f"what is said at {path} goes on and on, and never comes to a point"

    def number(self, path: Path, low: float, high: float) -> float | None:
        return None

    def option(self, path: Path, options: Sequence[Json]) -> int | None:
        return None

    def size(self, path: Path, low: int, high: int) -> int | None:
        return None


class Boaster(Rambler):
    """An author whose every number and list is beyond all bounds."""

    def number(self, path: Path, low: float, high: float) -> float | None:
        return 1e9 if len(path) % 2 else -1e9

    def size(self, path: Path, low: int, high: int) -> int | None:
        return 99


def value_of(schema: Schema | bool, seed: int = 0) -> Json:
    return generate(schema, Dice(seed), Rambler())


def spans(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda pair: (min(pair), max(pair)))


names = st.sampled_from(["reasoning", "answer", "score", "a", "b", "c", "$odd name", "ünï"])
strings = st.one_of(
    spans(0, 80).map(lambda span: {"type": "string", "minLength": span[0], "maxLength": span[1]}),
    st.sampled_from(
        [
            {"type": "string", "pattern": r"^[a-z0-9_-]{1,64}$"},
            {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])$", "maxLength": 7},
            {"type": "string", "pattern": "x", "minLength": 3, "maxLength": 9},
            {"type": "string", "format": "date-time"},
        ]
    ),
)
integers = st.one_of(
    spans(-1_000, 1_000).map(lambda span: {"type": "integer", "minimum": span[0], "maximum": span[1]}),
    spans(-50, 50).map(lambda span: {"type": "integer", "exclusiveMinimum": span[0] - 1, "maximum": span[1]}),
    st.integers(1, 9).map(lambda step: {"type": "integer", "minimum": -20, "maximum": 20, "multipleOf": step}),
)
numbers = st.one_of(
    spans(-9, 9).map(lambda span: {"type": "number", "minimum": span[0] / 4, "maximum": span[1] / 4}),
    spans(-9, 9).map(
        lambda span: {"type": "number", "exclusiveMinimum": span[0] / 4, "exclusiveMaximum": span[1] / 4 + 1}
    ),
    st.sampled_from([{"type": "number", "minimum": 0, "maximum": 9, "multipleOf": step} for step in (0.25, 0.5, 3)]),
)
listed = st.lists(st.one_of(st.integers(-3, 3), st.text(max_size=5), st.none(), st.booleans()), min_size=1, max_size=4)
leaves = st.one_of(
    strings,
    integers,
    numbers,
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": ["string", "null"], "maxLength": 12}),
    listed.map(lambda values: {"enum": values}),
    listed.map(lambda values: {"const": values[0]}),
    st.just({"$ref": "#/$defs/leaf"}),
    st.just({"$ref": "#/$defs/tree"}),
)


def objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    @st.composite
    def drawn(draw: st.DrawFn) -> Schema:
        properties = draw(st.dictionaries(names, inner, max_size=4))
        required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return drawn()


def listing(items: Schema, span: tuple[int, int]) -> Schema:
    return {"type": "array", "items": items, "minItems": span[0], "maxItems": span[1]}


def arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        st.builds(listing, inner, spans(0, 5)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        ),
        spans(1, 6).map(
            lambda span: {
                "type": "array",
                "items": {"type": "integer", "minimum": 0, "maximum": 40},
                "uniqueItems": True,
                "minItems": span[0],
                "maxItems": span[1],
            }
        ),
    )


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        inner.map(lambda branch: {"allOf": [branch]}),
        st.just({"oneOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"type": "string", "maxLength": 4}]}),
        st.just({"oneOf": [{"type": "number", "minimum": 0, "maximum": 5}, {"type": "integer", "maximum": 9}]}),
    ),
    max_leaves=12,
)
DEFS: Schema = {
    "leaf": {"type": "string", "maxLength": 20},
    "tree": {
        "type": "object",
        "properties": {
            "value": {"type": "integer", "minimum": 0, "maximum": 9},
            "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3},
            "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    },
}


@bounded
@given(schemas, st.integers(0, 10**9))
def test_any_bounded_schema_gets_a_valid_value(schema: Schema, seed: int) -> None:
    whole = {**schema, "$defs": DEFS}
    value = json.loads(json.dumps(value_of(whole, seed)))
    jsonschema.Draft202012Validator(whole).validate(value)
    assert is_valid(whole, value, whole)


@bounded
@given(schemas, st.integers(0, 10**9))
def test_an_author_beyond_all_bounds_is_kept_within_them(schema: Schema, seed: int) -> None:
    whole = {**schema, "$defs": DEFS}
    jsonschema.Draft202012Validator(whole).validate(generate(whole, Dice(seed), Boaster()))


@pytest.mark.parametrize(
    ("schema", "only"),
    [
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, 1),
        ({"type": "integer", "minimum": 0.5, "maximum": 1.5}, 1),
        ({"type": "integer", "minimum": 5, "maximum": 7, "multipleOf": 3}, 6),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5, "multipleOf": 0.25}, 0.25),
        ({"type": "number", "minimum": 0.12345, "maximum": 0.12345}, 0.12345),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}, [1, 1]),
        ({"type": "array", "items": {"enum": [3]}, "uniqueItems": True, "minItems": 1, "maxItems": 9}, [3]),
        ({"type": "array", "items": {"type": "string", "maxLength": 0}, "uniqueItems": True, "minItems": 1}, [""]),
    ],
    ids=str,
)
def test_where_one_value_is_left_it_is_found(schema: Schema, only: Json) -> None:
    assert all(value_of(schema, seed) == only for seed in range(20))


@bounded
@given(schemas, st.integers(0, 10**6))
def test_the_same_dice_draw_the_same_value(schema: Schema, seed: int) -> None:
    whole = {**schema, "$defs": DEFS}
    assert value_of(whole, seed) == value_of(whole, seed)


@bounded
@given(schemas, st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-3, 3), st.text(max_size=6)))
def test_the_check_agrees_with_the_reference_validator(schema: Schema, value: Json) -> None:
    whole = {**schema, "$defs": DEFS}
    assert is_valid(whole, value, whole) == jsonschema.Draft202012Validator(whole).is_valid(value)


TRIED: list[Schema] = [
    {"type": "integer", "minimum": 0, "maximum": 9, "not": {"enum": [1, 2, 3]}},
    {"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}, "maxItems": 4},
    {"allOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}]},
    {"allOf": [{"type": "number", "minimum": 2, "maximum": 8}, {"type": "integer", "maximum": 3}]},
    {"anyOf": [{"minimum": 3}, {"maximum": 1}], "type": "integer"},
    {"type": "object", "minProperties": 2, "maxProperties": 3},
    {"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "required": ["n", "m"]},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": True}, "dependentRequired": {"a": ["b"]}},
    {
        "type": "object",
        "properties": {"kind": {"enum": ["x", "y"]}, "size": {"type": "integer", "minimum": 0, "maximum": 1}},
        "required": ["kind", "size"],
        "if": {"properties": {"kind": {"const": "x"}}},
        "then": {"properties": {"size": {"const": 0}}},
    },
    {"enum": ["a", 1, None], "type": "string"},
    {"properties": {"untyped": {"maxLength": 3}}, "required": ["untyped"]},
]


@pytest.mark.parametrize("schema", TRIED, ids=lambda schema: json.dumps(schema)[:60])
def test_keywords_that_can_only_be_tried_are_met(schema: Schema) -> None:
    for seed in range(30):
        jsonschema.Draft202012Validator(schema).validate(value_of(schema, seed))


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (False, "false"),
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "no integer"),
        ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "no integer"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "no number"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "string", "minLength": "x"}, "minLength"),
        ({"type": "string", "pattern": "(?=a)b"}, r"\(\?="),
        ({"type": "string", "pattern": "["}, "pattern"),
        ({"type": "string", "pattern": "^aaaa$", "maxLength": 2}, "pattern"),
        ({"enum": []}, "listed"),
        ({"enum": [1], "type": "string"}, "listed"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "items"),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, "different"),
        ({"$ref": "https://example.org/schema"}, "local"),
        ({"$ref": "#/$defs/missing"}, "nowhere"),
        ({"$ref": "#"}, "nested"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "nested"),
        ({"type": "integer", "minimum": True}, "minimum"),
        ({"type": "object", "properties": {"a": []}, "required": ["a"]}, "object"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "false"),
        ({"type": "string", "maxLength": 5, "not": {"type": "string"}}, "attempts"),
        (
            {"type": "object", "properties": {"deep": {"type": "integer", "multipleOf": 0}}, "required": ["deep"]},
            "deep",
        ),
    ],
    ids=str,
)
def test_a_schema_without_a_value_is_refused_with_its_reason(schema: Schema | bool, told: str) -> None:
    with pytest.raises(SchemaRefused, match=told):
        value_of(schema)


@pytest.mark.parametrize(
    "output",
    [
        Output(kind="answer"),
        Output(kind="critique"),
        Output(kind="revision", issues=4),
        Output(kind="score", labels=("A", "B", "C"), criteria=("correctness", "clarity")),
        Output(kind="pair"),
    ],
    ids=lambda output: output.kind,
)
def test_the_schemas_of_the_product_are_met(output: Output) -> None:
    for seed in range(20):
        parse_output(output, json.dumps(value_of(json_schema(output), seed)))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z0-9_-]{1,64}$",
        r"^\d{4}-\d{2}-\d{2}$",
        r"(foo|bar)+\.(?:py|js)",
        r"^[^\s@]+@[^\s@]+\.com$",
        r"^(?P<year>\d{4})$",
        r"\u0041[\x41-\x43]*?",
        r"^a{3,}b?c{2}$",
        r"[]x]+\W\D\S",
        r"a||b",
    ],
)
def test_a_pattern_gets_a_string_that_it_matches(pattern: str) -> None:
    for seed in range(20):
        assert re.search(pattern, draw_match(pattern, Dice(seed), length_max=200))


@pytest.mark.parametrize(
    "pattern",
    [r"(?=a)", r"(?<!a)b", r"\bfoo", r"(a)\1", r"\p{L}", "[", "(", "a{3,2}", "*a", "((a{99}){99}){99}", "(" * 99],
)
def test_a_pattern_beyond_the_supported_part_is_refused(pattern: str) -> None:
    with pytest.raises(PatternUnsupported):
        draw_match(pattern, Dice(1), length_max=1_000)


def test_unlike_a_search_a_whole_match_has_nothing_around_it() -> None:
    assert re.fullmatch("[ab]{2}", draw_match("[ab]{2}", Dice(1), whole=True))


@pytest.mark.parametrize(
    ("text", "low", "high", "fitted"),
    [
        ("four", 0, None, "four"),
        ("cut at a word", 0, 9, "cut at a"),
        ("cut at words", 9, 9, "cut at wo"),
        ("cut at a word", 8, 9, "cut at a"),
        ("unbreakable", 0, 5, "unbre"),
        ("", 3, 4, "and"),
        ("too short", 12, None, "too short and"),
        ("", 0, 0, ""),
    ],
)
def test_text_is_fitted_into_its_bounds(text: str, low: int, high: int | None, fitted: str) -> None:
    assert fit(text, low, high) == fitted
