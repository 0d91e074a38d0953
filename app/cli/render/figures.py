"""Statistics on a screen of 80 columns: the figures of a period, and a row for each group."""

from collections.abc import Iterator
from datetime import UTC

from rich.console import Group
from rich.table import Table
from rich.text import Text

from app.api.schemas import Figures, GroupFigures, Spend, Stats
from app.cli.render.panels import seconds
from app.cli.render.ranking import plain
from app.deliberation.calls import Money

_NONE = "–"
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def brief_number(number: int) -> str:
    """A number in four characters or a few more: 950, 15.1k, 4.2M."""
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return str(number)


def _took(value_s: float | None) -> str:
    return _NONE if value_s is None else seconds(value_s)


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0%}"


def _agreement(found: Figures) -> str:
    return _NONE if found.agreement is None else f"{found.agreement:+.2f}"


def spend_text(spend: Spend) -> str:
    """What a tenant has spent today, of its limit."""
    spent, reserved, limit = (
        str(Money(amount=amount, currency=spend.currency)) for amount in (spend.spent, spend.reserved, spend.limit)
    )
    running = f", and what runs may cost {reserved}" if spend.reserved else ""
    return (
        f"{spent} of {limit} today{running}; a new day begins at {spend.resets_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    )


def _figures(found: Figures) -> Iterator[tuple[str, str]]:
    counts = {name: getattr(found, name) for name in ("completed", "failed", "cancelled", "timeout", "active")}
    known = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    yield "deliberations", f"{found.total:,}{f': {known}' if known else ''}"
    took = found.seconds
    figures = {"mean": took.mean, "p50": took.p50, "p95": took.p95, "p99": took.p99}
    if took.mean is not None:
        yield "duration", ", ".join(f"{name} {_took(value_s)}" for name, value_s in figures.items())
    prompt, cached, completion = (
        brief_number(each)
        for each in (found.tokens.prompt_tokens, found.tokens.cached_tokens, found.tokens.completion_tokens)
    )
    yield "tokens", f"{prompt} prompt ({cached} of them cached), {completion} completion"
    if found.cost is not None:
        yield "cost", "; ".join(map(str, (found.cost, *found.other_costs)))
    if found.agreement is not None:
        yield "agreement", _agreement(found)
    if found.degraded_share is not None:
        yield "degraded", _share(found.degraded_share)


def _cost(found: GroupFigures, currency: str) -> str:
    """The amount, its currency where that is another, and a plus where there are further ones."""
    cost = found.cost
    if cost is None:
        return _NONE
    named = "" if cost.currency == currency else f" {cost.currency}"
    amount = f"{cost.amount:,.2f}" if cost.amount >= 1 else f"{cost.amount.normalize():f}"
    return f"{amount}{'+' * bool(found.other_costs)}{named}"


def _row(found: GroupFigures, currency: str | None) -> Iterator[Text]:
    yield plain(found.name)
    spent = found.tokens.prompt_tokens + found.tokens.completion_tokens
    took = _took(found.seconds.p50), _took(found.seconds.p95)
    costs = () if currency is None else (_cost(found, currency),)
    cells = (f"{found.total:,}", f"{found.completed:,}", *took, brief_number(spent), *costs, _agreement(found))
    for cell in cells:
        yield Text(cell)
    yield Text(_share(found.degraded_share))
    if found.wins is not None:
        yield Text(_share(found.wins.rate))


def stats_text(found: Stats) -> Group:
    """The period, its figures, and its groups."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    begin, end = (f"{each.astimezone(UTC):%Y-%m-%d %H:%M}" for each in (found.from_, found.to))
    grid.add_row("period", f"{begin} to {end} UTC")
    for row in _figures(found):
        grid.add_row(*row)
    if found.spend is not None:
        grid.add_row("spend", spend_text(found.spend))
    if not found.groups:
        return Group(grid)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column(str(found.by), overflow="fold")
    wins = ("won",) if found.by in ("role", "model") else ()
    currency = None if found.cost is None else found.cost.currency
    costs = () if currency is None else (f"cost {currency}",)
    for column in ("total", "completed", "p50", "p95", "tokens", *costs, "agreement", "degraded", *wins):
        table.add_column(column, justify="right", no_wrap=True)
    for group in found.groups:
        table.add_row(*_row(group, currency))
    return Group(grid, "", table)
