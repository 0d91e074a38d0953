"""The command `deliberate`. Each command lives in a module of this package and is registered here, one line each."""

import typer

cli = typer.Typer(name="deliberate", no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


@cli.callback()
def deliberate() -> None:
    """Councils of LLM agents behind a REST and SSE gateway."""


def main() -> None:
    """Run the command line; the process exits with the command's status."""
    cli()
