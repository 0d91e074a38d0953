import json
from datetime import date
from random import Random
from typing import Any

import jsonschema
import pytest

from app.deliberation.outputs import Output, json_schema, parse_output
from serve_deployments.simulator.writer.outputs import Behaviour, OutputWriter
from serve_deployments.simulator.writer.prompt import PromptReader
from serve_deployments.simulator.writer.schema_values import SchemaUnsupported

Schema = dict[str, Any]


def document(schema: Schema, seed: int = 0, behaviour: Behaviour = Behaviour.NORMAL, words: int | None = None) -> Any:
    writer = OutputWriter(PromptReader(("# Task\nName a colour.",)), behaviour, Random(seed), words)
    return json.loads(json.dumps(writer.document(schema)))


DEMANDED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "steps": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "minItems": 1,
        },
        "risk": {"enum": ["low", "high"]},
        "cost": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    },
    "required": ["title", "steps", "risk"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("words", [None, 1])
@pytest.mark.parametrize(
    "output",
    [
        Output(kind="answer"),
        Output(kind="critique"),
        Output(kind="revision", issues=4),
        Output(kind="score", labels=("A", "B", "C"), criteria=("correctness", "clarity")),
        Output(kind="pair"),
        Output(kind="turn"),
        Output(kind="choice", labels=("A", "B", "None of them")),
        Output(kind="analysis"),
        Output(kind="program"),
        Output(kind="tests"),
        Output(kind="answer").with_answers_of(json.dumps({"type": "object"})),
        Output(kind="revision").with_answers_of(json.dumps(DEMANDED)),
        Output(kind="turn").with_answers_of(json.dumps(DEMANDED)),
    ],
    ids=lambda output: output.kind + ("-of-a-schema" if output.answer_schema else ""),
)
def test_every_shape_of_the_product_is_written(output: Output, words: int | None) -> None:
    schema = json_schema(output)
    for seed in range(10):
        for behaviour in Behaviour:
            written = document(schema, seed, behaviour, words)
            jsonschema.Draft202012Validator(schema).validate(written)
            parse_output(output, json.dumps(written))


TREE: Schema = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 9},
        "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
        "left": {"$ref": "#/$defs/tree"},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}
OTHER_SCHEMAS: list[Schema] = [
    {"type": "string", "minLength": 200, "maxLength": 220},
    {"type": "string", "maxLength": 3},
    {"type": "integer", "minimum": -5, "maximum": -3},
    {"type": "integer", "minimum": 0.5, "maximum": 1.5},
    {"type": "number", "minimum": 0.1, "maximum": 0.2},
    {"type": "number", "maximum": -7},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"], "maxLength": 12},
    {"enum": ["a", 1, None]},
    {"const": {"a": [1]}},
    {"oneOf": [{"type": "integer", "minimum": 2, "maximum": 4}, {"type": "string"}]},
    {"type": "array", "items": {"type": "string"}, "minItems": 4, "maxItems": 4},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
    {"type": "object", "properties": {"a": True, "b": {"type": "boolean"}}, "required": ["b", "c"]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    {"type": "object", "properties": {"answer": {"type": "string"}, "score": {"type": "number", "minimum": 3}}},
]


@pytest.mark.parametrize("schema", OTHER_SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_another_schema_gets_a_valid_value_fixed_by_its_seed(schema: Schema) -> None:
    for seed in range(20):
        value = document(schema, seed)
        jsonschema.Draft202012Validator(schema).validate(value)
        assert value == document(schema, seed)


def test_a_format_that_a_description_tells_is_written() -> None:
    written = document({"type": "string", "description": "The day (format: date; minLength: 3)"}, 1)
    assert isinstance(written, str) and date.fromisoformat(written)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum"),
        ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "malformed"),
        ({"type": "integer", "minimum": "x"}, "malformed"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "malformed"),
        ({"type": "string", "pattern": "^a$"}, "pattern"),
        ({"type": "string", "not": {"type": "string"}}, "not: not simulated"),
        ({"enum": []}, "malformed"),
        ({"$ref": "https://example.org/schema"}, "local"),
        ({"$ref": "#/$defs/missing"}, "malformed"),
        ({"$ref": "#"}, "no value"),
        ({"type": "object", "properties": {"a": []}, "required": ["a"]}, "no value"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "no value"),
    ],
    ids=str,
)
def test_refuses_a_schema_without_a_value_and_names_the_reason(schema: Schema, reason: str) -> None:
    with pytest.raises(SchemaUnsupported, match=reason):
        document(schema)
