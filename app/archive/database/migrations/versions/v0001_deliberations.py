"""Deliberations with their facts, and the logs that they come from."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "logs",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.String(64), nullable=False, unique=True),
    )
    op.create_table(
        "deliberations",
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("log", sa.Integer, nullable=False),
        sa.Column("facts", sa.LargeBinary, nullable=True),
    )
    op.create_index("deliberations_by_age", "deliberations", ["created_us"])
