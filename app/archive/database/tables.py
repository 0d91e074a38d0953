"""The archive's tables. `migrations/` creates them; a test holds the two equal.

One row holds all of a deliberation, so that one guarded write decides what is kept of it.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

REVISION = "0001"
"""The migration that this code needs."""
SEQUENCE_BITS = 44
VERSION_MAX = (1 << 63) - 1
"""The version of a tombstone: no fact is newer."""

metadata = MetaData()

logs = Table(
    "logs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("epoch", String(64), nullable=False, unique=True),
)
"""The logs that the archive was fed from, in the order in which it met them."""

deliberations = Table(
    "deliberations",
    metadata,
    Column("tenant", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    # The last fact's position, see `position`; a write replaces older versions only.
    Column("version", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    # The log's number; 0 for a tombstone.
    Column("log", Integer, nullable=False),
    # The facts of an ended deliberation, see `transcript`.
    Column("facts", LargeBinary, nullable=True),
    Index("deliberations_by_age", "created_us"),
)


def position(log: int, sequence: int) -> int:
    """A fact's place in the order of all logs: the log's number, then the sequence in it."""
    return log << SEQUENCE_BITS | sequence
