"""Tables of the documents: settings from their classes, subjects and payloads from the AsyncAPI document."""

import re
from pathlib import Path
from typing import Any, cast

from pydantic_settings import BaseSettings

from app.settings import ArchiveRetention, ContextRules, PlanRules, SpendRules, WebhookRules

_SHARED_RULES = (WebhookRules, ArchiveRetention, PlanRules, ContextRules, SpendRules)
SHARED = {name for rules in _SHARED_RULES for name in rules.model_fields}
ROOT = Path(__file__).parents[3]
NEIGHBOURS = ROOT / "docs" / "neighbours.md"
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
    if given in (None, [], {}):
        return ""
    return f"`{','.join(map(str, cast('list[object]', given)))}`" if isinstance(given, list) else f"`{given}`"


def _unit(name: str, field: dict[str, Any]) -> str:
    return "seconds" if name.endswith("_s") else field["unit"]


def settings_table(model: type[BaseSettings]) -> str:
    """A Markdown table of settings; settings shared with another process come last."""
    fields = model.model_json_schema(by_alias=False)["properties"]
    rows: list[str] = []
    for name, field in sorted(fields.items(), key=lambda named: named[0] in SHARED):
        variable, unit = model.model_fields[name].validation_alias, _unit(name, field)
        rows.append(f"| `{variable}` | {_default(field)} | {unit} | {_limits(field)} | {field['description']} |")
    return "\n".join(["| variable | default | unit | limits | what it is |", "|---|---|---|---|---|", *rows])


def _type(field: dict[str, Any]) -> str:
    """A field's type in one word or two, as JSON has it; a name is that of another payload or part."""
    if "$ref" in field:
        return field["$ref"].rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_type, field["anyOf"])))
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return {"date-time": "time"}.get(field.get("format", ""), field.get("type", "any"))


def subjects_table(document: dict[str, Any]) -> str:
    """A Markdown table of the subjects that neighbours read and write, from the AsyncAPI document."""
    channels = {
        name: channel
        for name, channel in document["channels"].items()
        if channel["address"] is not None and channel["servers"] == [{"$ref": "#/servers/nats"}]
    }
    rows: list[str] = []
    for channel in channels.values():
        payloads = [document["components"]["messages"][name]["title"] for name in channel["messages"]]
        shown = payloads[0] if len(payloads) == 1 else "every event"
        rows.append(f"| `{channel['address']}` | {shown} | {channel['description']} |")
    return "\n".join(["| subject | payload | what it is |", "|---|---|---|", *rows])


def payload_table(document: dict[str, Any], title: str) -> str:
    """A Markdown table of a payload's fields, from the AsyncAPI document."""
    fields = document["components"]["schemas"][title]["properties"]
    rows = [f"| `{name}` | {_type(field)} | {field.get('description', '')} |" for name, field in fields.items()]
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows])
