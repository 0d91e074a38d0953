"""Options that several commands share, each declared once."""

import re
from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8080"
_ID = re.compile(r"[a-z0-9_-]{1,64}")


def _checked_id(value: str) -> str:
    if _ID.fullmatch(value) is None:
        raise typer.BadParameter("a deliberation's id consists of a-z, 0-9, _ and -, at most 64 of them")
    return value


UrlOption = Annotated[str, typer.Option("--url", envvar="DELIBERATE_URL", help="Base URL of the gateway.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only, one document per line.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", callback=_checked_id, help="Id of the deliberation.")]


def pairs(values: list[str], option: str) -> dict[str, str]:
    """`key=value` entries as a mapping; raises typer.BadParameter naming `option`."""
    found: dict[str, str] = {}
    for value in values:
        key, sign, rest = value.partition("=")
        if not sign or not key:
            raise typer.BadParameter(f"{option} takes key=value, not {value!r}")
        found[key] = rest
    return found
