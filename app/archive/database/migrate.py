"""Brings a database's tables to the version that this program needs. No serving process does this."""

import asyncio
from contextlib import suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.archive.database.connection import BUSY_S, MIGRATE, cause, engine_of, schema_fault
from app.archive.database.tables import REVISION
from app.deliberation.errors import ArchiveUnavailable

_SCRIPTS = Path(__file__).with_name("migrations")


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        # SQLite's driver would commit every change of a table by itself.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    fault = schema_fault(connection)
    if fault is not None and MIGRATE not in fault:
        raise ArchiveUnavailable(f"The archive {fault}")
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, REVISION)


async def _execute_prepared(engine: AsyncEngine) -> None:
    """Execute a prepared statement again, while another transaction holds the connection that prepared it.

    A pooler that keeps no prepared statements fails here, and not later under load.
    """
    statement = text("SELECT 1")
    async with engine.connect() as connection, engine.connect() as other:
        await connection.execute(statement)
        await connection.rollback()
        await other.execute(statement)
        # A pooler with one connection to the server lets transactions wait for each other.
        with suppress(TimeoutError):
            async with asyncio.timeout(BUSY_S):
                await connection.execute(statement)


async def migrate(url: str) -> None:
    """Create or upgrade the tables in one transaction; raises InvalidRequest for the URL, and ArchiveUnavailable."""
    # A migration may read every row.
    engine = engine_of(url, statement_s=None)
    try:
        if engine.dialect.name == "postgresql":
            await _execute_prepared(engine)
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    except (SQLAlchemyError, OSError, TimeoutError) as exc:
        server = engine.url.render_as_string(hide_password=True)
        raise ArchiveUnavailable(f"The archive {server} cannot be migrated: {cause(exc)}") from exc
    finally:
        await engine.dispose()
