"""`python -m benchmarks.quality`: thousands of deliberations of simulated agents in this process, beside closed forms.

Exits with 1 when a figure lies outside its band.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from app.deliberation.strategies import STRATEGIES
from benchmarks.quality.actions import actions
from benchmarks.quality.contests import contests, judges
from benchmarks.quality.experiments import BAND_SIGMAS, OUTSIDE_BY_CHANCE, Experiment, Figure, Row, run
from benchmarks.quality.selections import programs, selections
from benchmarks.quality.votes import votes

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


def row_document(row: Row) -> dict[str, Any]:
    """A row as JSON."""
    names = ("what", "measured", "predicted", "band", "within")
    figures = [{name: getattr(figure, name) for name in names} for figure in row.all]
    return {"strategy": row.strategy, "about": row.about, "runs": row.runs, "figures": figures}


def experiments(strategies: Collection[str] = ()) -> Iterator[Experiment]:
    """All experiments in the order of the table, or only those of the given strategies."""
    for experiment in (*votes(), *selections(), *contests(), *programs(), *judges(), *actions()):
        if not strategies or experiment.setting.strategy in strategies:
            yield experiment


def proof(chosen: Collection[Experiment], runs: int | None, seed: int, *, as_json: bool) -> bool:
    """Print each row as it is measured, or one JSON document; returns whether all figures lie in their bands.

    A row has `runs` deliberations, or without it 1,000 times its experiment's effort.
    """
    console = Console(highlight=False, soft_wrap=True)
    if not as_json:
        console.print(heading(seed))
    rows: list[Row] = []
    for experiment in chosen:
        row = run(experiment, runs or _RUNS * experiment.effort, seed)
        rows.append(row)
        if not as_json:
            for line in row_lines(row):
                console.print(line)
    figures = [figure for row in rows for figure in row.all]
    outside = sum(len(row.outside) for row in rows)
    if as_json:
        counts = {"figures": len(figures), "outside": outside}
        print(json.dumps({"simulated": True, "seed": seed, "rows": [row_document(row) for row in rows], **counts}))
    else:
        console.print(summary_line(figures))
    return not outside


def main() -> None:
    """Read the options, print the table, and exit."""
    parser = ArgumentParser("python -m benchmarks.quality", description=__doc__)
    known = [name for name in STRATEGIES if name != "independent"]
    parser.add_argument("--strategy", action="append", choices=known, help="only this strategy; repeatable")
    parser.add_argument("--runs", type=int, help="deliberations per row (default: 1,000, more for cheap rows)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same table (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    chosen = list(experiments(given.strategy or ()))
    sys.exit(0 if proof(chosen, given.runs, given.seed, as_json=given.json) else 1)


if __name__ == "__main__":
    main()
