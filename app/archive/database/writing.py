"""The rows of a deliberation in all tables, and the statements that write them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import delete, func
from sqlalchemy.ext.asyncio import AsyncConnection

from app.admission.backlog import Key
from app.archive.database import texts
from app.archive.database.connection import insert
from app.archive.database.measures import Measure, measures_of, replace
from app.archive.database.rows import Written, labels_of, row_of
from app.archive.database.tables import deliberations, labels
from app.archive.database.words import document


class Rows(NamedTuple):
    """All that is written of a deliberation. Only an ended one has labels and measures; a tombstone has no words."""

    key: Key
    row: Mapping[str, object]
    words: str | None = None
    labels: Sequence[int] = ()
    measures: Sequence[Measure] = ()


def rows_of(written: Written, log: int, dialect: str) -> Rows:
    """The rows of a deliberation of the log with this number; a tombstone belongs to none."""
    key, row, state = (written.tenant, written.deliberation_id), row_of(written, log), written.state
    if state is None:
        return Rows(key, row)
    words = texts.written(dialect, document(written.tenant, state))
    if not state.ended:
        return Rows(key, row, words)
    return Rows(key, row, words, sorted(labels_of(written.tenant, state)), list(measures_of(written.tenant, state)))


async def put(connection: AsyncConnection, dialect: str, batch: Sequence[Rows]) -> None:
    """Write the rows of some deliberations. Newer rows of a deliberation stay."""
    # In an order in which no two writers wait for each other.
    rows = {each.key: each for each in sorted(batch, key=lambda each: each.key)}
    changed = await connection.execute(_upsert(dialect), [each.row for each in rows.values()])
    placed = [(each.accepted, rows[each.tenant, each.id]) for each in changed]
    await _put_labels(connection, dialect, placed)
    await _put_texts(connection, dialect, placed)
    measured = [measure for _, each in placed for measure in each.measures]
    await replace(connection, dialect, [each.key for _, each in placed], measured)


@cache
def _upsert(dialect: str) -> Any:  # noqa: ANN401 -- see `insert`
    """Writes rows over older ones, and returns which it wrote."""
    row, statement = deliberations.c, insert(dialect, deliberations)
    given = {column.name: statement.excluded[column.name] for column in row if not column.primary_key}
    # A tombstone keeps its place, by which it is removed from other tables.
    given["accepted"] = func.coalesce(row.accepted, statement.excluded.accepted)
    newer = statement.excluded.version > row.version
    return statement.on_conflict_do_update(index_elements=["tenant", "id"], set_=given, where=newer).returning(
        row.tenant, row.id, row.accepted
    )


_Placed = Sequence[tuple[int | None, Rows]]


async def _put_labels(connection: AsyncConnection, dialect: str, placed: _Placed) -> None:
    """Replace the labels of what was written."""
    places = [place for place, _ in placed if place is not None]
    if places:
        await connection.execute(delete(labels).where(labels.c.accepted.in_(places)))
    found = [{"label": label, "accepted": place} for place, each in placed for label in each.labels]
    if found:
        await connection.execute(insert(dialect, labels).on_conflict_do_nothing(), found)


async def _put_texts(connection: AsyncConnection, dialect: str, placed: _Placed) -> None:
    """Write the words of what was written, and remove those of what was deleted, which has none."""
    words = [{"rowid": place, "words": each.words} for place, each in placed if each.words is not None]
    gone = [place for place, each in placed if each.words is None and place is not None]
    if words:
        await connection.execute(texts.put_statement(dialect), words)
    if gone:
        await connection.execute(texts.removal(gone))
