"""The command `deliberate`. Each command has its module; this one registers them."""

import typer

from app.cli import ask, bench, cluster, keys, openapi, show, simulator, strategies, streams, watch, webhooks
from app.cli.exits import EXIT_HELP
from app.cli.stack import demo, up

cli = typer.Typer(
    name="deliberate",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    epilog=EXIT_HELP,
)

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

cli.command("up", epilog=EXIT_HELP)(up.up)
cli.command("demo", epilog=EXIT_HELP)(demo.demo)
cli.command("ask", epilog=EXIT_HELP)(ask.ask)
cli.command("watch", epilog=EXIT_HELP)(watch.watch)
cli.command("list", epilog=EXIT_HELP)(show.list_deliberations)
cli.command("show", epilog=EXIT_HELP)(show.show)
cli.command("cancel", epilog=EXIT_HELP)(show.cancel)
cli.command("roles", epilog=EXIT_HELP)(show.roles)
cli.command("cluster", epilog=EXIT_HELP)(cluster.cluster)
cli.command("strategies", epilog=EXIT_HELP)(strategies.strategies)
cli.command("openapi", epilog=EXIT_HELP)(openapi.openapi)
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
