"""Checks a tool's structured result against the tool's schema, as a child of its own.

Both come from the tool server. A pattern may take for ever, and so may alternatives that refer to each other.
"""

import json
import sys
from typing import Any

from jsonschema import SchemaError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable


def fault(schema: dict[str, Any], value: Any) -> str:  # noqa: ANN401 -- any JSON value
    """The reason why a value does not fit a schema, or why the schema is none; empty where it fits."""
    try:
        kind = validator_for(schema)
        kind.check_schema(schema)
        # With an empty registry no reference leaves the schema.
        error = next(kind(schema, registry=Registry()).iter_errors(value), None)
    except SchemaError as error:
        return f"the tool's outputSchema is no JSON Schema: {error.message}"
    except Unresolvable as error:
        return f"the tool's outputSchema has a reference that leads nowhere: {error}"
    return "" if error is None else f"the result does not fit the tool's outputSchema: {error.message}"


def main() -> None:
    """Check the `value` of standard input by the `schema` there; prints the fault as JSON."""
    order = json.load(sys.stdin)
    print(json.dumps(fault(order["schema"], order["value"])))
