"""Drops columns that `measures` has made useless, and has expiry find its rows in an index."""

from alembic import op

revision = "0007"
down_revision = "0006"
_UNUSED = (
    *("models", "prompt_tokens", "cached_tokens", "completion_tokens", "calls"),
    *("agreement", "winner_role", "winner_model", "degraded"),
)


def upgrade() -> None:
    """Drop the columns, and put the tenant into the index by age."""
    op.drop_index("deliberations_by_age", "deliberations")
    with op.batch_alter_table("deliberations") as table:
        for name in _UNUSED:
            table.drop_column(name)
    op.create_index("deliberations_by_age", "deliberations", ["created_us", "tenant", "id"])
