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


def quote_text(found: Quote) -> Group:
    """A row for each stage and for the whole, each figure as expected and at most."""
    table = Table("", *("calls", "tokens", "cost"), box=None, pad_edge=False, title="expected ≤ at most")
    rows = [(stage_text(each.purpose, each.round), each.expected, each.at_most) for each in found.stages]
    for name, *both in [*rows, ("in all", found.expected, found.at_most)]:
        shown = [(each.calls, brief_number(each.tokens), each.cost or "–") for each in both]
        table.add_row(name, *(f"{expected} ≤ {most}" for expected, most in zip(*shown, strict=True)))
    notes = list[Text]()
    if found.budget is not None:
        told = f": {printable(found.budget.detail)}" if found.budget.detail else ""
        notes.append(Text.assemble(("budget ", "yellow"), f"covers {found.budget.covers.replace('_', ' ')}{told}"))
    if found.history is not None:
        calls = counted(sum(each.calls for each in found.history.by_role.values()), "call")
        like = counted(found.history.deliberations, "deliberation")
        notes.append(Text(f"expected from {like} like it and {calls} of its roles", "dim"))
    return Group(table, *notes)


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
        yield "agreement", figure(found.agreement, "+.2f")
    if found.degraded_share is not None:
        yield "degraded", figure(found.degraded_share, ".0%")


def _cost(found: GroupFigures, currency: str) -> str:
    """The amount, its currency where that is another, and a plus where there are further ones."""
    cost = found.cost
    if cost is None:
        return "–"
    named = "" if cost.currency == currency else f" {cost.currency}"
    amount = f"{cost.amount:,.2f}" if cost.amount >= 1 else f"{cost.amount.normalize():f}"
    return f"{amount}{'+' * bool(found.other_costs)}{named}"


def _row(found: GroupFigures, currency: str | None) -> Iterator[RenderableType]:
    yield plain(found.name)
    yield f"{found.total:,}"
    yield f"{found.completed:,}"
    yield _took(found.seconds.p50)
    yield _took(found.seconds.p95)
    yield brief_number(found.tokens.prompt_tokens + found.tokens.completion_tokens)
    if currency is not None:
        yield _cost(found, currency)
    yield figure(found.agreement, "+.2f")
    yield figure(found.degraded_share, ".0%")
    if found.wins is not None:
        yield figure(found.wins.rate, ".0%")


def stats_text(found: Stats) -> Group:
    begin, end = (f"{each.astimezone(UTC):%Y-%m-%d %H:%M}" for each in (found.from_, found.to))
    rows = [("period", f"{begin} to {end} UTC"), *_figures(found)]
    rows += [] if found.spend is None else [("spend", spend_text(found.spend))]
    total = named_rows(rows, "bold")
    if not found.groups:
        return Group(total)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column(str(found.by), overflow="fold")
    wins = ("won",) if found.by in ("role", "model") else ()
    currency = None if found.cost is None else found.cost.currency
    costs = () if currency is None else (f"cost {currency}",)
    for column in ("total", "completed", "p50", "p95", "tokens", *costs, "agreement", "degraded", *wins):
        table.add_column(column, justify="right", no_wrap=True)
    for group in found.groups:
        table.add_row(*_row(group, currency))
    return Group(total, "", table)
