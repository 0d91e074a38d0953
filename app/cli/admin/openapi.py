"""`deliberate openapi`: writes the contract's files from the code, or checks with `--check` that they are current."""

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.text import Text

from app.cli.exits import CommandError, Exit, FieldFault, output
from app.cli.options import JsonOption


def rendered() -> dict[str, str]:
    # Imported here, because it builds the whole application, which no other command needs.
    from app.openapi.asyncapi import asyncapi
    from app.openapi.document import document, document_3_2, events_schema

    documents = {"openapi.json": document(), "openapi-3.2.json": document_3_2(), "events.schema.json": events_schema()}
    written = {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in documents.items()}
    # Read back from JSON, so that YAML has no anchors for repeated objects.
    plain = json.loads(json.dumps(asyncapi()))
    return written | {"asyncapi.yaml": yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)}


def drift(directory: Path, expected: dict[str, str]) -> dict[str, str]:
    """The fault of each file that is missing or another, by its name."""
    faults: dict[str, str] = {}
    for name, content in expected.items():
        path = directory / name
        if not path.exists():
            faults[name] = "is missing"
        elif path.read_text(encoding="utf-8") != content:
            faults[name] = "differs from what the code generates"
    return faults


def openapi(
    directory: Annotated[Path, typer.Option("--dir", file_okay=False, help="Output directory.")] = Path("openapi"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when a file differs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write openapi.json, openapi-3.2.json, events.schema.json and asyncapi.yaml, or check that they are current."""
    expected = rendered()
    faults = drift(directory, expected)
    if check and not faults:
        return
    if check:
        fields = [FieldFault(str(directory / name), fault) for name, fault in faults.items()]
        detail, remedy = "the contract's files differ", "run `deliberate openapi`; `git diff` shows the lines"
        raise CommandError(Exit.FAILED, "openapi_drift", detail, fields=fields, remedy=remedy)
    directory.mkdir(parents=True, exist_ok=True)
    written = sorted(faults)
    for name in written:
        (directory / name).write_text(expected[name], encoding="utf-8")
    lines = [f"wrote {directory / name}" for name in written] or ["all files are up to date"]
    output({"written": written}, lambda: Text("\n".join(lines)), as_json=as_json)
