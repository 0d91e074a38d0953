"""`deliberate strategies`, and the parameters of strategies in `deliberate ask`."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli import cli
from app.cli.options import nested_values
from app.cli.strategies import bounds_text, type_text
from app.deliberation.strategies import STRATEGIES

runner = CliRunner()


def invoke(url: str, *arguments: str) -> Result:
    return runner.invoke(cli, [*arguments, "--url", url], env={"COLUMNS": "200"})


def test_lists_strategies_with_steps_and_cost(url: str) -> None:
    result = invoke(url, "strategies")
    assert result.exit_code == 0
    for definition in STRATEGIES.values():
        assert f"{definition.name} v{definition.version}" in result.stdout
        assert definition.steps[0] in result.stdout


@pytest.mark.parametrize("name", STRATEGIES)
def test_shows_one_strategy_with_every_parameter(url: str, name: str) -> None:
    result = invoke(url, "strategies", name)
    assert result.exit_code == 0
    definition = STRATEGIES[name]
    words = result.stdout.split()
    for text in (definition.summary, definition.formula, definition.source, *definition.steps):
        assert set(text.split()) <= set(words), text
    for field in definition.parameters.model_fields:
        assert field in words
    assert ("It has no parameters." in result.stdout) is (not definition.parameters.model_fields)


def test_lists_the_strategies_of_the_installation_without_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIBERATE_URL", "http://127.0.0.1:1")
    items = json.loads(runner.invoke(cli, ["strategies", "--json"]).stdout)["items"]
    assert [each["name"] for each in items] == list(STRATEGIES)


def test_prints_one_strategy_as_json(url: str) -> None:
    result = json.loads(invoke(url, "strategies", "council", "--json").stdout)
    assert result["name"] == "council" and "critics" in result["parameters"]["properties"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], {}),
        (["a=1"], {"a": 1}),
        (["a=1.5", "b=true", "c=null"], {"a": 1.5, "b": True, "c": None}),
        (["a=text", "b=two words", "c="], {"a": "text", "b": "two words", "c": ""}),
        (['a="1"', "b=[1, 2]", 'c={"d": 1}'], {"a": "1", "b": [1, 2], "c": {"d": 1}}),
        (["a=b=c"], {"a": "b=c"}),
        (["a=NaN", "b=Infinity"], {"a": "NaN", "b": "Infinity"}),
        (["a.b=1", "a.c.d=2"], {"a": {"b": 1, "c": {"d": 2}}}),
        (['a={"b": 1}', "a.c=2"], {"a": {"b": 1, "c": 2}}),
    ],
)
def test_parameter_values_are_json_or_text_and_dots_nest(entries: list[str], expected: dict[str, Any]) -> None:
    assert nested_values(entries, "--parameter") == expected


@pytest.mark.parametrize(
    ("schema", "takes", "bounds"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 8}, "integer", "≥ 1, ≤ 8"),
        ({"type": "number", "exclusiveMinimum": 0.5}, "number", "> 0.5"),
        ({"enum": ["a", "b"]}, "a | b", ""),
        ({"const": 3}, "3", ""),
        ({"enum": ["1", "null", None]}, '"1" | "null" | null', ""),
        ({"anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}]}, "integer or null", "≤ 9"),
        (
            {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
            "list of string",
            "≤ 3 entries",
        ),
        ({"type": "array", "items": True}, "list", ""),
        ({"$ref": "#/$defs/Rule", "default": "x"}, "x | y", ""),
        ({"type": "object"}, "object", ""),
        ({}, "any", ""),
    ],
)
def test_describes_a_schema_briefly(schema: dict[str, Any], takes: str, bounds: str) -> None:
    definitions = {"Rule": {"enum": ["x", "y"]}}
    assert (type_text(schema, definitions), bounds_text(schema, definitions)) == (takes, bounds)
