"""A value for a JSON schema that names none of the known shapes.

Understood are `type`, `enum`, `const`, `properties`, `required`, `items`, bounds, local `$ref` and the first branch of
`anyOf` and `oneOf`. A schema with a keyword that would need a search is refused.
"""

import math
import re
from collections.abc import Callable
from random import Random
from typing import Any, cast

from pydantic import JsonValue

_UNSUPPORTED = frozenset(
    "pattern multipleOf not if allOf contains uniqueItems prefixItems patternProperties propertyNames minProperties "
    "exclusiveMinimum exclusiveMaximum dependentRequired dependentSchemas".split()
)
_DEPTH_MAX = 32
# Deeper than this only required properties and items are written, so that a recursive schema ends.
_OPTIONAL_DEPTH_MAX = 6
_NUMBER_SPAN = 100
# A format stands in a description, as agents are told it.
_FORMAT = re.compile(r"\(format: ([a-z-]+)")
_FORMATTED = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "ann@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_EXTRA_ITEMS = 2


class SchemaUnsupported(Exception):
    """A schema that is malformed, has no value, or has a keyword that is not understood."""


def schema_value(
    schema: object, chance: Random, sentence: Callable[[], str], root: object = None, depth: int = 0
) -> JsonValue:
    """A value that is valid under `schema`; `$ref` starts at `root`. Raises SchemaUnsupported, or what Python meets."""
    root = schema if root is None else root

    def inner(part: object) -> JsonValue:
        return schema_value(part, chance, sentence, root, depth + 1)

    if schema is True:
        return sentence()
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        raise SchemaUnsupported(f"no value is found for {schema!r:.80}")
    known = cast("dict[str, Any]", schema)
    if unsupported := _UNSUPPORTED.intersection(known):
        raise SchemaUnsupported(f"{', '.join(sorted(unsupported))}: not simulated")
    if "$ref" in known:
        return inner(_resolved(known["$ref"], root))
    branches: list[object] = known.get("anyOf") or known.get("oneOf") or []
    if branches:
        return inner(branches[0])
    if "const" in known or "enum" in known:
        return chance.choice(known.get("enum") or [known["const"]])
    optional = depth <= _OPTIONAL_DEPTH_MAX
    types: str | list[str] = known.get("type", "object" if "properties" in known else "string")
    match types if isinstance(types, str) else types[0]:
        case "object":
            properties, required = known.get("properties", {}), known.get("required", [])
            names = [name for name in properties if optional or name in required]
            names += [name for name in required if name not in properties]
            return {name: inner(properties.get(name, known.get("additionalProperties", True))) for name in names}
        case "array":
            low = known.get("minItems", 0)
            high = min(known.get("maxItems", math.inf), low + _EXTRA_ITEMS) if optional else low
            return [inner(known.get("items", True)) for _ in range(chance.randint(low, high))]
        case "string":
            if (told := _FORMAT.search(known.get("description", ""))) and told[1] in _FORMATTED:
                return _FORMATTED[told[1]]
            return sentence()[: known.get("maxLength")].ljust(known.get("minLength", 0), ".")
        case "integer" | "number" as number:
            low = known.get("minimum", min(0, known.get("maximum", 0)))
            high = known.get("maximum", low + _NUMBER_SPAN)
            if low > high:
                raise SchemaUnsupported("minimum exceeds maximum")
            whole = number == "integer"
            return chance.randint(math.ceil(low), math.floor(high)) if whole else chance.uniform(low, high)
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
        case unknown:
            raise SchemaUnsupported(f"type {unknown!r:.80} is unknown")


def _resolved(reference: str, root: object) -> object:
    if reference.partition("/")[0] != "#":
        raise SchemaUnsupported(f"$ref {reference!r:.80} is not local")
    for step in reference.split("/")[1:]:
        root = cast("dict[str, object]", root)[step]
    return root
