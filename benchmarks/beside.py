"""Runs a measurement in this checkout and in an earlier revision in turn, so that one run compares both.

A measurement is a script that prints one JSON object of figures when it is started with `--round`. It must import
nothing of `benchmarks` then, because the earlier revision may not have it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def checked_out(revision: str, directory: Path) -> Path:
    """The tree of a revision, without a work tree of git's."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", directory], input=archive.stdout, check=True)
    return directory


def measured(script: Path, tree: Path) -> dict[str, float]:
    """One round in a tree; raises CalledProcessError when it fails."""
    command = [sys.executable, "-P", str(script), "--round"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def compare(script: str, description: str | None, rounds: int) -> None:
    """Read the options, measure in rounds, and print the median of each figure, with its bounds and the ratio."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--beside", metavar="REVISION", help="measure this revision of git too, in turn")
    options.add_argument("--rounds", type=int, default=rounds)
    # The script itself obeys it, without this module.
    options.add_argument("--round", action="store_true", help="print one round's figures as JSON")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trees = {"now": ROOT}
        if given.beside:
            trees = {given.beside: checked_out(given.beside, Path(directory)), **trees}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for _ in range(given.rounds):
            for name, tree in trees.items():
                found[name].append(measured(Path(script), tree))
    table = Table("", *found, *(["ratio"] if given.beside else []))
    for figure in found["now"][0]:
        columns = [[result[figure] for result in results] for results in found.values()]
        cells = [f"{statistics.median(each):,.1f} ({min(each):,.1f}-{max(each):,.1f})" for each in columns]
        if given.beside:
            before, now = columns
            cells.append(f"{statistics.median(b / a for a, b in zip(before, now, strict=True)):.2f}")
        table.add_row(figure, *cells)
    Console(width=max(120, Console().width)).print(table)
