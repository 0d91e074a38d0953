"""Columns and labels that lists ask for, also of deliberations that are there already."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from app.archive.database import transcript
from app.archive.database.rows import Written, labels_of, row_of
from app.deliberation.fold import state_of

revision = "0002"
down_revision = "0001"
_AT_ONCE = 256
_COLUMNS: Sequence[tuple[str, type[sa.types.TypeEngine[Any]] | sa.String]] = (
    ("accepted", sa.BigInteger),
    ("started_us", sa.BigInteger),
    ("ended_us", sa.BigInteger),
    ("strategy", sa.String(64)),
    ("summary", sa.Text),
)
# Version 0007 drops them again.
_UNUSED: Sequence[tuple[str, type[sa.types.TypeEngine[Any]] | sa.String]] = (
    ("models", sa.Text),
    ("prompt_tokens", sa.BigInteger),
    ("cached_tokens", sa.BigInteger),
    ("completion_tokens", sa.BigInteger),
    ("calls", sa.Integer),
    ("agreement", sa.Float),
    ("winner_role", sa.String(64)),
    ("winner_model", sa.Text),
    ("degraded", sa.Boolean),
)


def upgrade() -> None:
    """Add and fill the columns and the table."""
    columns = (*_COLUMNS, *_UNUSED)
    order = "log", *(name for name, _ in columns), "facts"
    # SQLite adds columns at the end only, so that its table is made anew.
    with op.batch_alter_table("deliberations", partial_reordering=[order]) as table:
        for name, kind in columns:
            table.add_column(sa.Column(name, kind, nullable=True))
    op.create_index("deliberations_by_acceptance", "deliberations", ["tenant", "accepted"])
    op.create_index("deliberations_by_status", "deliberations", ["tenant", "status", "accepted"])
    op.create_table(
        "labels",
        sa.Column("label", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("accepted", sa.BigInteger, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    op.create_index("labels_by_acceptance", "labels", ["accepted"])
    _fill(op.get_bind(), [name for name, _ in _COLUMNS])


def _fill(connection: sa.Connection, names: Sequence[str]) -> None:
    """Fill the rows of what has ended from their facts. What runs is written with its next fact."""
    table = sa.table("deliberations", *map(sa.column, ("tenant", "id", "log", "facts", *names)))
    labels = sa.table("labels", sa.column("label"), sa.column("accepted"))
    row, last = table.c, ("", "")
    key = sa.tuple_(row.tenant, row.id)
    changed = sa.update(table).where(row.tenant == sa.bindparam("of_tenant"), row.id == sa.bindparam("of_id"))
    while True:
        chosen = sa.select(row.tenant, row.id, row.log, row.facts).where(row.facts.is_not(None), key > last)
        found = connection.execute(chosen.order_by(row.tenant, row.id).limit(_AT_ONCE)).all()
        if not found:
            return
        last, rows, marks = (found[-1].tenant, found[-1].id), list[dict[str, object]](), list[dict[str, object]]()
        for each in found:
            records = transcript.unpack(each.tenant, each.id, each.facts)
            state = state_of(records)
            assert state is not None, "only what has ended has facts"
            filled = row_of(Written(each.tenant, each.id, state.accepted.ts, state, records), each.log)
            rows.append({"of_tenant": each.tenant, "of_id": each.id, **{name: filled[name] for name in names}})
            marks += [{"label": label, "accepted": filled["accepted"]} for label in labels_of(each.tenant, state)]
        connection.execute(changed.values({name: sa.bindparam(name) for name in names}), rows)
        connection.execute(sa.insert(labels), marks)
