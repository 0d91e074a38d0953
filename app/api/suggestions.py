"""Suggestions for misspelt names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

# A longer name is not compared, so that a suggestion costs little and no request decides how much.
GIVEN_CHARS_MAX = 64
PLACES_DEPTH_MAX = 3


def did_you_mean(unknown: object, known: Iterable[str]) -> str:
    """`Did you mean X? ` for the known name, or its last part, closest to `unknown`; empty if none is close."""
    if not isinstance(unknown, str) or len(unknown) > GIVEN_CHARS_MAX:
        return ""
    folded = {name.casefold(): name for name in known}
    parts = [name for name in folded if name.rpartition(".")[2] == unknown.casefold()]
    close = parts if len(parts) == 1 else get_close_matches(unknown.casefold(), folded, n=1)
    return f"Did you mean {folded[close[0]]}? " if close else ""


def field_names(model: type[BaseModel], location: Sequence[int | str]) -> set[str]:
    return {name for node in _nodes_at(model, location) for name in node.get("properties", ())}


def required_names(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    return [name for node in _nodes_at(model, location) for name in node.get("required", ())]


@lru_cache(maxsize=64)
def field_places(model: type[BaseModel]) -> Mapping[str, tuple[str, ...]]:
    """The paths of the model's fields by name, as `constraints.timeout_seconds`; those inside lists are left out."""
    schema = _schema(model)
    definitions = schema.get("$defs", {})
    places: dict[str, tuple[str, ...]] = {}

    def walk(node: Mapping[str, Any], path: str, depth: int) -> None:
        for alternative in _alternatives(node, definitions):
            for name, inner in alternative.get("properties", {}).items():
                places[name] = (*places.get(name, ()), f"{path}{name}")
                if depth < PLACES_DEPTH_MAX:
                    walk(inner, f"{path}{name}.", depth + 1)

    walk(schema, "", 1)
    return places


def _nodes_at(model: type[BaseModel], location: Sequence[int | str]) -> list[Mapping[str, Any]]:
    schema = _schema(model)
    definitions = schema.get("$defs", {})
    nodes: list[Mapping[str, Any]] = [schema]
    for part in location:
        nodes = [
            alternative.get("items", {}) if isinstance(part, int) else alternative.get("properties", {}).get(part, {})
            for node in nodes
            for alternative in _alternatives(node, definitions)
        ]
    return [alternative for node in nodes for alternative in _alternatives(node, definitions)]


@lru_cache(maxsize=64)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _alternatives(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    referred = [definitions[node["$ref"].rpartition("/")[2]]] if "$ref" in node else []
    for alternative in (*referred, *node.get("anyOf", ())):
        yield from _alternatives(alternative, definitions)
