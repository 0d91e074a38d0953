"""The API reference as Markdown pages, from the OpenAPI document: one page per tag, and one with all schemas."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

_SCHEMAS = "schemas.md"
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
    "format": "{}",
}


def pages(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Titles and texts of the pages by file name, in the order of the document's tags."""
    operations = _operations(document)
    found = {
        f"{tag['name']}.md": (tag["name"].capitalize(), "\n".join(_page_of(tag, operations[tag["name"]])))
        for tag in document["tags"]
    }
    return {**found, _SCHEMAS: ("Schemas", "\n".join(_schemas(document["components"]["schemas"])))}


def _operations(document: Mapping[str, Any]) -> Mapping[str, list[tuple[str, Mapping[str, Any]]]]:
    """Titles and operations by tag; a webhook's request has the title `POST` to the receiver."""
    found = defaultdict[str, list[tuple[str, Mapping[str, Any]]]](list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                found[operation["tags"][0]].append((f"`{method.upper()} {path}`", operation))
    for methods in document.get("webhooks", {}).values():
        for method, operation in methods.items():
            found[operation["tags"][0]].append((f"`{method.upper()}` to the receiver", operation))
    return found


def _page_of(tag: Mapping[str, Any], operations: list[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield f"# {tag['name'].capitalize()}\n\n{tag['description']}.\n"
    for title, operation in operations:
        yield f"## {title}\n\n**{operation['summary']}.** {operation.get('description', '')}\n"
        yield from _parameters(operation.get("parameters", []))
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            yield f"Body, `{media_type}`: {_type(content['schema'])}\n"
            yield from _examples(content.get("examples", {}))
        yield "| status | meaning | body |\n|---|---|---|"
        for status, response in operation["responses"].items():
            bodies = (f"{_type(each['schema'])}" for each in response.get("content", {}).values() if "schema" in each)
            yield f"| {status} | {_cell(response['description'])} | {' or '.join(dict.fromkeys(bodies))} |"
        yield ""


def _parameters(parameters: list[Mapping[str, Any]]) -> Iterator[str]:
    named = [each for each in parameters if "name" in each]
    if named:
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for each in named:
            needed = "required" if each.get("required") and each["in"] != "path" else ""
            text = ". ".join(filter(None, [each.get("description", ""), needed]))
            yield f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {_cell(text)} |"
        yield ""


def _examples(examples: Mapping[str, Any]) -> Iterator[str]:
    for example in examples.values():
        if "value" in example:
            shown = json.dumps(example["value"], indent=2, ensure_ascii=False)
            yield f"{example.get('summary', 'Example')}:\n\n```json\n{shown}\n```\n"


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    yield "# Schemas\n\nThe objects that requests and responses consist of.\n"
    for name, schema in sorted(schemas.items()):
        yield f"## {name} {{ #{name.lower()} }}\n\n{schema.get('description', '')}\n"
        if "properties" not in schema:
            yield f"{_type(schema)}\n"
            continue
        yield "| field | type | |\n|---|---|---|"
        required = schema.get("required", ())
        for field, about in schema["properties"].items():
            default = f"Default: `{json.dumps(about['default'])}`" if "default" in about else ""
            needed = "required" if field in required and "default" not in about else ""
            text = ". ".join(filter(None, [about.get("description", ""), default, needed]))
            yield f"| `{field}` | {_type(about)} | {_cell(text)} |"
        yield ""


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words: a link to a named one, its alternatives, or its type with bounds."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}]({_SCHEMAS}#{name.lower()})"
        case {"anyOf": parts} | {"oneOf": parts}:
            return " or ".join(map(_type, parts))
        case {"const": value}:
            return f"`{json.dumps(value)}`"
        case {"enum": values}:
            return ", ".join(f"`{json.dumps(value)}`" for value in values)
    kind = schema.get("type", "any value")
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {}))}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_type(schema['additionalProperties'])}"
    bounds = [text.format(schema[name]) for name, text in _BOUNDS.items() if name in schema]
    return ", ".join([kind if isinstance(kind, str) else " or ".join(kind), *bounds])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
