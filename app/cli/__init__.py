"""The command `deliberate` with the options that precede a command. `app.cli.commands` lists the commands."""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from app.cli.commands import CommandLine, panel_of
from app.cli.exits import EXIT_HELP

cli = typer.Typer(
    name="deliberate",
    cls=CommandLine,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    epilog=EXIT_HELP,
)

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False, rich_help_panel=panel_of("simulator"))
def simulator(context: typer.Context) -> NoReturn:
    """Run the simulator, an OpenAI-compatible engine without weights; --help shows its arguments."""
    _become("serve_deployments.simulator", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False, rich_help_panel=panel_of("worker"))
def worker(context: typer.Context) -> NoReturn:
    """Run a worker without Ray: `--role DEV --concurrency 16`; --help shows its arguments."""
    _become("serve_deployments.agent", context.args)


def _become(module: str, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    # Without a safe path, a module `app` in the user's directory would run in place of the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


def _print_version(wanted: bool) -> None:
    if wanted:
        # Imported here: the module takes a tenth of all help.
        from importlib.metadata import version

        print(f"deliberate {version('deliberation-gateway')}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@cli.callback()
def deliberate(version: VersionOption = False) -> None:
    """Councils of LLM agents behind a REST and SSE gateway.

    Commands speak to the first gateway that is named:
    by --url, or by --data-dir as that of the stack that runs there;
    by DELIBERATE_URL; by `deliberate context use URL`;
    else it is that of the stack that runs in .deliberate here.

    An ID is an id, a unique beginning of one, or `last`.
    """


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A mark that the terminal's encoding lacks ends no command.
            stream.reconfigure(errors="replace")
    cli()
