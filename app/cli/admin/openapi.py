"""`deliberate openapi`: writes the contract's files from the code, or checks with `--check` that they are current."""

import json
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.text import Text

from app.cli.exits import CommandError, Exit, FieldFault, print_error, print_json
from app.cli.options import JsonOption

_DIFF_LINES_MAX = 40


def rendered() -> dict[str, str]:
    # Imported here, because it builds the whole application, which no other command needs.
    from app.openapi.asyncapi import asyncapi
    from app.openapi.document import document, events_schema

    documents = {"openapi.json": document(), "events.schema.json": events_schema()}
    written = {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in documents.items()}
    # Read back from JSON, so that YAML has no anchors for repeated objects.
    plain = json.loads(json.dumps(asyncapi()))
    return written | {"asyncapi.yaml": yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)}


def drift(directory: Path, expected: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, content in expected.items():
        path = directory / name
        if not path.exists():
            found[name] = []
            continue
        present = path.read_text(encoding="utf-8")
        if present != content:
            lines = unified_diff(present.splitlines(), content.splitlines(), f"{path}", "generated", lineterm="", n=1)
            found[name] = list(lines)[:_DIFF_LINES_MAX]
    return found


def _check(directory: Path, expected: dict[str, str], *, as_json: bool) -> Exit:
    different = drift(directory, expected)
    if not different:
        return Exit.SUCCESS
    if as_json:
        print_json({"different": different})
    else:
        for line in (line for lines in different.values() for line in lines):
            style = {"+": "green", "-": "red"}.get(line[:1], "")
            Console(highlight=False).print(Text(line, style), soft_wrap=True)
    faults = [
        FieldFault(str(directory / name), "differs from what the code generates" if lines else "is missing")
        for name, lines in different.items()
    ]
    error = CommandError(
        Exit.FAILED, "openapi_drift", "the contract's files differ", fields=faults, remedy="run `deliberate openapi`"
    )
    print_error(error, as_json=as_json)
    return Exit.FAILED


def openapi(
    directory: Annotated[Path, typer.Option("--dir", file_okay=False, help="Output directory.")] = Path("openapi"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 when a file differs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write openapi.json, events.schema.json and asyncapi.yaml, or check that they are current."""
    expected = rendered()
    if check:
        raise typer.Exit(_check(directory, expected, as_json=as_json))
    directory.mkdir(parents=True, exist_ok=True)
    written = sorted(drift(directory, expected))
    for name in written:
        (directory / name).write_text(expected[name], encoding="utf-8")
    if as_json:
        print_json({"written": written})
    else:
        lines = [f"wrote {directory / name}" for name in written] or ["all files are up to date"]
        Console(highlight=False).print(Text("\n".join(lines)), soft_wrap=True)
