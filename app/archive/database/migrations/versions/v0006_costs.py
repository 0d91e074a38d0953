"""Creates `measures` and `rollups` by hour and day, and fills both from archived facts."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from app.archive.database import transcript
from app.archive.database.measures import measures_of
from app.deliberation.fold import state_of

revision = "0006"
down_revision = "0005"
_AT_ONCE = 256
# The currency is a part of the key, because amounts of two currencies have no sum.
_KEY = ("kind", "width_us", "tenant", "begin_us", "name", "status", "duration", "currency")
_WIDTHS_US = (86_400_000_000, 3_600_000_000)
_AMOUNTS = (
    *("number", "took_us", "decided", "won", "agreeing", "agreement_ppm", "degraded"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "cost_millionths", "unpriced_calls"),
)


def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("duration", sa.Integer, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
    ]


def _sums() -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in _AMOUNTS]


def upgrade() -> None:
    """Create and fill both tables. Version 0004 had made them without costs."""
    op.execute("DROP TABLE IF EXISTS measures")
    op.execute("DROP TABLE IF EXISTS rollups")
    measures = op.create_table(
        "measures",
        *_columns(),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        *_sums(),
        sa.PrimaryKeyConstraint("kind", "created_us", "tenant", "id", "name"),
        sqlite_with_rowid=False,
    )
    rollups = op.create_table(
        "rollups",
        *_columns(),
        sa.Column("width_us", sa.BigInteger, nullable=False),
        sa.Column("begin_us", sa.BigInteger, nullable=False),
        *_sums(),
        sa.PrimaryKeyConstraint(*_KEY),
        sqlite_with_rowid=False,
    )
    connection = op.get_bind()
    _fill(connection, measures)
    op.create_index("measures_by_deliberation", "measures", ["tenant", "id"])
    for width_us in _WIDTHS_US:
        width, begin_us = sa.literal(width_us, sa.BigInteger), measures.c.created_us - measures.c.created_us % width_us
        rows = sa.select(measures, width.label("width_us"), begin_us.label("begin_us")).subquery().c
        key, sums = [rows[name] for name in _KEY], [sa.func.sum(rows[name]) for name in _AMOUNTS]
        summed = sa.select(*key, *sums).group_by(*key)
        connection.execute(sa.insert(rollups).from_select([*_KEY, *_AMOUNTS], summed))


def _fill(connection: sa.Connection, measures: sa.Table) -> None:
    """Measure what has ended. What runs is measured with its end."""
    table = sa.table("deliberations", *map(sa.column, ("tenant", "id", "facts")))
    columns, last = table.c, ("", "")
    key = sa.tuple_(columns.tenant, columns.id)
    while True:
        chosen = sa.select(table).where(columns.facts.is_not(None), key > last)
        found = connection.execute(chosen.order_by(columns.tenant, columns.id).limit(_AT_ONCE)).all()
        if not found:
            return
        last, rows = (found[-1].tenant, found[-1].id), list[dict[str, Any]]()
        for each in found:
            state = state_of(transcript.unpack(each.tenant, each.id, each.facts))
            assert state is not None, "only what has ended has facts"
            measured = measures_of(each.tenant, state)
            rows += ({name: row[name] for name in measures.columns.keys()} for row in measured)
        connection.execute(sa.insert(measures), rows)
