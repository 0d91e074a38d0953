"""A page of deliberations as a table."""

from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app.api.schemas import DeliberationPage
from app.cli.render.report import took_text
from app.cli.render.text import age_text, line_of, plain, status_text

_ID_CHARS_MIN = 10
_COUNCIL_WIDTH_MAX = 11
_TASK_WIDTH_MIN = 22
_TASK_CHARS_MAX = 60


def short_ids(ids: list[str]) -> list[str]:
    """The beginnings of ids, long enough to differ on this page."""
    chars, longest = _ID_CHARS_MIN, max(map(len, ids), default=0)
    while chars < longest and len({each[:chars] for each in ids}) < len(ids):
        chars += 1
    return [each[:chars] for each in ids]


def deliberations_table(page: DeliberationPage, now: datetime) -> RenderableType:
    """One row per deliberation of a page; strategies if they differ, and the option for the next page."""
    if not page.items:
        return Text("no deliberations", "dim")
    strategies_differ = len({found.strategy for found in page.items}) > 1
    more = f"more: --cursor {page.next_cursor}" if page.next_cursor else None
    table = Table(box=None, pad_edge=False, caption=more, caption_justify="left")
    for column in ("id", "status", "age", "took"):
        table.add_column(column, no_wrap=True)
    # A cell begins with the strategy where strategies differ: `vote 3×DEV`.
    table.add_column("strategy" if strategies_differ else "council", max_width=_COUNCIL_WIDTH_MAX)
    table.add_column("task", ratio=1, min_width=_TASK_WIDTH_MIN)
    for id, found in zip(short_ids([item.id for item in page.items]), page.items, strict=True):
        council = [entry.role if entry.count == 1 else f"{entry.count}×{entry.role}" for entry in found.agents]
        table.add_row(
            plain(id),
            status_text(found.status),
            age_text(found.created_at, now),
            took_text(found.created_at, found.ended_at) or "–",
            plain(" ".join([found.strategy, *council] if strategies_differ else council)),
            Text(line_of(found.task, _TASK_CHARS_MAX)),
        )
    return table
