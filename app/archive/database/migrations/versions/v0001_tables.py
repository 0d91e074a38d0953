"""The tables of 0.1.0, see `tables`."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

_AMOUNTS = (
    *("number", "took_us", "decided", "won", "agreeing", "agreement_ppm", "degraded"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "calls", "cost_millionths", "unpriced_calls"),
)


def upgrade() -> None:
    op.create_table(
        "logs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.String(64), nullable=False, unique=True),
        *(sa.Column(name, sa.BigInteger) for name in ("copied_to", "copied_us")),
    )
    _create_deliberations()
    op.create_table(
        "labels",
        *(sa.Column(name, sa.BigInteger, primary_key=True, autoincrement=False) for name in ("label", "accepted")),
        sqlite_with_rowid=False,
    )
    op.create_index("labels_by_acceptance", "labels", ["accepted"])
    _create_texts()
    _create_statistics()


def _create_deliberations() -> None:
    table = op.create_table(
        "deliberations",
        *(sa.Column(name, sa.String(64), primary_key=True) for name in ("tenant", "id")),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("accepted", sa.BigInteger),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in ("started_us", "ended_us")),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("log", sa.Integer, nullable=False),
        sa.Column("strategy", sa.String(64)),
        *(sa.Column(name, sa.Text) for name in ("progress", "summary")),
        sa.Column("facts", sa.LargeBinary),
    )
    op.create_index("deliberations_by_age", "deliberations", ["created_us", "tenant", "id"])
    op.create_index("deliberations_by_tenant_and_age", "deliberations", ["tenant", "created_us"])
    op.create_index("deliberations_by_acceptance", "deliberations", ["tenant", "accepted"])
    op.create_index("deliberations_by_status", "deliberations", ["tenant", "status", "accepted"])
    active = sa.and_(table.c.ended_us.is_(None), table.c.strategy.is_not(None))
    columns = ["tenant", "created_us"]
    op.create_index("deliberations_active", "deliberations", columns, sqlite_where=active, postgresql_where=active)


def _create_texts() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE texts USING fts5(words, tokenize='ascii')")
        return
    op.create_table(
        "texts",
        sa.Column("rowid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("words", postgresql.TSVECTOR, nullable=False),
    )
    op.create_index("texts_by_word", "texts", ["words"], postgresql_using="gin", postgresql_with={"fastupdate": "off"})
    # A word that is not counted seems frequent, and is then looked for in every row from the newest on.
    op.execute("ALTER TABLE texts ALTER COLUMN words SET STATISTICS 500")


def _groups() -> list[sa.Column[Any]]:
    return [
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("duration", sa.Integer, nullable=False),
        sa.Column("currency", sa.String(3), nullable=False),
        sa.Column("bench", sa.Integer, nullable=False),
    ]


def _amounts() -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in _AMOUNTS]


def _create_statistics() -> None:
    op.create_table(
        "measures",
        *_groups(),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        *_amounts(),
        sa.PrimaryKeyConstraint("kind", "created_us", "tenant", "id", "name"),
        sqlite_with_rowid=False,
    )
    op.create_index("measures_by_deliberation", "measures", ["tenant", "id"])
    op.create_table(
        "rollups",
        *_groups(),
        sa.Column("width_us", sa.BigInteger, nullable=False),
        sa.Column("begin_us", sa.BigInteger, nullable=False),
        *_amounts(),
        sa.PrimaryKeyConstraint(
            *("kind", "width_us", "tenant", "begin_us", "name", "status", "duration", "currency", "bench")
        ),
        sqlite_with_rowid=False,
    )
