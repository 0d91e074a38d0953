"""The JSON Schema that a client may demand of answers: a bounded subset, which engines' grammars can enforce.

An engine never gets a client's schema as it came, but one that is rebuilt from the keywords below, with references
resolved. Regular expressions are refused, because one can stall an engine and this check alike.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

NODES_MAX = 512
DEPTH_MAX = 16
ENUM_MAX = 256
ITEMS_MAX = 1_024
CHARS_MAX = 16_384
NAME_CHARS_MAX = 64

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_DROPPED = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "default", "examples", "deprecated"}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minItems", "maxItems")

Schema = dict[str, Any]


class SchemaRefused(ValueError):
    """A schema is malformed, too large, or uses a keyword outside the subset; the text names the place."""


class _Rebuilding:
    def __init__(self, root: Schema) -> None:
        self._definitions: dict[str, object] = {
            f"#/{place}/{name}": each
            for place in ("$defs", "definitions")
            for name, each in _object(root.get(place, {}), place).items()
        }
        self._nodes = 0

    def rebuilt(self, given: object, where: str, open_references: tuple[str, ...] = (), depth: int = 0) -> Schema:
        self._nodes += 1
        if self._nodes > NODES_MAX or depth > DEPTH_MAX:
            raise SchemaRefused(f"{where}: the schema has more than {NODES_MAX} nodes or {DEPTH_MAX} levels")
        node = _object(given, where)
        if "$ref" in node:
            reference = node["$ref"]
            if reference not in self._definitions or reference in open_references:
                raise SchemaRefused(f"{where}: $ref must name an entry of $defs, and must not lead back to itself")
            return self.rebuilt(self._definitions[reference], where, (*open_references, reference), depth)
        made: Schema = {}
        for keyword, value in node.items():
            if keyword in _DROPPED:
                continue
            at = f"{where}/{keyword[:NAME_CHARS_MAX]}"
            match keyword:
                case "type":
                    made[keyword] = _types(value, at)
                case "properties":
                    made[keyword] = {
                        name: self.rebuilt(each, f"{at}/{name[:NAME_CHARS_MAX]}", open_references, depth + 1)
                        for name, each in _object(value, at).items()
                    }
                case "items":
                    made[keyword] = self.rebuilt(value, at, open_references, depth + 1)
                case "anyOf":
                    made[keyword] = [
                        self.rebuilt(each, f"{at}/{place}", open_references, depth + 1)
                        for place, each in enumerate(_list(value, at))
                    ]
                case "const":
                    made["enum"] = _scalars([value], at)
                case "enum":
                    made[keyword] = _scalars(_list(value, at), at)
                case "required" if all(isinstance(name, str) for name in _list(value, at, least=0)):
                    made[keyword] = value
                case "additionalProperties" if isinstance(value, bool):
                    made[keyword] = value
                case "description" if isinstance(value, str):
                    made[keyword] = value
                case _ if keyword in _BOUNDS and _is(value, "number"):
                    made[keyword] = value
                case _ if keyword in _COUNTS and _is(value, "integer") and 0 <= value <= ITEMS_MAX:
                    made[keyword] = value
                case _:
                    raise SchemaRefused(f"{at}: this keyword, or its value, is not supported")
        return made


def rebuilt_schema(given: Schema) -> Schema:
    """The schema of an object, of supported keywords alone and without references; raises SchemaRefused."""
    made = _Rebuilding(given).rebuilt(given, "schema")
    if made.get("type") != "object":
        raise SchemaRefused("schema/type: an answer is an object")
    if len(json.dumps(made)) > CHARS_MAX:
        raise SchemaRefused(f"schema: it has more than {CHARS_MAX} characters")
    return made


def violation(schema: Mapping[str, Any], value: object, where: str) -> str | None:
    """The first place at which a value breaks a schema that `rebuilt_schema` made, and how; None for a valid one."""
    return next(_violations(schema, value, where), None)


def _violations(schema: Mapping[str, Any], value: object, where: str) -> Iterator[str]:
    types: str | Sequence[str] = schema.get("type", ())
    named = (types,) if isinstance(types, str) else types
    if named and not any(_is(value, each) for each in named):
        yield f"{where}: must be of type {' or '.join(named)}"
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        yield f"{where}: is none of the values of its enum"
    if "anyOf" in schema and all(violation(each, value, where) is not None for each in schema["anyOf"]):
        yield f"{where}: fits no schema of its anyOf"
    match value:
        case dict():
            yield from _object_violations(schema, cast("dict[str, object]", value), where)
        case list():
            items = cast("list[object]", value)
            if not schema.get("minItems", 0) <= len(items) <= schema.get("maxItems", len(items)):
                yield f"{where}: has {len(items)} items"
            for place, each in enumerate(items if "items" in schema else ()):
                yield from _violations(schema["items"], each, f"{where}/{place}")
        case int() | float() if not isinstance(value, bool):
            yield from _number_violations(schema, value, where)
        case _:
            return


def _object_violations(schema: Mapping[str, Any], value: Mapping[str, object], where: str) -> Iterator[str]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}/{name[:NAME_CHARS_MAX]}: is missing"
    for name, each in value.items():
        if name in properties:
            yield from _violations(properties[name], each, f"{where}/{name[:NAME_CHARS_MAX]}")
        elif schema.get("additionalProperties") is False:
            yield f"{where}/{name[:NAME_CHARS_MAX]}: is not expected"


def _number_violations(schema: Mapping[str, Any], value: float, where: str) -> Iterator[str]:
    below = value < schema.get("minimum", value) or (
        "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]
    )
    above = value > schema.get("maximum", value) or (
        "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]
    )
    if below or above:
        yield f"{where}: is out of bounds"


def _is(value: object, named: str) -> bool:
    """Whether a JSON value has a type; 3.0 is an integer, and true is no number."""
    if isinstance(value, bool) or named == "boolean":
        return isinstance(value, bool) and named == "boolean"
    whole = named == "integer" and isinstance(value, float) and value.is_integer()
    return whole or isinstance(value, _TYPES[named])


def _same(value: object, other: object) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _object(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise SchemaRefused(f"{where}: must be an object")
    return cast("dict[str, Any]", given)


def _list(given: object, where: str, least: int = 1) -> list[Any]:
    if not isinstance(given, list) or not least <= len(cast("list[Any]", given)) <= ENUM_MAX:
        raise SchemaRefused(f"{where}: must be a list of {least} to {ENUM_MAX} entries")
    return cast("list[Any]", given)


def _scalars(given: list[Any], where: str) -> list[Any]:
    if any(isinstance(each, dict | list) for each in given):
        raise SchemaRefused(f"{where}: only texts, numbers, true, false and null are supported")
    return given


def _types(given: object, where: str) -> object:
    for each in [given] if isinstance(given, str) else _list(given, where):
        if each not in _TYPES:
            raise SchemaRefused(f"{where}: must be one of {', '.join(_TYPES)}, or a list of them")
    return given
