"""`deliberate strategies`: the ways to deliberate, and what one of them takes."""

import json
from difflib import get_close_matches
from typing import Annotated, Any, cast

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from app.api.schemas import StrategyList, StrategyResource
from app.cli.client import GatewayClient, JsonObject, understood
from app.cli.exits import CommandError, Exit, run
from app.cli.options import DEFAULT_URL, ApiKeyOption, JsonOption, UrlOption
from app.cli.render.ranking import plain
from app.cli.show import output

_BOUNDS = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "≥ {} characters"),
    ("maxLength", "≤ {} characters"),
    ("minItems", "≥ {} entries"),
    ("maxItems", "≤ {} entries"),
    ("pattern", "matches {}"),
)

JsonSchema = dict[str, Any]


def _resolved(schema: JsonSchema, definitions: JsonSchema) -> JsonSchema:
    reference = schema.get("$ref")
    return definitions.get(str(reference).rpartition("/")[2], {}) | schema if reference else schema


def _either(schema: JsonSchema, definitions: JsonSchema) -> list[JsonSchema]:
    """What a value may be, one schema for each."""
    offered = cast("list[JsonSchema]", schema.get("anyOf") or schema.get("oneOf") or [schema])
    return [_resolved(each, definitions) for each in offered]


def _typed(value: object) -> str:
    """A value as it is written after NAME=: text as it stands, unless it would be read as JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def type_text(schema: JsonSchema, definitions: JsonSchema) -> str:
    """What a JSON Schema takes, in a few words: `integer or null`, `a | b`, `list of string`."""
    told: list[str] = []
    for each in _either(_resolved(schema, definitions), definitions):
        if "enum" in each or "const" in each:
            told.append(" | ".join(_typed(value) for value in each.get("enum", [each.get("const")])))
        elif each.get("type") == "array":
            items = cast("JsonSchema | bool", each.get("items", True))
            told.append(f"list of {type_text(items, definitions)}" if isinstance(items, dict) else "list")
        else:
            told.append(str(each.get("type", "any")))
    return " or ".join(told)


def bounds_text(schema: JsonSchema, definitions: JsonSchema) -> str:
    """The bounds that a JSON Schema sets, in a few words; empty when there are none."""
    told: list[str] = []
    for each in _either(_resolved(schema, definitions), definitions):
        told += [words.format(each[name]) for name, words in _BOUNDS if name in each]
    return ", ".join(told)


def strategies_table(found: StrategyList) -> Table:
    """One row per strategy: its steps and what it costs."""
    table = Table(caption="one of them: deliberate strategies NAME", caption_justify="left")
    for column in ("strategy", "steps", "calls"):
        table.add_column(column)
    table.add_column("what it does", ratio=1)
    for strategy in found.items:
        table.add_row(
            Text.assemble((strategy.name, "bold"), (f" v{strategy.version}", "dim")),
            plain("\n".join(strategy.steps)),
            plain(strategy.calls),
            plain(strategy.summary),
        )
    return table


def parameters_table(schema: JsonSchema) -> Table:
    """One row per parameter of a strategy: type, default, bounds and what it means."""
    definitions = cast(JsonSchema, schema.get("$defs", {}))
    required = cast("list[str]", schema.get("required", []))
    table = Table(caption="deliberate ask --parameter NAME=VALUE", caption_justify="left")
    for column in ("parameter", "takes", "default"):
        table.add_column(column)
    table.add_column("what it means", ratio=1)
    for name, each in cast("dict[str, JsonSchema]", schema.get("properties", {})).items():
        bounds = bounds_text(each, definitions)
        table.add_row(
            Text(name, "bold"),
            plain(type_text(each, definitions) + (f"\n{bounds}" if bounds else "")),
            Text("required", "yellow") if name in required else plain(_typed(each.get("default"))),
            plain(str(each.get("description", ""))),
        )
    return table


def strategy_text(strategy: StrategyResource) -> Group:
    """Everything about one strategy."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    told = [
        ("steps", " → ".join(strategy.steps)),
        ("calls", strategy.calls),
        ("source", strategy.source),
        ("fields", ", ".join(strategy.fields)),
    ]
    for label, text in told:
        facts.add_row(label, plain(text))
    head = Text.assemble((strategy.name, "bold"), (f" v{strategy.version}", "dim"), "  ", plain(strategy.summary))
    if strategy.parameters.get("properties"):
        return Group(head, facts, parameters_table(strategy.parameters))
    return Group(head, facts, Text("It takes no parameters of its own.", "dim"))


def named(found: StrategyList, name: str) -> StrategyResource:
    """The strategy with this name; raises CommandError, naming the nearest, when there is none."""
    names = [strategy.name for strategy in found.items]
    if name not in names:
        near = get_close_matches(name, names, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise CommandError(Exit.REFUSED, "unknown_strategy", f"there is no strategy {name!r}", remedy=remedy)
    return found.items[names.index(name)]


def strategies(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One strategy, with its parameters.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the strategies and what they cost; or tell one: steps, source, and the parameters that it takes."""

    async def work() -> Exit:
        async with GatewayClient(url, api_key) as gateway:
            document: JsonObject = await gateway.read("/strategies")
        found = understood(StrategyList, document)
        if name is None:
            return output(document, lambda: strategies_table(found), as_json=as_json)
        strategy = named(found, name)
        return output(strategy.model_dump(mode="json"), lambda: strategy_text(strategy), as_json=as_json)

    run(work, as_json=as_json)
