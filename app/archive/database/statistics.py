"""Statistics: sums of whole days, of whole hours at both ends of a period, and single measures beside them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from math import ceil
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, func, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.api.schemas import Durations, Figures, GroupFigures, Stats, StatsGroup, Tokens, Wins
from app.archive.database.measures import DAY_US, MILLION, WIDTHS_US, shape
from app.archive.database.rows import instant, microseconds
from app.archive.database.tables import AMOUNTS, active, deliberations, logs, measures, rollups
from app.catalog.entries import BENCH
from app.deliberation.calls import Money, UsageCost
from app.deliberation.facts import TERMINAL_STATUS
from app.deliberation.quote import QuoteHistory, RoleHistory
from app.deliberation.specification import Specification

# A whole number of days, after the last time that a request can name.
_LATEST_US = 4_000_000 * DAY_US


@dataclass(frozen=True, slots=True)
class StatsFilter:
    """Selects deliberations by tenant and acceptance, from `since` until `until`, or `as_of` where that is None.

    Without `bench` it leaves out what a benchmark asked.
    """

    tenant: str | None
    since: datetime
    until: datetime | None
    as_of: datetime
    by: StatsGroup | None = None
    bench: bool = True


def day_name(day: int) -> str:
    return instant(day * DAY_US).date().isoformat()


@dataclass(slots=True)
class _Sum:
    amounts: Counter[str] = field(default_factory=Counter[str])
    numbers: Counter[str] = field(default_factory=Counter[str])
    durations: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    # The number of deliberations by currency, and what they cost in millionths.
    costs: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def add(self, row: Any) -> None:  # noqa: ANN401 -- a row of `_selection`
        amounts = {name: int(getattr(row, name)) for name in AMOUNTS}
        self.amounts.update(amounts)
        self.numbers[row.status] += amounts["number"]
        if row.status == "completed":
            number, took_us = self.durations.get(row.duration, (0, 0))
            self.durations[row.duration] = number + amounts["number"], took_us + amounts["took_us"]
        if row.currency:
            number, millionths = self.costs.get(row.currency, (0, 0))
            self.costs[row.currency] = number + amounts["number"], millionths + amounts["cost_millionths"]

    def _percentile(self, share: float) -> float | None:
        rank = ceil(share * self.numbers["completed"])
        for _, (number, took_us) in sorted(self.durations.items()):
            rank -= number
            if rank <= 0:
                return took_us / number / MILLION
        return None

    def _costs(self) -> tuple[UsageCost | None, tuple[Money, ...]]:
        ordered = sorted(self.costs.items(), key=lambda cost: (-cost[1][0], cost[0]))
        sums = [Money(amount=Decimal(cost).scaleb(-6), currency=currency) for currency, (_, cost) in ordered]
        if not sums:
            return None, ()
        return UsageCost(**dict(sums[0]), unpriced_calls=self.amounts["unpriced_calls"]), tuple(sums[1:])

    def figures(self, active: int) -> Figures:
        amounts, ended, completed = self.amounts, self.amounts["number"], self.numbers["completed"]
        cost, other_costs = self._costs()
        return Figures(
            total=ended + active,
            active=active,
            **{status: self.numbers[status] for status in TERMINAL_STATUS.values()},
            seconds=Durations(
                mean=amounts["took_us"] / completed / MILLION if completed else None,
                p50=self._percentile(0.5),
                p95=self._percentile(0.95),
                p99=self._percentile(0.99),
            ),
            tokens=Tokens(**{name: amounts[name] for name in Tokens.model_fields}),
            cost=cost,
            other_costs=other_costs,
            agreement=amounts["agreement_ppm"] / amounts["agreeing"] / MILLION if amounts["agreeing"] else None,
            degraded_share=amounts["degraded"] / ended if ended else None,
        )

    def wins(self) -> Wins:
        won, decided = self.amounts["won"], self.amounts["decided"]
        return Wins(won=won, decided=decided, rate=won / decided if decided else None)


async def statistics(connection: AsyncConnection, asked: StatsFilter) -> Stats:
    running = await _active(connection, asked)
    total, groups = _Sum(), defaultdict[str, _Sum](_Sum, {name: _Sum() for name in running if name})
    compete = asked.by if asked.by in ("role", "model") else None
    for row in await connection.execute(_selection(asked, "strategy", None if compete else asked.by)):
        total.add(row)
        if asked.by is not None and compete is None:
            groups[day_name(row.day) if asked.by == "day" else row.name].add(row)
    if compete is not None:
        for row in await connection.execute(_selection(asked, compete, compete)):
            groups[row.name].add(row)
    figures = (
        GroupFigures(name=name, wins=group.wins() if compete else None, **dict(group.figures(running[name])))
        for name, group in sorted(groups.items())
    )
    period = {"from_": asked.since, "to": asked.until or asked.as_of}
    return Stats(**period, by=asked.by, groups=tuple(figures), **dict(total.figures(running[""])))


async def history(connection: AsyncConnection, tenant: str, asked: Specification, since: datetime) -> QuoteHistory:
    """The history of a tenant since `since`, over whole days: deliberations of one shape, and calls of its roles."""
    row, roles = rollups.c, {agent.role for agent in asked.agents}
    like = or_(and_(row.kind == "shape", row.name == shape(asked)), and_(row.kind == "role", row.name.in_(roles)))
    of = (row.width_us == DAY_US, row.tenant == tenant, row.begin_us >= microseconds(since), row.status == "completed")
    sums = [func.sum(row[name]).label(name) for name in ("number", "calls", "completion_tokens")]
    rows = await connection.execute(select(row.kind, row.name, *sums).where(like, *of).group_by(row.kind, row.name))
    deliberations, calls, by_role = 0, 0, dict[str, RoleHistory]()
    for group in rows:
        if group.kind == "shape":
            deliberations, calls = int(group.number), int(group.calls)
        elif group.calls:
            by_role[group.name] = RoleHistory(calls=int(group.calls), completion_tokens=int(group.completion_tokens))
    return QuoteHistory(deliberations=deliberations, calls=calls, by_role=by_role)


async def _active(connection: AsyncConnection, asked: StatsFilter) -> Counter[str]:
    row, counted = deliberations.c, Counter[str]()
    chosen = select(row.tenant, row.created_us, row.strategy, row.summary).where(active())
    # A log that was lost left deliberations without an end.
    chosen = chosen.where(row.log == select(func.max(logs.c.number)).scalar_subquery())
    chosen = chosen.where(row.created_us >= microseconds(asked.since))
    if asked.until is not None:
        chosen = chosen.where(row.created_us < microseconds(asked.until))
    if asked.tenant is not None:
        chosen = chosen.where(row.tenant == asked.tenant)
    for tenant, created_us, strategy, summary in await connection.execute(chosen):
        if not asked.bench and BENCH in json.loads(summary)["metadata"].items():
            continue
        counted[""] += 1
        match asked.by:
            case None | "model":
                continue
            case "day":
                counted[day_name(created_us // DAY_US)] += 1
            case "strategy":
                counted[strategy] += 1
            case "role":
                counted.update(json.loads(summary)["roles"].keys())
            case "tenant":
                counted[tenant] += 1
    return counted


def _selection(asked: StatsFilter, kind: str, by: StatsGroup | None) -> Select[Any]:
    until_us = _LATEST_US if asked.until is None else microseconds(asked.until)
    parts = union_all(*_parts(asked, kind, microseconds(asked.since), until_us)).subquery().c
    groups: dict[StatsGroup | None, Any] = {"day": parts.day, "tenant": parts.tenant.label("name")}
    key = [parts.status, parts.duration, parts.currency, *(() if by is None else (groups.get(by, parts.name),))]
    return select(*key, *(func.sum(parts[name]).label(name) for name in AMOUNTS)).group_by(*key)


def _parts(
    asked: StatsFilter, kind: str, since_us: int, until_us: int, widths_us: Sequence[int] = WIDTHS_US
) -> Iterator[Select[Any]]:
    """Selects sums of whole days, of whole hours at both ends, and single rows beside them.

    Monday 22:30 to Thursday 01:00: half an hour of rows, one hour, two days, one hour.
    """
    if since_us >= until_us:
        return
    if not widths_us:
        row = measures.c
        yield _chosen(measures, row.created_us, asked, kind).where(
            row.created_us >= since_us, row.created_us < until_us
        )
        return
    width_us, *shorter = widths_us
    first_us, end_us = -(-since_us // width_us) * width_us, until_us // width_us * width_us
    if first_us >= end_us:
        yield from _parts(asked, kind, since_us, until_us, shorter)
        return
    row = rollups.c
    whole = _chosen(rollups, row.begin_us, asked, kind).where(row.width_us == width_us)
    yield whole.where(row.begin_us >= first_us, row.begin_us < end_us)
    yield from _parts(asked, kind, since_us, first_us, shorter)
    yield from _parts(asked, kind, end_us, until_us, shorter)


def _chosen(table: Table, at_us: ColumnElement[int], asked: StatsFilter, kind: str) -> Select[Any]:
    columns = [table.c[name] for name in ("tenant", "name", "status", "duration", "currency", *AMOUNTS)]
    chosen = select((at_us // DAY_US).label("day"), *columns).where(table.c.kind == kind)
    if not asked.bench:
        chosen = chosen.where(table.c.bench == 0)
    return chosen if asked.tenant is None else chosen.where(table.c.tenant == asked.tenant)
