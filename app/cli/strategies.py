"""`deliberate strategies`: lists the strategies, or shows one with its parameters."""

import json
from typing import Annotated, Any, cast

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from app.api.schemas import StrategyList, StrategyResource
from app.api.suggestions import did_you_mean
from app.cli.client import parsed
from app.cli.exits import CommandError, Exit, output, run
from app.cli.options import ApiKeyOption, JsonOption, StackOption, UrlOption
from app.cli.render.text import named_rows, plain
from app.cli.target import gateway_client
from app.deliberation.strategies import STRATEGIES

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


def _alternatives(schema: JsonSchema, definitions: JsonSchema) -> list[JsonSchema]:
    offered = cast("list[JsonSchema]", schema.get("anyOf") or schema.get("oneOf") or [schema])
    return [_resolved(alternative, definitions) for alternative in offered]


def _value_text(value: object) -> str:
    """A value as written after NAME=: text stays plain unless it would parse as JSON."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def type_text(schema: JsonSchema, definitions: JsonSchema) -> str:
    """The type of a JSON Schema in a few words: `integer or null`, `a | b`, `list of string`."""
    types: list[str] = []
    for alternative in _alternatives(_resolved(schema, definitions), definitions):
        if "enum" in alternative or "const" in alternative:
            types.append(
                " | ".join(_value_text(value) for value in alternative.get("enum", [alternative.get("const")]))
            )
        elif alternative.get("type") == "array":
            items = cast("JsonSchema | bool", alternative.get("items", True))
            types.append(f"list of {type_text(items, definitions)}" if isinstance(items, dict) else "list")
        else:
            types.append(str(alternative.get("type", "any")))
    return " or ".join(types)


def bounds_text(schema: JsonSchema, definitions: JsonSchema) -> str:
    bounds: list[str] = []
    for alternative in _alternatives(_resolved(schema, definitions), definitions):
        bounds += [words.format(alternative[name]) for name, words in _BOUNDS if name in alternative]
    return ", ".join(bounds)


def strategies_table(strategy_list: StrategyList) -> Table:
    table = Table(caption="details: deliberate strategies NAME", caption_justify="left")
    for column in ("strategy", "steps", "calls"):
        table.add_column(column)
    table.add_column("what it does", ratio=1)
    for strategy in strategy_list.items:
        table.add_row(
            Text.assemble((strategy.name, "bold"), (f" v{strategy.version}", "dim")),
            plain("\n".join(strategy.steps)),
            plain(strategy.calls),
            plain(strategy.summary),
        )
    return table


def parameters_table(schema: JsonSchema) -> Table:
    definitions = cast(JsonSchema, schema.get("$defs", {}))
    required = cast("list[str]", schema.get("required", []))
    table = Table(caption="deliberate ask --parameter NAME=VALUE", caption_justify="left")
    for column in ("parameter", "takes", "default"):
        table.add_column(column)
    table.add_column("what it means", ratio=1)
    for name, parameter in cast("dict[str, JsonSchema]", schema.get("properties", {})).items():
        bounds = bounds_text(parameter, definitions)
        table.add_row(
            Text(name, "bold"),
            plain(type_text(parameter, definitions) + (f"\n{bounds}" if bounds else "")),
            Text("required", "yellow") if name in required else plain(_value_text(parameter.get("default"))),
            plain(str(parameter.get("description", ""))),
        )
    return table


def strategy_text(strategy: StrategyResource) -> Group:
    facts = {"steps": " → ".join(strategy.steps), "calls": strategy.calls, "source": strategy.source}
    facts["fields"] = ", ".join(strategy.fields)
    rows = named_rows((name, plain(text)) for name, text in facts.items())
    head = Text.assemble((strategy.name, "bold"), (f" v{strategy.version}", "dim"), "  ", plain(strategy.summary))
    if strategy.parameters.get("properties"):
        return Group(head, rows, parameters_table(strategy.parameters))
    return Group(head, rows, Text("It has no parameters.", "dim"))


def strategies(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this strategy with its parameters.")] = None,
    url: UrlOption = None,
    data_dir: StackOption = None,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the strategies with their cost, or show one with steps, source and parameters.

    Without --url and --data-dir, the strategies of this installation are listed, and no gateway is needed.
    """

    async def main() -> Exit:
        if url is None and data_dir is None:
            items = tuple(map(StrategyResource.of, STRATEGIES.values()))
            document = StrategyList(items=items).model_dump(mode="json")
        else:
            async with gateway_client(url, data_dir, api_key) as gateway:
                document = await gateway.read("/strategies")
        strategy_list = parsed(StrategyList, document)
        if name is None:
            return output(document, lambda: strategies_table(strategy_list), as_json=as_json)
        names = [strategy.name for strategy in strategy_list.items]
        if name not in names:
            remedy = f"{did_you_mean(name, names)}The strategies are {', '.join(names)}"
            raise CommandError(Exit.USAGE, "unknown_strategy", f"there is no strategy {name!r}", remedy=remedy)
        strategy = strategy_list.items[names.index(name)]
        return output(strategy.model_dump(mode="json"), lambda: strategy_text(strategy), as_json=as_json)

    run(main, as_json=as_json)
