"""The words of deliberations for full-text search, also of those that are there already."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from app.archive.database import transcript
from app.archive.database.texts import put_statement, written
from app.archive.database.words import document
from app.deliberation.fold import state_of

revision = "0003"
down_revision = "0002"
_AT_ONCE = 256


def upgrade() -> None:
    """Create the table of words, and fill it."""
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE texts USING fts5(words, tokenize='ascii')")
    else:
        op.create_table(
            "texts",
            sa.Column("rowid", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("words", postgresql.TSVECTOR, nullable=False),
        )
        op.create_index(
            "texts_by_word", "texts", ["words"], postgresql_using="gin", postgresql_with={"fastupdate": "off"}
        )
    _fill(connection)


def _fill(connection: sa.Connection) -> None:
    """Give words to what has ended. What runs gets them with its next fact."""
    table = sa.table("deliberations", *map(sa.column, ("tenant", "id", "accepted", "facts")))
    row, last, dialect = table.c, ("", ""), connection.dialect.name
    key = sa.tuple_(row.tenant, row.id)
    while True:
        chosen = sa.select(row.tenant, row.id, row.accepted, row.facts).where(row.facts.is_not(None), key > last)
        found = connection.execute(chosen.order_by(row.tenant, row.id).limit(_AT_ONCE)).all()
        if not found:
            return
        last, rows = (found[-1].tenant, found[-1].id), list[dict[str, object]]()
        for each in found:
            state = state_of(transcript.unpack(each.tenant, each.id, each.facts))
            assert state is not None, "only what has ended has facts"
            rows.append({"rowid": each.accepted, "words": written(dialect, document(each.tenant, state))})
        connection.execute(put_statement(dialect), rows)
