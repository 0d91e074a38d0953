"""Suggestions for misspelt names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

# A longer name is not compared, so that a suggestion costs little and no request decides how much.
GIVEN_CHARS_MAX = 64


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """`Did you mean X? ` for the known name closest to `given`, in any case; empty if none is close.

    It contains a known name and nothing of `given`.
    """
    if not isinstance(given, str) or len(given) > GIVEN_CHARS_MAX:
        return ""
    folded = {name.casefold(): name for name in known}
    close = get_close_matches(given.casefold(), folded, n=1)
    return f"Did you mean {folded[close[0]]}? " if close else ""


def field_names(model: type[BaseModel], location: Sequence[int | str]) -> set[str]:
    """The fields of the object at a location in the model's JSON; empty where there is none."""
    schema = _schema(model)
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for part in location:
        nodes = [_inner(each, part) for node in nodes for each in _alternatives(node, definitions)]
    return {name for node in nodes for each in _alternatives(node, definitions) for name in each.get("properties", ())}


def _inner(node: Mapping[str, Any], part: int | str) -> dict[str, Any]:
    return node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})


@lru_cache(maxsize=64)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _alternatives(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The node, the one that it refers to, and those of its union."""
    yield node
    referred = [definitions[node["$ref"].rpartition("/")[2]]] if "$ref" in node else []
    for each in (*referred, *node.get("anyOf", ())):
        yield from _alternatives(each, definitions)
