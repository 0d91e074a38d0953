"""Alembic migrations of the archive."""
