"""Pages of deliberations, and files, as tables."""

from datetime import datetime

from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from app.api.schemas import DeliberationPage, File, FileList
from app.cli.render.report import took_text
from app.cli.render.text import age_text, counted, figure, line_of, plain, status_text

_ID_CHARS_MIN = 10
_COUNCIL_WIDTH_MAX = 11
_TASK_WIDTH_MIN = 22
_CELL_CHARS_MAX = 60


def short_ids(ids: list[str]) -> list[str]:
    """The beginnings of ids, long enough to differ on this page."""
    chars, longest = _ID_CHARS_MIN, max(map(len, ids), default=0)
    while chars < longest and len({id[:chars] for id in ids}) < len(ids):
        chars += 1
    return [id[:chars] for id in ids]


def deliberations_table(page: DeliberationPage, now: datetime) -> RenderableType:
    """One row per deliberation of a page; strategies if they differ, and the option for the next page."""
    if not page.items:
        return Text("no deliberations", "dim")
    strategies_differ = len({deliberation.strategy for deliberation in page.items}) > 1
    more = f"more: --cursor {page.next_cursor}" if page.next_cursor else None
    table = Table(box=None, pad_edge=False, caption=more, caption_justify="left")
    for column in ("id", "status", "age", "took"):
        table.add_column(column, no_wrap=True)
    # A cell begins with the strategy where strategies differ: `vote 3×DEV`.
    table.add_column("strategy" if strategies_differ else "council", max_width=_COUNCIL_WIDTH_MAX)
    table.add_column("task", ratio=1, min_width=_TASK_WIDTH_MIN)
    for id, deliberation in zip(short_ids([item.id for item in page.items]), page.items, strict=True):
        council = [entry.role if entry.count == 1 else f"{entry.count}×{entry.role}" for entry in deliberation.agents]
        table.add_row(
            plain(id),
            status_text(deliberation.status),
            age_text(deliberation.created_at, now),
            took_text(deliberation.created_at, deliberation.ended_at) or "–",
            plain(" ".join([deliberation.strategy, *council] if strategies_differ else council)),
            Text(line_of(deliberation.task, _CELL_CHARS_MAX)),
        )
    return table


def file_text(file: File) -> str:
    """A stored file in a line, without its id."""
    pages = "" if file.pages is None else f", {counted(file.pages, 'page')}"
    return f"{line_of(file.name)}: {file.media_type}, {decimal(file.bytes)}{pages}, about {file.tokens:,} tokens"


def files_table(files: FileList, now: datetime) -> RenderableType:
    """One row per file; `ends` is the time until a file is removed that no deliberation names."""
    if not files.files:
        return Text("no files; `deliberate files upload PATH` stores one", "dim")
    table = Table(box=None, pad_edge=False)
    table.add_column("id", no_wrap=True)
    table.add_column("name", overflow="fold")
    for column in ("kind", "size", "tokens", "pages", "ends"):
        table.add_column(column, justify="left" if column == "kind" else "right", no_wrap=True)
    for id, file in zip(short_ids([file.id for file in files.files]), files.files, strict=True):
        table.add_row(
            plain(id),
            Text(line_of(file.name, _CELL_CHARS_MAX)),
            file.kind,
            decimal(file.bytes),
            f"{file.tokens:,}",
            figure(file.pages, "d"),
            "in use" if file.expires_at is None else f"in {age_text(now, file.expires_at)}",
        )
    return table
