"""Pages of ended deliberations, in order of acceptance."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.archive.database.rows import instant, label, microseconds
from app.archive.database.tables import SEQUENCE_BITS, deliberations, labels, position
from app.catalog.entries import Entry, ListFilter
from app.deliberation.facts import TerminalStatus
from app.deliberation.fold import CANCELLING

RARE_MAX = 1_000
# The clocks of two gateways differ by less than this.
_SKEW_US = 60_000_000
_OTHER = deliberations.alias("other").c


@dataclass(frozen=True, slots=True)
class PageBounds:
    """Limits a page to rows of a log accepted up to `accepted_to` and with no fact above `archived_to`."""

    log: int
    accepted_to: int
    archived_to: int


def selection(
    tenant: str, asked: ListFilter, marks: Sequence[int], *, limit: int, before: int, bounds: PageBounds
) -> Select[Any]:
    """At most `limit` rows accepted before a position, newest first. Rows of logs without bounds are all shown.

    `marks` are those of the filter, the rarest first. Labels may be equal by chance: the caller filters rows once more.
    """
    row, found = deliberations.c, shown()
    within = and_(
        row.version <= position(bounds.log, bounds.archived_to),
        row.accepted <= position(bounds.log, bounds.accepted_to),
    )
    conditions = [row.tenant == tenant, or_(row.log != bounds.log, within), row.ended_us.is_not(None), *_times(asked)]
    if asked.statuses:
        conditions.append(row.status.in_(sorted(asked.statuses)))
    if not marks:
        return found.where(*conditions, row.accepted < before).order_by(row.accepted.desc()).limit(limit)
    place, others = labels.c.accepted, [labels.alias() for _ in marks[1:]]
    conditions += [
        exists().where(other.c.label == mark, other.c.accepted == place)
        for other, mark in zip(others, marks[1:], strict=True)
    ]
    # Without the sum SQLite would also compare `accepted` of the rows with the bound, and search them by that alone.
    found = found.join_from(labels, deliberations, and_(row.accepted == place + 0, row.tenant == tenant))
    return found.where(labels.c.label == marks[0], place < before, *conditions).order_by(place.desc()).limit(limit)


def shown() -> Any:  # noqa: ANN401 -- a select of many columns
    """Selects the columns that `entry_of` reads."""
    row = deliberations.c
    columns: list[Any] = [row.id, row.accepted, row.created_us, row.started_us, row.ended_us, row.status]
    return select(*columns, row.strategy, row.summary)


async def rarest_first(connection: AsyncConnection, tenant: str, asked: ListFilter) -> list[int]:
    """The labels that a row must have, the rarest first, as far as RARE_MAX rows of each tell."""
    marks = _marks(tenant, asked)
    if len(marks) < 2:
        return marks
    some = [select(labels.c.accepted).where(labels.c.label == mark).limit(RARE_MAX).subquery() for mark in marks]
    counting = select(*(select(func.count()).select_from(each).scalar_subquery() for each in some))
    counts = dict(zip(marks, (await connection.execute(counting)).one(), strict=True))
    return sorted(marks, key=counts.__getitem__)


def _marks(tenant: str, asked: ListFilter) -> list[int]:
    marks = [label(tenant, f"metadata.{name}", value) for name, value in asked.metadata.items()]
    if asked.role is not None:
        marks.append(label(tenant, "role", asked.role))
    if asked.strategy is not None:
        marks.append(label(tenant, "strategy", asked.strategy))
    return marks


def _times(asked: ListFilter) -> list[ColumnElement[bool]]:
    """The bounds of time, and places beyond them, so that a page need not look at everything that is too old or new."""
    return [*bounds_of_time(asked, deliberations.c.created_us), *bounds_of_place(asked, deliberations.c.accepted)]


def bounds_of_time(asked: ListFilter, created_us: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """The filter's bounds of time."""
    conditions = list[ColumnElement[bool]]()
    if asked.created_after is not None:
        conditions.append(created_us > microseconds(asked.created_after))
    if asked.created_before is not None:
        conditions.append(created_us < microseconds(asked.created_before))
    return conditions


def bounds_of_place(asked: ListFilter, place: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """Places beyond which nothing is within the bounds of time."""
    conditions = list[ColumnElement[bool]]()
    if asked.created_after is not None:
        after = _OTHER.created_us > microseconds(asked.created_after) - _SKEW_US
        conditions.append(place >= _edge(after).order_by(_OTHER.created_us).scalar_subquery())
    if asked.created_before is not None:
        before = _OTHER.created_us < microseconds(asked.created_before) + _SKEW_US
        conditions.append(place <= _edge(before).order_by(_OTHER.created_us.desc()).scalar_subquery())
    return conditions


def _edge(within: ColumnElement[bool]) -> Select[Any]:
    # The time of a tombstone says nothing of its place.
    return select(_OTHER.accepted).where(_OTHER.strategy.is_not(None), within).limit(1)


def entry_of(tenant: str, row: Any) -> Entry:  # noqa: ANN401 -- a row of `selection`
    """The entry of a row."""
    summary, ended = json.loads(row.summary), row.ended_us is not None
    return Entry(
        tenant=tenant,
        id=row.id,
        first_fact_at=instant(row.created_us),
        sequence=row.accepted & ((1 << SEQUENCE_BITS) - 1),
        cancelled_sequence=int(row.status == CANCELLING),
        created_at=instant(row.created_us),
        started_at=None if row.started_us is None else instant(row.started_us),
        ended=cast("TerminalStatus", row.status) if ended else None,
        ended_at=instant(row.ended_us) if ended else None,
        roles=summary["roles"],
        strategy=row.strategy,
        task=summary["task"],
        metadata=summary["metadata"],
    )
