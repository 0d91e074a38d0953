"""The command `deliberate`. Each command has its module; this one registers them."""

import typer

from app.cli import ask, bench, cluster, keys, openapi, show, simulator, strategies, streams, watch, webhooks
from app.cli.exits import EXIT_HELP, CommandLine
from app.cli.stack import demo, up

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
for command in (show.show, show.cancel, show.roles, cluster.cluster, strategies.strategies, openapi.openapi):
    cli.command(epilog=EXIT_HELP)(command)
cli.command("simulator", context_settings=_ANY_ARGUMENTS, add_help_option=False)(simulator.simulator)
cli.add_typer(streams.streams_cli, name="streams")
cli.add_typer(keys.keys_cli, name="keys")
cli.add_typer(webhooks.webhooks_cli, name="webhooks")
cli.add_typer(bench.bench_cli, name="bench")


@cli.callback()
def deliberate() -> None:
    """Councils of LLM agents behind a REST and SSE gateway."""


def main() -> None:
    """Run the command line; the process exits with the command's status."""
    cli()
