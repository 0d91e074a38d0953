"""Brings a database's tables to the version that this program needs. No serving process does this."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.archive.database.connection import MIGRATE, cause, engine_of, schema_fault
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


async def migrate(url: str) -> None:
    """Create or upgrade the tables in one transaction; raises InvalidRequest for the URL, and ArchiveUnavailable."""
    # A migration may read every row.
    engine = engine_of(url, statement_s=None)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    except (SQLAlchemyError, OSError, TimeoutError) as exc:
        server = engine.url.render_as_string(hide_password=True)
        raise ArchiveUnavailable(f"The archive {server} cannot be migrated: {cause(exc)}") from exc
    finally:
        await engine.dispose()
