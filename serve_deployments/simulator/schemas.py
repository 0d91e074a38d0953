"""JSON Schemas as data: references resolved, branches merged, and a check of a value against what is supported.

The check exists because some keywords (`oneOf`, `not`, `if`, `contains`, …) cannot be built towards, only tried:
a value is drawn and kept when it is valid.
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

# Any JSON value; what reads one narrows it.
Json: TypeAlias = Any
Schema: TypeAlias = Mapping[str, Json] | bool

NESTING_MAX = 64
_NUMBER_SPAN = 100

# Keywords that the generator cannot build towards: a value drawn under one of them is checked afterwards.
TRIED_KEYWORDS = frozenset(
    "allOf oneOf anyOf not if contains patternProperties propertyNames dependentRequired dependentSchemas".split()
)
_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
_NUMBER = (int, float)


class SchemaRefused(Exception):
    """A schema that is not supported, not valid, or that no value was found for; the text says where and why."""


def items_of(value: object) -> list[Json]:
    """`value` when it is a list; SchemaRefused otherwise."""
    if not isinstance(value, list):
        raise SchemaRefused(f"a list was expected, not {value!r:.80}")
    return cast("list[Json]", value)


def object_of(value: object) -> dict[str, Json]:
    """`value` when it is an object; SchemaRefused otherwise."""
    if not isinstance(value, dict):
        raise SchemaRefused(f"an object was expected, not {value!r:.80}")
    return cast("dict[str, Json]", value)


def subschema(value: object) -> Schema:
    """`value` when it can be a schema (an object or a boolean); SchemaRefused otherwise."""
    return value if isinstance(value, bool) else object_of(value)


def whole_number(schema: Mapping[str, Json], keyword: str, default: int) -> int:
    """The count that `keyword` holds (2.0 is 2), or `default`; SchemaRefused when it is no count."""
    value = schema.get(keyword, default)
    if isinstance(value, bool) or not isinstance(value, _NUMBER) or value < 0 or value != int(value):
        raise SchemaRefused(f"`{keyword}` must be a whole number, not {value!r:.80}")
    return int(value)


def number_bounds(schema: Mapping[str, Json]) -> tuple[Fraction, Fraction, bool, bool]:
    """A number's lower and upper bound (small ones where none is named), and whether each is itself excluded."""

    def bound(inclusive: str, exclusive: str, *, lower: bool) -> tuple[Fraction | None, bool]:
        found: list[tuple[Fraction, bool]] = []
        for keyword in (inclusive, exclusive):
            value = schema.get(keyword)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise SchemaRefused(f"`{keyword}` must be a number, not {value!r:.80}")
            found.append((Fraction(str(value)), keyword == exclusive))
        if not found:
            return None, False
        chosen = max(found) if lower else min(found, key=lambda each: (each[0], not each[1]))
        return chosen

    low, open_low = bound("minimum", "exclusiveMinimum", lower=True)
    high, open_high = bound("maximum", "exclusiveMaximum", lower=False)
    if low is None:
        low = Fraction(0) if high is None or high > 0 else high - _NUMBER_SPAN
    if high is None:
        high = max(low, Fraction(0)) + _NUMBER_SPAN
    return low, high, open_low, open_high


def resolve(reference: object, root: Schema) -> Schema:
    """The schema behind a local reference (`#`, `#/$defs/name`); SchemaRefused for any other."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaRefused(f"`$ref` {reference!r:.200} is not local: only `#/…` is supported")
    found: Json = root
    for token in reference.split("/")[1:]:
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = cast("dict[str, Json]", found)[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(cast("list[Json]", found)):
            found = cast("list[Json]", found)[int(key)]
        else:
            raise SchemaRefused(f"`$ref` {reference!r:.200} points nowhere")
    return subschema(found)


def types_of(schema: Mapping[str, Json]) -> tuple[str, ...]:
    """The types that `schema` names, or () when it names none."""
    named = schema.get("type")
    if named is None:
        return ()
    return (named,) if isinstance(named, str) else tuple(str(kind) for kind in items_of(named))


def merge(first: Schema, second: Schema) -> Schema:
    """A schema that holds where both hold, as far as keywords can be combined; SchemaRefused where they cannot."""
    if isinstance(first, bool) or isinstance(second, bool):
        if first is False or second is False:
            return False
        return second if first is True else first
    merged = dict(first)
    for keyword, value in second.items():
        merged[keyword] = _merged(keyword, merged[keyword], value) if keyword in merged else value
    return merged


def _merged(keyword: str, created: Json, theirs: Json) -> Json:
    if created == theirs or keyword in ("title", "description", "default", "examples", "$defs", "definitions"):
        return created
    if keyword in _LARGER:
        return max(created, theirs)
    if keyword in _SMALLER:
        return min(created, theirs)
    match keyword:
        case "type":
            return _common_types(types_of({"type": created}), types_of({"type": theirs}))
        case "required":
            return list(dict.fromkeys([*items_of(created), *items_of(theirs)]))
        case "properties":
            both = dict(object_of(created))
            for name, schema in object_of(theirs).items():
                both[name] = merge(subschema(both.get(name, True)), subschema(schema))
            return both
        case "enum":
            allowed = {identity(value) for value in items_of(theirs)}
            return [value for value in items_of(created) if identity(value) in allowed]
        case "items" | "additionalProperties":
            return merge(subschema(created), subschema(theirs))
        case "allOf":
            return [*items_of(created), *items_of(theirs)]
        case "uniqueItems":
            return bool(created) or bool(theirs)
        case _:
            raise SchemaRefused(f"two different `{keyword}` for one value are not supported")


def _common_types(created: tuple[str, ...], theirs: tuple[str, ...]) -> list[str]:
    common = [kind for kind in created if kind in theirs]
    if "integer" not in common and {"integer", "number"} <= {*created, *theirs}:
        common.append("integer")
    return common


def identity(value: Json) -> Hashable:
    """A key that is equal for equal JSON values: 1 is 1.0, but not true."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("list", tuple(identity(item) for item in cast("list[Json]", value)))
    if isinstance(value, dict):
        return ("dict", frozenset((name, identity(item)) for name, item in cast("dict[str, Json]", value).items()))
    return value


def is_valid(schema: Schema, value: Json, root: Schema) -> bool:
    """Whether `value` meets `schema`; `root` is where its local references start."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not is_valid(resolve(schema["$ref"], root), value, root):
        return False
    if "const" in schema and identity(schema["const"]) != identity(value):
        return False
    if "enum" in schema and identity(value) not in {identity(option) for option in items_of(schema["enum"])}:
        return False
    named = types_of(schema)
    if named and not any(_TYPES.get(kind, _never)(value) for kind in named):
        return False
    return _holds_by_type(schema, value, root) and _holds_combined(schema, value, root)


def _never(value: Json) -> bool:
    return False


def _is_number(value: Json) -> bool:
    return isinstance(value, _NUMBER) and not isinstance(value, bool)


_TYPES: Mapping[str, Callable[[Json], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
}


def _holds_by_type(schema: Mapping[str, Json], value: Json, root: Schema) -> bool:
    if isinstance(value, str):
        size = len(value)
        pattern = schema.get("pattern")
        return schema.get("minLength", 0) <= size <= schema.get("maxLength", size) and (
            pattern is None or re.search(pattern, value) is not None
        )
    if isinstance(value, dict):
        return _object_holds(schema, cast("dict[str, Json]", value), root)
    if isinstance(value, list):
        return _array_holds(schema, cast("list[Json]", value), root)
    return _number_holds(schema, value) if _is_number(value) else True


def _number_holds(schema: Mapping[str, Json], value: float) -> bool:
    step = schema.get("multipleOf")
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        and (step is None or Fraction(str(value)) % Fraction(str(step)) == 0)
    )


def _object_holds(schema: Mapping[str, Json], value: dict[str, Json], root: Schema) -> bool:
    size = len(value)
    if not schema.get("minProperties", 0) <= size <= schema.get("maxProperties", size):
        return False
    if any(name not in value for name in items_of(schema.get("required", []))):
        return False
    for name, others in object_of(schema.get("dependentRequired", {})).items():
        if name in value and any(other not in value for other in items_of(others)):
            return False
    for name, dependent in object_of(schema.get("dependentSchemas", {})).items():
        if name in value and not is_valid(subschema(dependent), value, root):
            return False
    names = subschema(schema.get("propertyNames", True))
    return all(
        is_valid(names, name, root) and all(is_valid(part, item, root) for part in property_schemas(schema, name))
        for name, item in value.items()
    )


def property_schemas(schema: Mapping[str, Json], name: str) -> list[Schema]:
    """Every schema that an object's `schema` puts on its property `name`."""
    found: list[Schema] = []
    declared = object_of(schema.get("properties", {}))
    if name in declared:
        found.append(subschema(declared[name]))
    for pattern, part in object_of(schema.get("patternProperties", {})).items():
        if re.search(pattern, name):
            found.append(subschema(part))
    return found or [subschema(schema.get("additionalProperties", True))]


def _array_holds(schema: Mapping[str, Json], value: list[Json], root: Schema) -> bool:
    size = len(value)
    if not schema.get("minItems", 0) <= size <= schema.get("maxItems", size):
        return False
    if schema.get("uniqueItems") and len({identity(item) for item in value}) < size:
        return False
    prefix = items_of(schema.get("prefixItems", []))
    rest = subschema(schema.get("items", True))
    for place, item in enumerate(value):
        if not is_valid(subschema(prefix[place]) if place < len(prefix) else rest, item, root):
            return False
    if "contains" in schema:
        found = sum(is_valid(subschema(schema["contains"]), item, root) for item in value)
        return schema.get("minContains", 1) <= found <= schema.get("maxContains", found)
    return True


def _holds_combined(schema: Mapping[str, Json], value: Json, root: Schema) -> bool:
    def met(keyword: str) -> list[bool]:
        return [is_valid(subschema(part), value, root) for part in items_of(schema.get(keyword, []))]

    if not all(met("allOf")):
        return False
    if "anyOf" in schema and not any(met("anyOf")):
        return False
    if "oneOf" in schema and sum(met("oneOf")) != 1:
        return False
    if "not" in schema and is_valid(subschema(schema["not"]), value, root):
        return False
    if "if" in schema:
        branch = "then" if is_valid(subschema(schema["if"]), value, root) else "else"
        return is_valid(subschema(schema.get(branch, True)), value, root)
    return True
