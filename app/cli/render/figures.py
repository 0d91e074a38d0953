"""Statistics and quotes on a screen of 80 columns: the figures of a period, and a row for each group."""

from collections.abc import Iterator
from datetime import UTC

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.api.schemas import Figures, GroupFigures, Spend, Stats
from app.cli.render.lanes import stage_text
from app.cli.render.text import counted, figure, named_rows, plain, printable, seconds
from app.deliberation.calls import Money
from app.deliberation.quote import Quote

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def brief_number(number: int) -> str:
    """A number in four characters or a few more: 950, 15.1k, 4.2M."""
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return str(number)


def _took(value_s: float | None) -> str:
    return "–" if value_s is None else seconds(value_s)


def spend_text(spend: Spend) -> str:
    spent, reserved, limit = (
        str(Money(amount=amount, currency=spend.currency)) for amount in (spend.spent, spend.reserved, spend.limit)
    )
    running = f", and what runs may cost {reserved}" if spend.reserved else ""
    return (
        f"{spent} of {limit} today{running}; a new day begins at {spend.resets_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    )


def quote_text(quote: Quote) -> Group:
    """A row for each stage and for the whole, each figure as expected and at most."""
    table = Table("", *("calls", "tokens", "cost"), box=None, pad_edge=False, title="expected ≤ at most")
    rows = [(stage_text(stage.purpose, stage.round), stage.expected, stage.at_most) for stage in quote.stages]
    for name, *both in [*rows, ("in all", quote.expected, quote.at_most)]:
        shown = [(usage.calls, brief_number(usage.tokens), usage.cost or "–") for usage in both]
        table.add_row(name, *(f"{expected} ≤ {most}" for expected, most in zip(*shown, strict=True)))
    notes = list[Text]()
    if quote.budget is not None:
        told = f": {printable(quote.budget.detail)}" if quote.budget.detail else ""
        notes.append(Text.assemble(("budget ", "yellow"), f"covers {quote.budget.covers.replace('_', ' ')}{told}"))
    if quote.history is not None:
        calls = counted(sum(role.calls for role in quote.history.by_role.values()), "call")
        like = counted(quote.history.deliberations, "deliberation")
        notes.append(Text(f"expected from {like} like it and {calls} of its roles", "dim"))
    return Group(table, *notes)


def _figures(group: Figures) -> Iterator[tuple[str, str]]:
    counts = {name: getattr(group, name) for name in ("completed", "failed", "cancelled", "timeout", "active")}
    known = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    yield "deliberations", f"{group.total:,}{f': {known}' if known else ''}"
    took = group.seconds
    figures = {"mean": took.mean, "p50": took.p50, "p95": took.p95, "p99": took.p99}
    if took.mean is not None:
        yield "duration", ", ".join(f"{name} {_took(value_s)}" for name, value_s in figures.items())
    prompt, cached, completion = (
        brief_number(tokens)
        for tokens in (group.tokens.prompt_tokens, group.tokens.cached_tokens, group.tokens.completion_tokens)
    )
    yield "tokens", f"{prompt} prompt ({cached} of them cached), {completion} completion"
    if group.cost is not None:
        yield "cost", "; ".join(map(str, (group.cost, *group.other_costs)))
    if group.agreement is not None:
        yield "agreement", figure(group.agreement, "+.2f")
    if group.degraded_share is not None:
        yield "degraded", figure(group.degraded_share, ".0%")


def _cost(group: GroupFigures, currency: str) -> str:
    """The amount, its currency where that is another, and a plus where there are further ones."""
    cost = group.cost
    if cost is None:
        return "–"
    named = "" if cost.currency == currency else f" {cost.currency}"
    amount = f"{cost.amount:,.2f}" if cost.amount >= 1 else f"{cost.amount.normalize():f}"
    return f"{amount}{'+' * bool(group.other_costs)}{named}"


def _row(group: GroupFigures, currency: str | None) -> Iterator[RenderableType]:
    yield plain(group.name)
    yield f"{group.total:,}"
    yield f"{group.completed:,}"
    yield _took(group.seconds.p50)
    yield _took(group.seconds.p95)
    yield brief_number(group.tokens.prompt_tokens + group.tokens.completion_tokens)
    if currency is not None:
        yield _cost(group, currency)
    yield figure(group.agreement, "+.2f")
    yield figure(group.degraded_share, ".0%")
    if group.wins is not None:
        yield figure(group.wins.rate, ".0%")


def stats_text(stats: Stats) -> Group:
    begin, end = (f"{bound.astimezone(UTC):%Y-%m-%d %H:%M}" for bound in (stats.from_, stats.to))
    rows = [("period", f"{begin} to {end} UTC"), *_figures(stats)]
    rows += [] if stats.spend is None else [("spend", spend_text(stats.spend))]
    total = named_rows(rows, "bold")
    if not stats.groups:
        return Group(total)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column(str(stats.by), overflow="fold")
    wins = ("won",) if stats.by in ("role", "model") else ()
    currency = None if stats.cost is None else stats.cost.currency
    costs = () if currency is None else (f"cost {currency}",)
    for column in ("total", "completed", "p50", "p95", "tokens", *costs, "agreement", "degraded", *wins):
        table.add_column(column, justify="right", no_wrap=True)
    for group in stats.groups:
        table.add_row(*_row(group, currency))
    return Group(total, "", table)
