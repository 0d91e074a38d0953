"""Statistics. Their tables are those of version 0006, which also fills them."""

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Change nothing: version 0006 replaces whatever this version made."""
