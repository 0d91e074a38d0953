"""The tables of settings in docs/configuration.md, generated from the settings."""

import re
from pathlib import Path
from typing import Any, cast

from pydantic_settings import BaseSettings

from app.settings import WebhookRules

ROOT = Path(__file__).parents[3]
CONFIGURATION = ROOT / "docs" / "configuration.md"


def between(document: Path, marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", document.read_text(), re.DOTALL)
    assert found is not None, f"{document.name} has the markers <!-- {marker} --> and <!-- /{marker} -->"
    return found[1]


def deployer_variables() -> set[str]:
    """The variables of the deploying process, as documented."""
    return set(re.findall(r"^\| `([A-Z_]+)` \|", between(CONFIGURATION, "deployer-settings"), re.MULTILINE))


def _limits(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    given = {**field.get("anyOf", [{}])[0], **field}
    least = "not empty" if given.get("minLength") == 1 else "≥ {}"
    signs = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "minLength": least}
    return ", ".join(sign.format(given[key]) for key, sign in signs.items() if key in given)


def _default(field: dict[str, Any]) -> str:
    given = field.get("default")
    if given in (None, []):
        return ""
    return f"`{','.join(map(str, cast('list[object]', given)))}`" if isinstance(given, list) else f"`{given}`"


def _unit(name: str, field: dict[str, Any]) -> str:
    return "seconds" if name.endswith("_s") else field["unit"]


def settings_table(model: type[BaseSettings]) -> str:
    """A Markdown table of settings; settings shared with another process come last."""
    fields = model.model_json_schema(by_alias=False)["properties"]
    rows: list[str] = []
    for name, field in sorted(fields.items(), key=lambda named: named[0] in WebhookRules.model_fields):
        variable, unit = model.model_fields[name].validation_alias, _unit(name, field)
        rows.append(f"| `{variable}` | {_default(field)} | {unit} | {_limits(field)} | {field['description']} |")
    return "\n".join(["| variable | default | unit | limits | what it is |", "|---|---|---|---|---|", *rows])
