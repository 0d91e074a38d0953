"""Tables of the documents: settings from their classes, subjects and payloads from the AsyncAPI document.

`python -m tests.components.docs.tables` writes the tables of settings and findings.
"""

import re
from inspect import get_annotations
from pathlib import Path
from typing import Any, cast

from pydantic_settings import BaseSettings

from app.api.findings import KINDS
from app.archive.process import ArchiveSettings
from app.planning.consumer_process import PlanningSettings
from app.settings import Settings
from app.webhooks.sender.sender_process import SenderSettings
from serve_deployments.arguments import ApplicationArgs, CoordinatorArgs, WorkerArgs

ROOT = Path(__file__).parents[3]
NEIGHBOURS = ROOT / "docs" / "neighbours.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
OPERATIONS = ROOT / "docs" / "operations.md"
# The settings between each marker of configuration.md; a table leaves out the settings of the named class.
SETTINGS: dict[str, tuple[type[BaseSettings], type[BaseSettings] | None]] = {
    "settings": (Settings, None),
    "application-settings": (ApplicationArgs, None),
    "coordinator-settings": (CoordinatorArgs, ApplicationArgs),
    "worker-settings": (WorkerArgs, ApplicationArgs),
    "sender-settings": (SenderSettings, None),
    "archive-settings": (ArchiveSettings, None),
    "planning-settings": (PlanningSettings, None),
}


def between(document: Path, marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", document.read_text(), re.DOTALL)
    assert found is not None, f"{document.name} has the markers <!-- {marker} --> and <!-- /{marker} -->"
    return found[1]


def deployer_variables() -> set[str]:
    """The variables of the deploying process, and of coordinators and workers without Ray."""
    by_hand = re.findall(r"^\| `([A-Z_]+)` \|", between(CONFIGURATION, "other-settings"), re.MULTILINE)
    models = (ApplicationArgs, CoordinatorArgs, WorkerArgs)
    return {*by_hand, *(str(field.validation_alias) for model in models for field in model.model_fields.values())}


def trace_variables() -> set[str]:
    return set(re.findall(r"^\| `(OTEL_[A-Z_]+)` \|", between(CONFIGURATION, "trace-settings"), re.MULTILINE))


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


def settings_table(model: type[BaseSettings], without: type[BaseSettings] | None = None) -> str:
    """A Markdown table of settings: a class's own first, then those of its bases."""
    fields = model.model_json_schema(by_alias=False)["properties"]
    declared = dict.fromkeys(name for each in model.__mro__ for name in get_annotations(each))
    rows: list[str] = []
    for name in declared:
        if name in fields and (without is None or name not in without.model_fields):
            field, variable = fields[name], model.model_fields[name].validation_alias
            unit = _unit(name, field)
            rows.append(f"| `{variable}` | {_default(field)} | {unit} | {_limits(field)} | {field['description']} |")
    return "\n".join(["| variable | default | unit | limits | what it is |", "|---|---|---|---|---|", *rows])


def findings_table() -> str:
    """A Markdown table of the kinds of findings, causes before effects."""
    rows = [f"| `{code}` | {kind.part} | {kind.severity} | {kind.why} |" for code, kind in KINDS.items()]
    return "\n".join(["| code | part | severity | why it matters |", "|---|---|---|---|", *rows])


def write_findings() -> None:
    before, found = OPERATIONS.read_text(), between(OPERATIONS, "findings")
    OPERATIONS.write_text(before.replace(found, f"{findings_table()}\n"))


def write_settings() -> None:
    text = CONFIGURATION.read_text()
    for marker, (model, without) in SETTINGS.items():
        text = text.replace(between(CONFIGURATION, marker), f"{settings_table(model, without)}\n")
    CONFIGURATION.write_text(text)


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


if __name__ == "__main__":
    write_settings()
    write_findings()
