"""`deliberate bench`: measurements. `quality` tells what deliberation is worth, of seeded minds or of real models."""

import typer

from app.cli.bench.quality import quality
from app.cli.exits import EXIT_HELP

bench_cli = typer.Typer(no_args_is_help=True, help="Measure what deliberation is worth.")
bench_cli.command("quality", epilog=EXIT_HELP)(quality)


@bench_cli.callback()
def bench() -> None:
    """Measure what deliberation is worth."""
