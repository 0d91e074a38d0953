"""The command `deliberate`. Each command has its module; this one registers them."""

import os
import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from app.cli import ask, demo, mcp, plan, show, status, strategies, watch
from app.cli.admin import archive, context, keys, openapi, streams, transfer, webhooks
from app.cli.bench import quality
from app.cli.exits import EXIT_HELP, CommandLine
from app.cli.stack import up

cli = typer.Typer(
    name="deliberate",
    cls=CommandLine,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    epilog=EXIT_HELP,
)

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

for command in (up.up, demo.demo, ask.ask, watch.watch):
    cli.command(epilog=EXIT_HELP)(command)
cli.command("list", epilog=EXIT_HELP)(show.list_deliberations)
for command in (show.stats, show.show, show.cancel, show.delete, show.deliveries, show.redeliver):
    cli.command(epilog=EXIT_HELP)(command)
for command in (status.status, status.roles, strategies.strategies, status.cluster, openapi.openapi, mcp.mcp):
    cli.command(epilog=EXIT_HELP)(command)
cli.command("export", epilog=EXIT_HELP)(transfer.export_command)
cli.command("import", epilog=EXIT_HELP)(transfer.import_command)
cli.add_typer(plan.plan_cli, name="plan")
cli.add_typer(context.context_cli, name="context")
cli.add_typer(streams.streams_cli, name="streams")
cli.add_typer(keys.keys_cli, name="keys")
cli.add_typer(archive.archive_cli, name="archive")
cli.add_typer(webhooks.webhooks_cli, name="webhooks")
cli.add_typer(quality.bench_cli, name="bench")


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def simulator(context: typer.Context) -> NoReturn:
    """Run the simulator, an OpenAI-compatible engine without weights; --help shows its arguments."""
    _become("serve_deployments.simulator", context.args)


@cli.command(context_settings=_ANY_ARGUMENTS, add_help_option=False)
def worker(context: typer.Context) -> NoReturn:
    """Run a worker without Ray: `--role DEV --concurrency 16`; --help shows its arguments."""
    _become("serve_deployments.agent", context.args)


def _become(module: str, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    # Without a safe path, a module `app` in the user's directory would run in place of the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


def _print_version(wanted: bool) -> None:
    if wanted:
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
