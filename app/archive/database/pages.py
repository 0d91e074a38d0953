"""Pages of deliberations in order of acceptance, the newest first."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, and_, bindparam, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.api.schemas import StageProgress
from app.archive.database.rows import instant, label, maybe_microseconds
from app.archive.database.tables import SEQUENCE_BITS, deliberations, labels
from app.catalog.entries import BENCH, Entry, ListFilter
from app.deliberation.calls import Usage
from app.deliberation.facts import TerminalStatus
from app.deliberation.fold import CANCELLING

RARE_MAX = 1_000
_MARK = "mark"
# The clocks of two gateways differ by less than this.
_SKEW_US = 60_000_000
_OTHER = deliberations.alias("other").c


def selection(
    tenant: str, asked: ListFilter, begin: int | None, *, limit: int, before: int
) -> tuple[Select[Any], dict[str, Any]]:
    """Selects at most `limit` rows before a place, newest first. Labels may collide: the caller filters again."""
    always: dict[str, Any] = {"tenant": tenant, "before": before, "limit": limit}
    filters: dict[str, Any] = {
        "statuses": sorted(asked.statuses) or None,
        "since": maybe_microseconds(asked.created_after),
        "until": maybe_microseconds(asked.created_before),
        "begin": begin,
        "bench": None if asked.bench else label(tenant, f"metadata.{BENCH[0]}", BENCH[1]),
        **_numbered(mark for mark in _marks(tenant, asked) if mark != begin),
    }
    values = always | {name: value for name, value in filters.items() if value is not None}
    return _selection(frozenset(values)), values


@lru_cache(maxsize=256)
def _selection(filters: frozenset[str]) -> Select[Any]:
    """Returns the statement for these values, made once: to make it takes a quarter of the time of a page."""
    row, statement = deliberations.c, shown()
    since, until = (bindparam(name, type_=BigInteger) if name in filters else None for name in ("since", "until"))
    conditions = [row.tenant == bindparam("tenant")]
    # Places beyond the times, so that a page need not look at everything that is too old or new.
    conditions += bounds_of_time(since, until, row.created_us) + bounds_of_place(since, until, row.accepted)
    if "statuses" in filters:
        conditions.append(row.status.in_(bindparam("statuses", expanding=True)))
    by_label = "begin" in filters
    place = labels.c.accepted if by_label else row.accepted
    for name in sorted(filters):
        if name.startswith(_MARK) or name == "bench":
            other = labels.alias().c
            marked = exists().where(other.label == bindparam(name), other.accepted == place)
            conditions.append(~marked if name == "bench" else marked)
    if by_label:
        # Without the sum SQLite would also compare `accepted` of the rows with the bound, and search them by it alone.
        statement = statement.join_from(
            labels, deliberations, and_(row.accepted == place + 0, row.tenant == bindparam("tenant"))
        )
        conditions.append(labels.c.label == bindparam("begin"))
    statement = statement.where(*conditions, place < bindparam("before"))
    return statement.order_by(place.desc()).limit(bindparam("limit", type_=Integer))


def shown() -> Any:  # noqa: ANN401 -- a select of many columns
    row = deliberations.c
    columns: list[Any] = [row.id, row.accepted, row.created_us, row.started_us, row.ended_us, row.status]
    return select(*columns, row.strategy, row.progress, row.summary, row.log)


async def beginning(connection: AsyncConnection, tenant: str, asked: ListFilter) -> int | None:
    """Returns the rarest label of a filter; None without labels or with rarer statuses. Counts stop at RARE_MAX."""
    marks = _marks(tenant, asked)
    if len(marks) + bool(asked.statuses) < 2:
        return marks[0] if marks else None
    values: dict[str, Any] = {"at_most": RARE_MAX, **_numbered(marks)}
    if asked.statuses:
        values |= {"tenant": tenant, "statuses": sorted(asked.statuses)}
    counting = _counting(len(marks), statuses=bool(asked.statuses))
    counted = (await connection.execute(counting, values)).one()
    # The first of equal ones.
    return min(zip([*marks, None], counted, strict=False), key=itemgetter(1))[0]


@lru_cache
def _counting(marks: int, *, statuses: bool) -> Any:  # noqa: ANN401 -- a select of as many columns
    label, row = labels.c.label, deliberations.c
    rows = [select(label).where(label == bindparam(name)) for name in _numbered(range(marks))]
    if statuses:
        having = row.status.in_(bindparam("statuses", expanding=True))
        rows.append(select(row.accepted).where(row.tenant == bindparam("tenant"), having))
    some = [query.limit(bindparam("at_most", type_=Integer)).subquery() for query in rows]
    return select(*(select(func.count()).select_from(query).scalar_subquery() for query in some))


def _numbered(marks: Iterable[int]) -> dict[str, int]:
    return {f"{_MARK}{number}": mark for number, mark in enumerate(marks)}


def _marks(tenant: str, asked: ListFilter) -> list[int]:
    metadata = {f"metadata.{name}": value for name, value in asked.metadata.items()}
    wanted = metadata | {"role": asked.role, "strategy": asked.strategy}
    return [label(tenant, name, value) for name, value in wanted.items() if value is not None]


Microseconds = int | ColumnElement[int] | None


def bounds_of_time(
    since: Microseconds, until: Microseconds, created_us: ColumnElement[int]
) -> list[ColumnElement[bool]]:
    conditions = list[ColumnElement[bool]]()
    if since is not None:
        conditions.append(created_us > since)
    if until is not None:
        conditions.append(created_us < until)
    return conditions


def bounds_of_place(since: Microseconds, until: Microseconds, place: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """Returns conditions on places that every row within the bounds of time fulfils."""
    conditions = list[ColumnElement[bool]]()
    if since is not None:
        later = _edge(_OTHER.created_us > since - _SKEW_US).order_by(_OTHER.created_us)
        conditions.append(place >= later.scalar_subquery())
    if until is not None:
        earlier = _edge(_OTHER.created_us < until + _SKEW_US).order_by(_OTHER.created_us.desc())
        conditions.append(place <= earlier.scalar_subquery())
    return conditions


def _edge(within: ColumnElement[bool]) -> Select[Any]:
    # The time of a tombstone says nothing of its place.
    return select(_OTHER.accepted).where(_OTHER.strategy.is_not(None), within).limit(1)


def placed_entry(tenant: str, row: Sequence[Any]) -> tuple[int, Entry]:
    # Unpacked, because reading attributes of a row takes nearly as long as all the rest.
    id, place, created_us, started_us, ended_us, status, strategy, progress, summary, _ = row
    created_at, kept, ended = instant(created_us), json.loads(summary), ended_us is not None
    entry = Entry(
        tenant=tenant,
        id=id,
        first_fact_at=created_at,
        sequence=place & ((1 << SEQUENCE_BITS) - 1),
        started_sequence=int(started_us is not None),
        cancelled_sequence=int(status == CANCELLING),
        created_at=created_at,
        started_at=None if started_us is None else instant(started_us),
        ended=cast("TerminalStatus", status) if ended else None,
        ended_at=instant(ended_us) if ended else None,
        roles=kept["roles"],
        strategy=strategy,
        task=kept["task"],
        metadata=kept["metadata"],
        progress=None if progress is None else StageProgress.model_validate_json(progress),
        usage=Usage(**kept["usage"]) if ended else None,
        winner=kept.get("winner"),
        degraded=kept.get("degraded"),
    )
    return place, entry
