"""Measured figures stand in docs/figures.md alone, each table with its command, which writes it there."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import figures
from benchmarks.figures import PAGE, commands, markdown, with_figure
from tests.components.docs.tables import ROOT

FIGURES = PAGE.read_text(encoding="utf-8")
# Decisions keep the figure that decided, pages of strategies what follows from formulas.
OTHER_PAGES = [
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md"), *ROOT.glob("examples/*.md"))
    if page != PAGE
]
TABLE = re.compile(r"^(?:\|.*\|\n)+", re.MULTILINE)
TAKEN = re.compile(r"^`[^`]+`, \d{4}-\d{2}-\d{2}, [0-9a-f]{8}, \d+ cores:$")
MEASURED = re.compile(r"^[≥≤]? ?[\d.,]+ (ms|s|%|[KMG]i?B)\b|^[≥≤]? ?\d[\d,]*\.\d+$")


def rows(table: str) -> list[str]:
    return table.splitlines()[2:]


def is_measured(table: str) -> bool:
    """Whether most cells behind the first column are amounts with a unit or a fraction."""
    cells = [cell.strip() for row in rows(table) for cell in row.split("|")[2:-1] if cell.strip()]
    return 2 * sum(MEASURED.match(cell) is not None for cell in cells) > len(cells)


def test_every_table_of_figures_stands_behind_its_command_with_date_commit_and_machine() -> None:
    outside = re.sub(r"<!-- figure ([a-z0-9-]+) -->.*?<!-- /figure \1 -->", "", FIGURES, flags=re.DOTALL)
    assert TABLE.findall(outside) == []
    opened = re.findall(r"<!-- figure (\S+) -->\n(.*)", FIGURES)
    assert len(opened) >= 20
    assert [name for name, _ in opened] == list(commands(FIGURES))
    assert [name for name, line in opened if not TAKEN.match(line)] == []


@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_other_page_has_a_table_of_measured_figures(page: Path) -> None:
    tables = TABLE.findall(page.read_text(encoding="utf-8"))
    measured = {row for table in TABLE.findall(FIGURES) for row in rows(table)}
    assert [row for table in tables for row in rows(table) if row in measured] == []
    moved = f"its table belongs into {PAGE.relative_to(ROOT)}, between markers with its command"
    # Strategies against theory: what formulas predict.
    predicted = "| strategy | setting | right | calls |"
    assert [table for table in tables if is_measured(table) and not table.startswith(predicted)] == [], moved


def test_a_command_writes_its_output_into_its_own_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "figures.md"
    text = "<!-- figure {0} -->\n`echo {0} took 3 ms`, yesterday:\n\nold\n<!-- /figure {0} -->\n"
    page.write_text(text.format("one") + text.format("two"))
    monkeypatch.setattr(figures, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["figures", "two"])
    figures.main()
    one, two = page.read_text().split("<!-- /figure one -->\n")
    assert one + "<!-- /figure one -->\n" == text.format("one")
    assert "```text\ntwo took 3 ms\n```" in two
    assert TAKEN.match(two.splitlines()[1])


def test_a_command_that_fails_leaves_the_page_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "figures.md"
    text = "<!-- figure one -->\n`false`, yesterday:\n\nold\n<!-- /figure one -->\n"
    page.write_text(text)
    monkeypatch.setattr(figures, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["figures", "one"])
    with pytest.raises(SystemExit, match="one: `false` ended with 1; the page is as it was"):
        figures.main()
    assert page.read_text() == text


def test_a_drawn_table_becomes_markdown() -> None:
    drawn = StringIO()
    table = Table("case", "rate", title="A title")
    table.add_row("with room", "1.20")
    table.add_row("full", "")
    Console(file=drawn, width=60).print(table)
    assert markdown(drawn.getvalue()) == (
        "```text\nA title\n```\n\n| case | rate |\n|---|---|\n| with room | 1.20 |\n| full |  |"
    )


def test_json_of_rows_and_columns_becomes_markdown() -> None:
    assert markdown('{"vote: tokens": 1334.4, "vote: share": 0.63352, "fuse: tokens": 8}') == (
        "|  | tokens | share |\n|---|---|---|\n| vote | 1,334 | 0.6335 |\n| fuse | 8 |  |"
    )


def test_other_figures_stay_as_they_are() -> None:
    name = next(iter(commands(FIGURES)))
    changed = with_figure(FIGURES, name, "now", "measured")
    assert "```text\nmeasured\n```" in changed
    assert changed.partition(f"<!-- /figure {name} -->")[2] == FIGURES.partition(f"<!-- /figure {name} -->")[2]
