"""What a million deliberations need: an index of each tenant's by age, and statistics of rare words."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the index, and have PostgreSQL count five times as many words."""
    op.create_index("deliberations_by_tenant_and_age", "deliberations", ["tenant", "created_us"])
    if op.get_bind().dialect.name == "postgresql":
        # A word that is not counted seems frequent, and is then looked for in every row from the newest on.
        op.execute("ALTER TABLE texts ALTER COLUMN words SET STATISTICS 500")
