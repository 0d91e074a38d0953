"""The proof table: thousands of deliberations of simulated agents in this process, compared with closed forms."""

import asyncio
from collections.abc import Collection, Iterator

from rich.console import Console
from rich.text import Text

from app.cli.client import JsonObject
from app.cli.exits import Exit, print_json
from app.cli.render.silence import progress_reports
from app.quality.experiments import Row, run
from app.quality.figures import BAND_SIGMAS, OUTSIDE_BY_CHANCE, Figure
from app.quality.table import experiments

NOTICE = "SIMULATED: no model. This proves the strategies' code and arithmetic, not a model's quality."
_WHAT_WIDTH = 44
_RUNS = 1_000


def figure_line(figure: Figure) -> Text:
    """One figure: measured, predicted, its band, and whether it lies inside."""
    band = f"±{figure.band:.4f}" if figure.sigma else "exact"
    sign = ("✔", "green") if figure.within else ("✘ outside", "bold red")
    what = f"  {figure.what:<{_WHAT_WIDTH}}"
    return Text.assemble(what, f"{figure.measured:>8.4f}{figure.predicted:>8.4f}{band:>9}  ", sign)


def row_lines(row: Row) -> Iterator[Text]:
    """The lines of a row: its strategy and setting, then its figures."""
    yield Text.assemble((f"{row.strategy}", "bold"), f"  {row.about}", (f"  {row.runs:,} runs", "dim"))
    yield from map(figure_line, row.all)


def heading(seed: int) -> Text:
    """The table's heading."""
    columns = f"  {'':<{_WHAT_WIDTH}}{'measured':>8} {'theory':>8}{f'±{BAND_SIGMAS:g}σ':>8}"
    return Text.assemble(
        (NOTICE, "yellow"), f"\nSeed {seed}: the same seed gives the same table.\n\n", (columns, "dim")
    )


def summary_line(figures: Collection[Figure]) -> Text:
    """The number of figures inside their bands, and how many would be outside by chance."""
    inside = sum(figure.within for figure in figures)
    by_chance = OUTSIDE_BY_CHANCE * sum(figure.sigma > 0 for figure in figures)
    style = "green" if inside == len(figures) else "bold red"
    return Text.assemble(
        (f"\n{inside} of {len(figures)} figures lie within {BAND_SIGMAS:g}σ of theory", style),
        f"; by chance alone, about {by_chance:.1f} would lie outside.",
    )


def row_document(row: Row) -> JsonObject:
    """A row as JSON."""
    names = ("what", "measured", "predicted", "band", "within")
    figures = [{name: getattr(figure, name) for name in names} for figure in row.all]
    return {"strategy": row.strategy, "about": row.about, "runs": row.runs, "figures": figures}


async def proof(strategies: Collection[str], runs: int | None, seed: int, *, as_json: bool) -> Exit:
    """Measure every experiment, or those on `strategies`, and print each row as it comes; JSON at the end.

    A row has `runs` deliberations, or without it 1,000 times its experiment's effort. Returns FAILED when a figure lies
    outside its band.
    """
    console = Console(highlight=False, soft_wrap=True)
    if not as_json:
        console.print(heading(seed))
    rows: list[Row] = []
    async with progress_reports("computing the first row") as report:
        for experiment in experiments(strategies):
            report(f"computing {experiment.setting.strategy}  {experiment.about}")
            # In a thread, because a row may take longer than a command may be silent.
            row = await asyncio.to_thread(run, experiment, runs or _RUNS * experiment.effort, seed)
            rows.append(row)
            if not as_json:
                for line in row_lines(row):
                    console.print(line)
    figures = [figure for row in rows for figure in row.all]
    outside = [figure for row in rows for figure in row.outside]
    if as_json:
        about = {"simulated": True, "engine": "simulated agents, no model", "seed": seed}
        counts = {"figures": len(figures), "outside": len(outside)}
        print_json({**about, "rows": [row_document(row) for row in rows], **counts})
    else:
        console.print(summary_line(figures))
    return Exit.FAILED if outside else Exit.SUCCESS
