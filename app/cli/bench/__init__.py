"""`deliberate bench`: measurements. `quality` measures the benefit of deliberation on questions with answers."""

import typer

from app.cli.bench.quality import quality
from app.cli.exits import EXIT_HELP

bench_cli = typer.Typer(no_args_is_help=True, help="Measure the benefit of deliberation.", epilog=EXIT_HELP)
bench_cli.command("quality", epilog=EXIT_HELP)(quality)


@bench_cli.callback()
def bench() -> None:
    """Measure the benefit of deliberation."""
