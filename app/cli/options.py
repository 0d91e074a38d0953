"""Options that several commands share, each declared once."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

import typer
from pydantic_core import from_json

from app.deliberation.errors import InvalidToken, JournalUnavailable

URL_VARIABLE = "DELIBERATE_URL"
DATA_DIR = Path(".deliberate")


def _checked_token(value: str, field: str) -> str:
    # Imported here, as everywhere below: help checks no value, and needs no model.
    from app.deliberation.specification import checked_token

    try:
        return checked_token(value, field)
    except InvalidToken as exc:
        raise typer.BadParameter(f"{field} consists of a-z, 0-9, _ and -, at most 64 of them") from exc


def checked_url(value: str, schemes: tuple[str, ...]) -> str:
    try:
        parts = urlsplit(value)
        if parts.scheme in schemes and parts.hostname and parts.port != 0 and not value.split()[1:]:
            return value
    except ValueError:
        pass
    raise typer.BadParameter(f"{value!r} is not a URL that begins with {' or '.join(f'{s}://' for s in schemes)}")


def checked_nats_url(value: str | None) -> str | None:
    """A URL of a NATS server, or of a file that holds it, or None; raises typer.BadParameter."""
    if value is None:
        return None
    if value.startswith("file:"):
        from app.log.connection import server_url

        try:
            server_url(value)
        except JournalUnavailable as exc:
            raise typer.BadParameter(str(exc)) from exc
        return value
    return checked_url(value, ("nats", "tls", "ws", "wss"))


def nats_url_file(data_dir: Path, user: str) -> str:
    return (data_dir.resolve() / "nats_urls" / user).as_uri()


def program() -> str:
    """The word that starts this command line here: `deliberate`, or its path where the search path leads elsewhere."""
    started = Path(sys.argv[0])
    installed = shutil.which("deliberate")
    if started.name != "deliberate" or (installed is not None and Path(installed).resolve() == started.resolve()):
        return "deliberate"
    path = started.absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def directory_option(data_dir: Path) -> str:
    """The option that names a data directory, with a leading space; empty for the default."""
    return "" if data_dir.resolve() == DATA_DIR.resolve() else f" --data-dir {shlex.quote(str(data_dir))}"


def checked_tenant(value: str) -> str:
    return _checked_token(value, "a tenant")


def _checked_id(value: str) -> str:
    return _checked_token(value, "a deliberation's id")


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default=f"{URL_VARIABLE}, else the context, else the stack in {DATA_DIR}",
        help="Base URL of the gateway.",
    ),
]
StackOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", file_okay=False, help="Use the stack that runs in this directory."),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="DELIBERATE_API_KEY",
        metavar="KEY",
        show_default=False,
        help="API key; prefer the environment variable, because process lists show options.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only, one document per line.")]
KeepOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", file_okay=False, help="Keep logs and facts here; by default they are removed."
    ),
]
IdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", callback=_checked_id, help="Id of the deliberation, a unique beginning of it, or `last`."
    ),
]


def pairs(values: list[str], option: str) -> dict[str, str]:
    by_key: dict[str, str] = {}
    for value in values:
        key, sign, rest = value.partition("=")
        if not sign or not key:
            raise typer.BadParameter(f"{option} takes key=value, not {value!r}")
        by_key[key] = rest
    return by_key


def _value(text: str) -> Any:  # noqa: ANN401 -- any JSON value
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def nested_values(values: list[str], option: str) -> dict[str, Any]:
    """`key=value` entries as an object: a value is JSON if it parses, else a string; dots in a key nest.

    Raises typer.BadParameter that names `option` for an entry without a key and for a repeated key.
    """
    nested: dict[str, Any] = {}
    for value in values:
        key, sign, rest = value.partition("=")
        *outer, last = key.split(".")
        if not sign or not last or not all(outer):
            raise typer.BadParameter(f"{option} takes key=value or outer.inner=value, not {value!r}")
        inside = nested
        for name in outer:
            inside = inside.setdefault(name, {})
            if not isinstance(inside, dict):
                raise typer.BadParameter(f"{option} {key}: {name} has a value already")
            inside = cast("dict[str, Any]", inside)
        if last in inside:
            raise typer.BadParameter(f"{option} {key} is given twice")
        inside[last] = _value(rest)
    return nested
