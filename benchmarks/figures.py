"""`python -m benchmarks.figures NAME…`: run the command of a figure, and write what it prints into docs/figures.md.

A figure stands there between `<!-- figure NAME -->` and `<!-- /figure NAME -->`. Its first line has the command, then
the date, commit and machine of the last run. Tables that the command draws become Markdown, and so does a JSON object
whose names are `row: column`. Other lines stay as they are, in a block of text.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures.md"
_FIGURE = re.compile(
    r"<!-- figure (?P<name>[a-z0-9-]+) -->\n(?P<text>`(?P<command>[^`]+)`.*?)<!-- /figure (?P=name) -->", re.DOTALL
)
# Rich draws the lines of a table with these, and its rows with the last two.
_BORDERS = re.compile(r"[┏┡└┳╇┴━─┩┓┘├┼┤]+")
_COLUMNS = re.compile("[┃│]")


def commands(page: str) -> dict[str, str]:
    """The command of each figure of the page."""
    return {figure["name"]: figure["command"] for figure in _FIGURE.finditer(page)}


def with_figure(page: str, name: str, taken: str, output: str) -> str:
    """The page with what a figure's command printed; `taken` says when and where."""

    def rewritten(figure: re.Match[str]) -> str:
        if figure["name"] != name:
            return figure[0]
        opening, ending = f"<!-- figure {name} -->", f"<!-- /figure {name} -->"
        return f"{opening}\n`{figure['command']}`, {taken}:\n\n{markdown(output)}\n{ending}"

    return _FIGURE.sub(rewritten, page)


def markdown(output: str) -> str:
    """What a command printed, as Markdown."""
    parts, text = list[str](), list[str]()
    rows = list[list[str]]()

    def end_table() -> None:
        if rows:
            parts.append(_table(rows))
            rows.clear()

    def end_text() -> None:
        if text:
            parts.append("\n".join(["```text", *text, "```"]))
            text.clear()

    for line in map(str.strip, output.splitlines()):
        if _COLUMNS.match(line):
            end_text()
            rows.append([cell.strip() for cell in _COLUMNS.split(line)[1:-1]])
        elif line and not _BORDERS.fullmatch(line):
            end_table()
            if line.startswith("{"):
                end_text()
                parts.append(_table(_rows_of(json.loads(line))))
            else:
                text.append(line)
    end_table()
    end_text()
    return "\n\n".join(parts)


def _rows_of(values: dict[str, float]) -> list[list[str]]:
    named = {tuple(name.split(": ", 1)): value for name, value in values.items()}
    columns = list(dict.fromkeys(column for _, column in named))
    rows = dict.fromkeys(row for row, _ in named)
    return [["", *columns], *([row, *(_number(named.get((row, column))) for column in columns)] for row in rows)]


def _number(value: float | None) -> str:
    """Four significant digits, and all digits before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _table(rows: Iterable[Iterable[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *body])


def _taken() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    return f"{date.today()}, {commit}, {os.cpu_count()} cores"


def main() -> None:
    """Run the commands of the named figures, one after the other; a command that fails leaves the page as it was."""
    known = commands(PAGE.read_text(encoding="utf-8"))
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="+", metavar="NAME", choices=known, help=f"one of {', '.join(known)}")
    for name in options.parse_args().names:
        run = subprocess.run(
            shlex.split(known[name]),
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "250"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if run.returncode:
            sys.exit(f"{name}: `{known[name]}` ended with {run.returncode}; the page is as it was")
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_figure(page, name, _taken(), run.stdout), encoding="utf-8")


if __name__ == "__main__":
    main()
