"""Tables of the documents: settings from their classes, subjects from the AsyncAPI document.

`python -m tests.components.docs.tables` writes the tables of settings, findings and causes of engines' troubles.
"""

import re
from inspect import get_annotations
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from pydantic_settings import BaseSettings

from app.api.findings import KINDS
from app.archive.process import ArchiveSettings
from app.deliberation.engine_troubles import CAUSES
from app.settings import Settings
from app.webhooks.sender.sender_process import SenderSettings
from serve_deployments.arguments import ApplicationArgs, CoordinatorArgs, WorkerArgs

ROOT = Path(__file__).parents[3]
NEIGHBOURS = ROOT / "docs" / "neighbours.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
OPERATIONS = ROOT / "docs" / "operations.md"
ENGINES = ROOT / "docs" / "engines.md"
# The settings between each marker of configuration.md; a table leaves out the settings of the named class.
SETTINGS: dict[str, tuple[type[BaseSettings], type[BaseSettings] | None]] = {
    "settings": (Settings, None),
    "application-settings": (ApplicationArgs, None),
    "coordinator-settings": (CoordinatorArgs, ApplicationArgs),
    "worker-settings": (WorkerArgs, ApplicationArgs),
    "sender-settings": (SenderSettings, None),
    "archive-settings": (ArchiveSettings, None),
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


def settings_rows(model: type[BaseSettings], without: type[BaseSettings] | None) -> dict[str, str]:
    """The row of each variable: a class's own settings first, then those of its bases."""
    fields = model.model_json_schema(by_alias=False)["properties"]
    declared = dict.fromkeys(name for declaring in model.__mro__ for name in get_annotations(declaring))
    rows = dict[str, str]()
    for name in declared:
        if name in fields and (without is None or name not in without.model_fields):
            field, variable = fields[name], str(model.model_fields[name].validation_alias)
            unit = _unit(name, field)
            limits = _limits(field)
            rows[variable] = f"| `{variable}` | {_default(field)} | {unit} | {limits} | {field['description']} |"
    return rows


def settings_table(marker: str) -> str:
    """A Markdown table of settings, and below it the names of those that an earlier table describes alike."""
    rows = settings_rows(*SETTINGS[marker])
    earlier = takewhile(lambda other: other != marker, SETTINGS)
    described = {row for other in earlier for row in settings_rows(*SETTINGS[other]).values()}
    own = [row for row in rows.values() if row not in described]
    shared = [f"`{variable}`" for variable, row in rows.items() if row in described]
    table = "\n".join(["| variable | default | unit | limits | what it is |", "|---|---|---|---|---|", *own])
    return f"{table}\n\nAs above: {', '.join(shared)}." if shared else table


def findings_table() -> str:
    """A Markdown table of the kinds of findings by part and severity, causes before effects."""
    rows: list[str] = []
    for part in dict.fromkeys(kind.part for kind in KINDS.values()):
        cells = [
            ", ".join(f"`{code}`" for code, kind in KINDS.items() if (kind.part, kind.severity) == (part, severity))
            for severity in ("error", "warning", "info")
        ]
        rows.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(["| part | errors | warnings | infos |", "|---|---|---|---|", *rows])


def causes_table() -> str:
    """A Markdown table of the causes of an engine's trouble, the gravest first."""
    rows = [f"| `{cause}` | {kind.words} | {kind.remedy} |" for cause, kind in CAUSES.items()]
    return "\n".join(["| `cause` | an engine | remedy |", "|---|---|---|", *rows])


def write_causes() -> None:
    before = ENGINES.read_text()
    written = f"<!-- causes -->\n{between(ENGINES, 'causes')}<!-- /causes -->"
    ENGINES.write_text(before.replace(written, f"<!-- causes -->\n{causes_table()}\n<!-- /causes -->"))


def write_findings() -> None:
    before, found = OPERATIONS.read_text(), between(OPERATIONS, "findings")
    OPERATIONS.write_text(before.replace(found, f"{findings_table()}\n"))


def write_settings() -> None:
    text = CONFIGURATION.read_text()
    for marker in SETTINGS:
        text = text.replace(between(CONFIGURATION, marker), f"{settings_table(marker)}\n")
    CONFIGURATION.write_text(text)


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


if __name__ == "__main__":
    write_settings()
    write_findings()
    write_causes()
