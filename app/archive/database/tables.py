"""The archive's tables. `migrations/` creates them; a test holds the two equal.

One row holds a whole deliberation, so that one guarded write decides which version is kept.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    and_,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

REVISION = "0001"
"""The migration that this code needs."""
SEQUENCE_BITS = 44
NAME_CHARS_MAX = 200
VERSION_MAX = (1 << 63) - 1
"""The version of a tombstone: no fact is newer."""

metadata = MetaData()


def active() -> ColumnElement[bool]:
    """The condition for a deliberation without an end; a tombstone has no strategy."""
    return and_(deliberations.c.ended_us.is_(None), deliberations.c.strategy.is_not(None))


logs = Table(
    "logs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("epoch", String(64), nullable=False, unique=True),
    # The archive has all facts up to this sequence, as of this time; None before its process has caught up once.
    *(Column(name, BigInteger) for name in ("copied_to", "copied_us")),
)
"""The logs that the archive was fed from, in the order in which it met them."""

deliberations = Table(
    "deliberations",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    # The last fact's position, see `position`; a write replaces older versions only.
    Column("version", BigInteger, nullable=False),
    # The position of its first acceptance, which orders lists and never changes. None for what was only deleted.
    Column("accepted", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    *(Column(name, BigInteger) for name in ("started_us", "ended_us")),
    Column("status", String(16), nullable=False),
    # The log's number; 0 for a tombstone.
    Column("log", Integer, nullable=False),
    # From here on, None for a tombstone.
    Column("strategy", String(64)),
    # JSON: the stage that was opened last, see `rows.progress_of`. None before the first one, and after the end.
    Column("progress", Text),
    # JSON: the beginning of the task, the number of agents by role, and the metadata. After the end also the usage, the
    # winner, and whether the verdict is degraded.
    Column("summary", Text),
    # The facts of an ended deliberation, see `rows.pack_facts`. The column is last, because SQLite reads a row up to
    # the column it needs.
    Column("facts", LargeBinary),
    # Expiry passes over tenants that keep theirs for longer, without a look at their rows.
    Index("deliberations_by_age", "created_us", "tenant", "id"),
    Index("deliberations_by_tenant_and_age", "tenant", "created_us"),
    Index("deliberations_by_acceptance", "tenant", "accepted"),
    Index("deliberations_by_status", "tenant", "status", "accepted"),
)
# Statistics count active deliberations one by one.
Index(
    "deliberations_active",
    deliberations.c.tenant,
    deliberations.c.created_us,
    sqlite_where=active(),
    postgresql_where=active(),
)

labels = Table(
    "labels",
    metadata,
    # See `rows.label`.
    Column("label", BigInteger, primary_key=True, autoincrement=False),
    # The deliberation's `accepted`.
    Column("accepted", BigInteger, primary_key=True, autoincrement=False),
    Index("labels_by_acceptance", "accepted"),
    sqlite_with_rowid=False,
)
"""The strategy, roles and metadata by which lists find deliberations."""

texts = Table(
    "texts",
    metadata,
    # The deliberation's `accepted`. A full-text table of SQLite has a key of this name only.
    Column("rowid", BigInteger, primary_key=True, autoincrement=False),
    Column("words", TSVECTOR().with_variant(Text(), "sqlite"), nullable=False),
    # A list of pending entries would make some searches slow.
    Index("texts_by_word", "words", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
)
"""The words of deliberations, see `words`: in SQLite a full-text table, in PostgreSQL a vector with an index."""

AMOUNTS = (
    *("number", "took_us", "decided", "won", "agreeing", "agreement_ppm", "degraded"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "calls", "cost_millionths", "unpriced_calls"),
)
"""The amounts that statistics sum, see `measures.measures_of`."""
ROLLUP_KEY = ("kind", "width_us", "tenant", "begin_us", "name", "status", "duration", "currency", "bench")
"""The key of `rollups`, in the order of its index."""


def _group() -> Iterator[Column[Any]]:
    yield Column("tenant", String(64), nullable=False)
    yield Column("kind", String(8), nullable=False)
    yield Column("name", String(NAME_CHARS_MAX), nullable=False)
    yield Column("status", String(16), nullable=False)
    # See `measures.duration_class`.
    yield Column("duration", Integer, nullable=False)
    # The cost's currency; empty where no call has a price. Amounts of two currencies have no sum.
    yield Column("currency", String(3), nullable=False)
    # 1 for a deliberation of a benchmark, else 0.
    yield Column("bench", Integer, nullable=False)


def _amounts() -> Iterator[Column[Any]]:
    return (Column(name, BigInteger, nullable=False) for name in AMOUNTS)


measures = Table(
    "measures",
    metadata,
    *_group(),
    Column("id", String(64), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    *_amounts(),
    PrimaryKeyConstraint("kind", "created_us", "tenant", "id", "name"),
    Index("measures_by_deliberation", "tenant", "id"),
    sqlite_with_rowid=False,
)
"""The measures of ended deliberations: a row for the strategy, for its shape, for each role and for each model."""

rollups = Table(
    "rollups",
    metadata,
    *_group(),
    # The hour or the day in UTC in which the deliberations were accepted.
    Column("width_us", BigInteger, nullable=False),
    Column("begin_us", BigInteger, nullable=False),
    *_amounts(),
    PrimaryKeyConstraint(*ROLLUP_KEY),
    sqlite_with_rowid=False,
)
"""The sums of `measures` by hour and by day, so that statistics read few rows."""


def position(log: int, sequence: int) -> int:
    """A fact's place in the order of all logs: the log's number, then the sequence in it."""
    return log << SEQUENCE_BITS | sequence
