"""The tool calls of a simulated model: those of the script, else the offered tools in turn, with plain arguments."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

USED = re.compile(r"^(?:Result|Failure) of tool (\S+), use (\d+):$", re.MULTILINE)
_PATH = re.compile(r"(?<![\w/.-])[\w-]+(?:/[\w.-]+)*\.[a-z]{1,4}\b")
_LISTED = "# The tools\n"


class OfferedTool(NamedTuple):
    name: str
    parameters: Mapping[str, Any]


class WrittenCall(NamedTuple):
    name: str
    arguments: str

    @property
    def as_object(self) -> str:
        return f'{{"tool":{json.dumps(self.name)},"arguments":{self.arguments}}}'


def listed_tools(texts: Sequence[str]) -> list[OfferedTool]:
    """The tools that a prompt lists as text, one on each line."""
    _, _, listing = texts[-1].partition(_LISTED)
    tools: list[OfferedTool] = []
    for line in listing.splitlines():
        if not line.startswith("{"):
            break
        function: dict[str, Any] = json.loads(line)
        tools.append(OfferedTool(function["name"], function["parameters"]))
    return tools


def next_call(
    offered: Sequence[OfferedTool], texts: Sequence[str], scripted: Sequence[tuple[str, Mapping[str, Any]]], uses: int
) -> WrittenCall | None:
    """The next tool call after those with a result in the prompt; None when the answer is next."""
    text = "\n\n".join(texts)
    used = max((int(number) for _, number in USED.findall(text)), default=0)
    if scripted:
        if used >= len(scripted):
            return None
        name, arguments = scripted[used]
        return WrittenCall(name, json.dumps(arguments, ensure_ascii=False))
    if used >= uses or not offered:
        return None
    # Those without required arguments first: their results may name what others need.
    ordered = sorted(offered, key=lambda tool: len(tool.parameters.get("required", ())))
    tool = ordered[used % len(ordered)]
    _, _, results = text.partition("of tool ")
    return WrittenCall(tool.name, json.dumps(_arguments(tool.parameters, results), ensure_ascii=False))


def _arguments(schema: Mapping[str, Any], results: str) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    return {name: _value(name, properties.get(name, {}), results) for name in schema.get("required", ())}


def _value(name: str, schema: Mapping[str, Any], results: str) -> Any:  # noqa: ANN401 -- a JSON value
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "array":
            return []
        case "object":
            return {}
        case _:
            paths = _PATH.findall(results)
            return paths[0] if paths and ("path" in name or "file" in name) else "test"
