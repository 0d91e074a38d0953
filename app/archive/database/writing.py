"""The rows of a deliberation in all tables, and the statements that write them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import bindparam, case, delete, func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.admission.backlog import Key
from app.archive.database import texts
from app.archive.database.connection import insert
from app.archive.database.measures import Measure, measures_of, replace
from app.archive.database.rows import Written, labels_of, row_of
from app.archive.database.tables import active, deliberations, labels
from app.archive.database.words import document
from app.deliberation.fold import IN_PROGRESS, PENDING


class Opening(NamedTuple):
    """A stage's opening at `at_us`; the first one is the start. `progress` is that of `rows.progress_of`."""

    key: Key
    version: int
    at_us: int
    progress: str


class Rows(NamedTuple):
    """All rows of a deliberation. Only an ended one has measures; a tombstone has neither words nor labels."""

    key: Key
    row: Mapping[str, object]
    words: str | None = None
    labels: Sequence[int] = ()
    measures: Sequence[Measure] = ()


def rows_of(written: Written, log: int, dialect: str) -> Rows:
    """Returns the rows of a deliberation of the log with this number; a tombstone belongs to no log."""
    key, row, state = (written.tenant, written.deliberation_id), row_of(written, log), written.state
    if state is None:
        return Rows(key, row)
    words, labels = texts.written(dialect, document(written.tenant, state)), sorted(labels_of(written.tenant, state))
    return Rows(key, row, words, labels, list(measures_of(written.tenant, state)) if state.ended else ())


async def put(connection: AsyncConnection, dialect: str, batch: Sequence[Rows]) -> None:
    if not batch:
        return
    # One order of rows, so that no two writers wait for each other.
    rows = {deliberation.key: deliberation for deliberation in sorted(batch, key=lambda deliberation: deliberation.key)}
    changed = await connection.execute(_upsert(dialect), [deliberation.row for deliberation in rows.values()])
    placed = [(written.accepted, rows[written.tenant, written.id]) for written in changed]
    await _put_labels(connection, dialect, placed)
    await _put_texts(connection, dialect, placed)
    measured = [measure for _, deliberation in placed for measure in deliberation.measures]
    await replace(connection, dialect, [deliberation.key for _, deliberation in placed], measured)


@cache
def _upsert(dialect: str) -> Any:  # noqa: ANN401 -- see `insert`
    row, statement = deliberations.c, insert(dialect, deliberations)
    columns = {column.name: statement.excluded[column.name] for column in row if not column.primary_key}
    # A tombstone keeps its place, by which it is removed from other tables.
    columns["accepted"] = func.coalesce(row.accepted, statement.excluded.accepted)
    newer = statement.excluded.version > row.version
    return statement.on_conflict_do_update(index_elements=["tenant", "id"], set_=columns, where=newer).returning(
        row.tenant, row.id, row.accepted
    )


async def put_openings(connection: AsyncConnection, openings: Sequence[Opening]) -> None:
    if openings:
        parameters = [
            {"of_tenant": opening.key[0], "of_id": opening.key[1], "to": opening.version, "at_us": opening.at_us}
            | {"opened": opening.progress}
            for opening in sorted(openings)
        ]
        await connection.execute(_opening(), parameters)


@cache
def _opening() -> Any:  # noqa: ANN401 -- see `_upsert`
    row = deliberations.c
    same = row.tenant == bindparam("of_tenant"), row.id == bindparam("of_id"), row.version < bindparam("to")
    started_us = func.coalesce(row.started_us, bindparam("at_us"))
    changed: dict[Any, Any] = {row.version: bindparam("to"), row.started_us: started_us}
    changed |= {row.progress: bindparam("opened")}
    # A request to cancel is shown until the end.
    status = case((row.status == PENDING, IN_PROGRESS), else_=row.status)
    return update(deliberations).where(*same, active()).values(changed | {row.status: status})


_Placed = Sequence[tuple[int | None, Rows]]


async def _put_labels(connection: AsyncConnection, dialect: str, placed: _Placed) -> None:
    """Write the labels of these rows, and remove those of tombstones. An acceptance never changes its labels."""
    places = [place for place, deliberation in placed if place is not None and not deliberation.labels]
    if places:
        await connection.execute(delete(labels).where(labels.c.accepted.in_(places)))
    rows = [{"label": label, "accepted": place} for place, deliberation in placed for label in deliberation.labels]
    if rows:
        await connection.execute(insert(dialect, labels).on_conflict_do_nothing(), rows)


async def _put_texts(connection: AsyncConnection, dialect: str, placed: _Placed) -> None:
    words = [
        {"rowid": place, "words": deliberation.words}
        for place, deliberation in placed
        if deliberation.words is not None
    ]
    gone = [place for place, deliberation in placed if deliberation.words is None and place is not None]
    if words:
        await connection.execute(texts.PUT[dialect], words)
    if gone:
        await connection.execute(texts.removal(gone))
