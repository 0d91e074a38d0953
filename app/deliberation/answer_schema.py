"""The JSON Schema that a client may demand of answers: a bounded subset, which engines' grammars can enforce.

An engine never gets a client's schema as it came, but a schema that is rebuilt from the keywords below, with references
resolved. Keywords of which engines' grammars differ become words of a description: agents read them, and nothing
enforces them. A client's regular expression is never run, because such an expression can stall an engine and this check
alike.

Two bounds hold for the work of a check. Acceptance refuses a schema whose smallest valid answer is expensive. A check
that exceeds its budget of steps finds the answer invalid.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any, cast

NODES_MAX = 512
# A body nests 32 levels, of which the properties of an object take two: raise `JSON_DEPTH_MAX` with this bound.
DEPTH_MAX = 16
ENUM_MAX = 256
ITEMS_MAX = 1_024
CHARS_MAX = 16_384
NAME_CHARS_MAX = 64
ONE_OF_MAX = 32
# A step is one value against one node. The longest answers have about 40,000 values; this many steps take 0.2 s.
STEPS_MAX = 250_000
LEAST_STEPS_MAX = STEPS_MAX // 10

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_KINDS: Mapping[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    bool: "boolean",
    type(None): "null",
}
_DROPPED = {
    *("$schema", "$id", "$comment", "$anchor", "$defs", "definitions", "title", "default", "example", "examples"),
    *("deprecated", "readOnly", "writeOnly", "discriminator"),
}
_TOLD = {
    *("format", "pattern", "minLength", "maxLength", "multipleOf", "uniqueItems", "minProperties", "maxProperties"),
    *("propertyNames", "contentEncoding", "contentMediaType"),
}
_INSTEAD: Mapping[str, str] = {
    "allOf": "Merge its entries into one.",
    "oneOf": f"Write anyOf, or up to {ONE_OF_MAX} entries that the constant of a required property tells apart.",
    "patternProperties": "List the names under properties, or give additionalProperties a schema.",
    "prefixItems": "Name the entries as properties of an object.",
    "nullable": 'Write "null" into the list of types.',
    "$ref": "Write the recursion out to the levels that you need, and no keyword but description beside $ref.",
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minItems", "maxItems")

Schema = dict[str, Any]


class SchemaRefused(ValueError):
    """A schema is malformed, too large, or uses a keyword outside the subset; the text names the place.

    `remedy` is how to write it instead; empty where the list of keywords says it.
    """

    def __init__(self, detail: str, keyword: str = "") -> None:
        super().__init__(detail)
        self.remedy = _INSTEAD.get(keyword, "")


class TooManySteps(Exception):
    """A check has used up its budget of steps."""


@dataclass(slots=True)
class StepBudget:
    """The steps that are left to the checks of one reply."""

    steps: int = STEPS_MAX

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise TooManySteps


class _Rebuilding:
    """`kept` are keywords that stay, though nothing is checked by them."""

    def __init__(self, root: Schema, kept: frozenset[str] = frozenset()) -> None:
        self._root = root
        self._kept = kept
        self.nodes = 0
        self._chars = 0
        # The replaced keywords, each with the keyword that has its meaning now.
        self.replaced: dict[str, str] = {}

    # Long by its cases, one for each keyword.
    def rebuilt(self, schema: object, where: str, open_references: tuple[str, ...] = (), depth: int = 0) -> Schema:
        self.nodes += 1
        if self.nodes > NODES_MAX or depth > DEPTH_MAX:
            raise SchemaRefused(f"{where}: the schema has more than {NODES_MAX} nodes or {DEPTH_MAX} levels")
        node = {} if schema is True else _object(schema, where)
        if "$ref" in node:
            reference = node["$ref"]
            if reference in open_references:
                raise SchemaRefused(f"{where}: $ref must not lead back to itself", "$ref")
            return self._beside(
                node, "$ref", self._target(reference, where), where, (*open_references, reference), depth
            )
        if isinstance(node.get("allOf"), list) and len(node["allOf"]) == 1:
            return self._beside(node, "allOf", node["allOf"][0], where, open_references, depth)
        made: Schema = {}
        told: list[str] = []
        for keyword, value in node.items():
            if keyword in self._kept:
                made[keyword] = value
                continue
            if keyword in _DROPPED or keyword.startswith("x-"):
                continue
            at = f"{where}/{keyword[:NAME_CHARS_MAX]}"
            self._spend_chars(keyword, value)
            match keyword:
                case "type":
                    made[keyword] = _types(value, at)
                case "properties":
                    made[keyword] = {
                        name: self.rebuilt(property_schema, f"{at}/{name[:NAME_CHARS_MAX]}", open_references, depth + 1)
                        for name, property_schema in _object(value, at).items()
                    }
                case "items":
                    made[keyword] = self.rebuilt(value, at, open_references, depth + 1)
                case "anyOf":
                    made[keyword] = [
                        self.rebuilt(branch, f"{at}/{place}", open_references, depth + 1)
                        for place, branch in enumerate(_list(value, at))
                    ]
                case "oneOf" if "anyOf" not in node:
                    made["anyOf"] = self._one_of(node, at, open_references, depth)
                case "prefixItems" if "items" not in node and all(
                    item_schema == value[0] for item_schema in _list(value, at)
                ):
                    self.replaced[keyword] = "items"
                    made["items"] = self.rebuilt(value[0], at, open_references, depth + 1)
                case "const":
                    made["enum"] = _scalars([value], at)
                case "enum":
                    made[keyword] = _scalars(_list(value, at), at)
                case "required" if all(isinstance(name, str) for name in _list(value, at, least=0)):
                    made[keyword] = value
                case "additionalProperties" if isinstance(value, bool):
                    made[keyword] = value
                case "additionalProperties":
                    made[keyword] = self.rebuilt(value, at, open_references, depth + 1)
                case "description" if isinstance(value, str):
                    made[keyword] = value
                case _ if keyword in _BOUNDS and _is_number(value):
                    made[keyword] = value
                case _ if (
                    keyword in _COUNTS and _is_number(value) and _kind(value) == "integer" and 0 <= value <= ITEMS_MAX
                ):
                    made[keyword] = value
                case _ if keyword in _TOLD:
                    if value not in (False, {"type": "string"}):
                        self.replaced[keyword] = "description"
                        told.append(f"{keyword}: {value if isinstance(value, str) else json.dumps(value)}")
                case _:
                    raise SchemaRefused(f"{at}: this keyword, or its value, is not supported", keyword)
        if told:
            described = made.pop("description", "")
            made["description"] = f"{described}{' ' * bool(described)}({'; '.join(told)})"
            self._spend_chars("description", told)
        if _least_steps(made) > LEAST_STEPS_MAX:
            raise SchemaRefused(
                f"{where}: its smallest answer takes more than {LEAST_STEPS_MAX:,} steps to check; lower `minItems`, "
                "or list fewer alternatives in `anyOf`"
            )
        return made

    def _spend_chars(self, keyword: str, value: object) -> None:
        """References repeat texts, so that they are counted before the schema has them."""
        if keyword in ("description", "enum", "const", "required"):
            texts = cast("list[object]", value) if isinstance(value, list) else [value]
            self._chars += sum(len(text) for text in texts if isinstance(text, str))
        if self._chars > CHARS_MAX:
            raise SchemaRefused(f"schema: it has more than {CHARS_MAX} characters")

    def _target(self, reference: object, where: str) -> object:
        """The place that a JSON pointer (RFC 6901) within the schema names."""
        target: object = self._root
        steps = (
            reference.removeprefix("#/").split("/") if isinstance(reference, str) and reference[:2] == "#/" else [""]
        )
        for step in steps:
            name, inner = step.replace("~1", "/").replace("~0", "~"), _members(target)
            if name not in inner:
                raise SchemaRefused(f"{where}: $ref must name a place in this schema, such as an entry of $defs")
            target = inner[name]
        return target

    def _beside(
        self, node: Schema, keyword: str, target: object, where: str, open_references: tuple[str, ...], depth: int
    ) -> Schema:
        """The schema under a keyword of another schema, with the description beside the keyword."""
        others = {name: value for name, value in node.items() if name != keyword}
        beside = self.rebuilt(others, where, open_references, depth) if others.keys() - _DROPPED else {}
        if beside.keys() - {"description"}:
            raise SchemaRefused(f"{where}: {min(beside.keys() - {'description'})} stands beside {keyword}", keyword)
        made = self.rebuilt(target, where, open_references, depth)
        described = " ".join(schema["description"] for schema in (beside, made) if "description" in schema)
        return made | ({"description": described} if described else {})

    def _one_of(self, node: Schema, at: str, open_references: tuple[str, ...], depth: int) -> list[Schema]:
        """The entries as those of anyOf, which means the same where no value fits two."""
        discriminator = node.get("discriminator")
        tag: object = cast("Schema", discriminator).get("propertyName") if isinstance(discriminator, dict) else None
        entries = [
            self.rebuilt(branch, f"{at}/{place}", open_references, depth + 1)
            for place, branch in enumerate(_list(node["oneOf"], at))
        ]
        for entry in entries:
            if isinstance(tag, str) and tag in entry.get("properties", {}) and tag not in entry.get("required", ()):
                # A constant with a default is not required in pydantic's schemas.
                entry["required"] = [*entry.get("required", ()), tag]
        if len(entries) > ONE_OF_MAX or not all(_apart(*pair) for pair in combinations(entries, 2)):
            raise SchemaRefused(f"{at}: a value may fit two of its entries", "oneOf")
        self.replaced["oneOf"] = "anyOf"
        return entries


def _members(value: object) -> Mapping[str, object]:
    match value:
        case dict():
            return cast("Schema", value)
        case list() if len(cast("list[object]", value)) <= ENUM_MAX:
            return {str(place): element for place, element in enumerate(cast("list[object]", value))}
        case _:
            return {}


def _apart(one: Schema, other: Schema) -> bool:
    """Whether no value fits both, by their types, their constants, or those of a property that both require."""

    def values(schema: Schema) -> set[tuple[bool, object]] | None:
        return {(isinstance(constant, bool), constant) for constant in schema["enum"]} if "enum" in schema else None

    def differ(left: Schema, right: Schema) -> bool:
        pair = values(left), values(right)
        return pair[0] is not None and pair[1] is not None and pair[0].isdisjoint(pair[1])

    shared = _kinds(one) & _kinds(other)
    if not shared or differ(one, other):
        return True
    both = set(one.get("required", ())) & set(other.get("required", ()))
    properties = [one.get("properties", {}), other.get("properties", {})]
    return shared == {"object"} and any(differ(*(schemas.get(name, {}) for schemas in properties)) for name in both)


def _kinds(schema: Schema) -> set[str]:
    types = schema.get("type", [*_TYPES])
    return {"number" if kind == "integer" else kind for kind in ([types] if isinstance(types, str) else types)}


def replaced_keywords(schema: Schema) -> Mapping[str, str]:
    """The keywords of a schema that `rebuilt_schema` replaces, each with the keyword that has its meaning then."""
    rebuilding = _Rebuilding(schema)
    rebuilding.rebuilt(schema, "schema")
    return rebuilding.replaced


def rebuilt_schema(schema: Schema) -> Schema:
    """The schema of an object, of supported keywords alone and without references; raises SchemaRefused."""
    made = _Rebuilding(schema).rebuilt(schema, "schema")
    if made.get("type") != "object":
        raise SchemaRefused("schema/type: an answer is an object")
    if len(json.dumps(made)) > CHARS_MAX:
        raise SchemaRefused(f"schema: it has more than {CHARS_MAX} characters")
    return made


def rebuilt_parameters(schema: Schema) -> tuple[Schema, int]:
    """The schema of a tool's arguments, as `rebuilt_schema` makes one, with its defaults, and its number of nodes.

    Raises SchemaRefused.
    """
    root = {"type": "object"} | schema
    rebuilding = _Rebuilding(root, frozenset({"default"}))
    made = rebuilding.rebuilt(root, "schema")
    if made.get("type") != "object":
        raise SchemaRefused("schema/type: the arguments of a tool are an object")
    if len(json.dumps(made)) > CHARS_MAX:
        raise SchemaRefused(f"schema: it has more than {CHARS_MAX} characters")
    return made, rebuilding.nodes


def _least_steps(schema: Schema) -> int:
    """The steps that a check of the smallest valid value may take."""
    properties: Schema = schema.get("properties", {})
    steps = 1 + sum(_least_steps(properties[name]) if name in properties else 1 for name in schema.get("required", ()))
    steps += schema.get("minItems", 0) * (_least_steps(schema["items"]) if "items" in schema else 1)
    return steps + sum(_least_steps(branch) for branch in schema.get("anyOf", ()))


# The typed value of an enum: true is not 1, but 1.0 is.
_Typed = tuple[bool, object]


@dataclass(frozen=True, slots=True)
class _Node:
    """A schema made ready for its check. `alternatives` and `constants` are the branches of its `anyOf`.

    A branch with an enum is found by the value, any other one by the value's kind, and only those are tried.
    """

    schema: Schema
    required: tuple[str, ...]
    kinds: frozenset[str]
    named: str
    enum: frozenset[_Typed] | None
    properties: Mapping[str, "_Node"]
    others: "_Node | None"
    items: "_Node | None"
    alternatives: Mapping[str, "tuple[_Node, ...]"] | None
    constants: Mapping[_Typed, "tuple[_Node, ...]"] = field(default_factory=dict["_Typed", "tuple[_Node, ...]"])


def _node(schema: Schema) -> _Node:
    types: list[str] = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    branches = [_node(branch) for branch in schema["anyOf"]] if "anyOf" in schema else None
    return _Node(
        schema=schema,
        required=tuple(dict.fromkeys(schema.get("required", ()))),
        kinds=frozenset([*(types or _TYPES), *(["integer"] if "number" in types else [])]),
        named=" or ".join(types),
        enum=frozenset(map(_typed, schema["enum"])) if "enum" in schema else None,
        properties={name: _node(property_schema) for name, property_schema in schema.get("properties", {}).items()},
        others=_node(schema["additionalProperties"]) if isinstance(schema.get("additionalProperties"), dict) else None,
        items=_node(schema["items"]) if "items" in schema else None,
        alternatives=None
        if branches is None
        else {kind: tuple(b for b in branches if b.enum is None and kind in b.kinds) for kind in _TYPES},
        constants={
            value: tuple(b for b in branches or () if b.enum is not None and value in b.enum)
            for value in {value for b in branches or () for value in b.enum or ()}
        },
    )


@lru_cache(maxsize=64)
def _ready(schema: str) -> _Node:
    return _node(json.loads(schema))


def violation(schema: str, value: object, where: str, budget: StepBudget) -> str | None:
    """The first place at which a value breaks a schema that `rebuilt_schema` made, as JSON, and how.

    None for a valid value. Raises TooManySteps.
    """
    fault = _fault(_ready(schema), value, budget)
    return None if fault is None else where + fault


def _fault(node: _Node, value: object, budget: StepBudget) -> str | None:
    """The fault behind its path, as in "/tags/0: is none of the values of its enum"."""
    budget.spend(1)
    kind = _kind(value)
    if kind not in node.kinds:
        return f": must be of type {node.named}"
    scalar = kind not in ("object", "array")
    if node.enum is not None and not (scalar and _typed(value) in node.enum):
        return ": is none of the values of its enum"
    if node.alternatives is not None:
        branches = node.alternatives[kind] + (node.constants.get(_typed(value), ()) if scalar else ())
        faults = list[str]()
        for branch in branches:
            if (fault := _fault(branch, value, budget)) is None:
                break
            faults.append(fault)
        else:
            return _fault_of_alternatives(faults)
    match value:
        case dict():
            return _object_fault(node, cast("dict[str, object]", value), budget)
        case list():
            return _list_fault(node, cast("list[object]", value), budget)
        case int() | float() if not isinstance(value, bool):
            return _number_fault(node.schema, value)
        case _:
            return None


def _fault_of_alternatives(faults: Iterable[str]) -> str:
    """The deepest of the faults, if there is one: the value was meant for that alternative."""

    def depth(fault: str) -> tuple[int, bool]:
        return fault.count("/"), not fault.endswith("is missing")

    by_depth = dict[tuple[int, bool], set[str]]()
    for fault in faults:
        by_depth.setdefault(depth(fault), set()).add(fault)
    deepest = by_depth[max(by_depth)] if by_depth else set[str]()
    return deepest.pop() if len(deepest) == 1 else ": fits no schema of its anyOf"


def _object_fault(node: _Node, value: Mapping[str, object], budget: StepBudget) -> str | None:
    budget.spend(len(value))
    for name in node.required:
        if name not in value:
            return f"/{name[:NAME_CHARS_MAX]}: is missing"
    closed = node.schema.get("additionalProperties") is False
    for name, member in value.items():
        if name in node.properties:
            fault = _fault(node.properties[name], member, budget)
        elif node.others is not None:
            fault = _fault(node.others, member, budget)
        else:
            fault = ": is not expected" if closed else None
        if fault is not None:
            return f"/{name[:NAME_CHARS_MAX]}{fault}"
    return None


def _list_fault(node: _Node, value: list[object], budget: StepBudget) -> str | None:
    if not node.schema.get("minItems", 0) <= len(value) <= node.schema.get("maxItems", len(value)):
        return f": has {len(value)} items"
    if node.items is not None:
        for place, element in enumerate(value):
            if (fault := _fault(node.items, element, budget)) is not None:
                return f"/{place}{fault}"
    return None


def _number_fault(schema: Schema, value: float) -> str | None:
    below = value < schema.get("minimum", value) or (
        "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]
    )
    above = value > schema.get("maximum", value) or (
        "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]
    )
    return ": is out of bounds" if below or above else None


def _kind(value: object) -> str:
    """The narrowest type of a JSON value; 3.0 is an integer, and true is no number."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    return _KINDS[type(value)]


def _typed(value: object) -> _Typed:
    return isinstance(value, bool), value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SchemaRefused(f"{where}: must be an object")
    return cast("dict[str, Any]", value)


def _list(value: object, where: str, least: int = 1) -> list[Any]:
    if not isinstance(value, list) or not least <= len(cast("list[Any]", value)) <= ENUM_MAX:
        raise SchemaRefused(f"{where}: must be a list of {least} to {ENUM_MAX} entries")
    return cast("list[Any]", value)


def _scalars(scalars: list[Any], where: str) -> list[Any]:
    if any(isinstance(scalar, dict | list) for scalar in scalars):
        raise SchemaRefused(f"{where}: only texts, numbers, true, false and null are supported")
    return scalars


def _types(types: object, where: str) -> object:
    for kind in [types] if isinstance(types, str) else _list(types, where):
        if not isinstance(kind, str) or kind not in _TYPES:
            raise SchemaRefused(f"{where}: must be one of {', '.join(_TYPES)}, or a list of them")
    return types
