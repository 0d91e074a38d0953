"""Migrations make the tables that the code declares; anything else is refused with the remedy."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from app.archive.database.connection import Database, engine_of
from app.archive.database.migrate import migrate
from app.archive.database.tables import metadata
from app.deliberation.errors import ArchiveUnavailable, InvalidRequest


def _differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), metadata))


async def test_migrations_create_the_declared_tables_and_repeat_without_harm(empty_url: str) -> None:
    await migrate(empty_url)
    await migrate(empty_url)
    engine = engine_of(empty_url)

    async with engine.connect() as connection:
        differences = await connection.run_sync(_differences)

    await engine.dispose()
    assert differences == []


async def test_a_database_without_tables_is_refused_with_the_command(empty_url: str) -> None:
    with pytest.raises(ArchiveUnavailable, match=r"has no tables.*deliberate archive migrate"):
        await Database.connect(empty_url)


async def test_tables_of_another_version_are_refused(database_url: str) -> None:
    engine = engine_of(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()

    with pytest.raises(ArchiveUnavailable, match="version 9999"):
        await Database.connect(database_url)


@pytest.mark.parametrize(
    "url", ["", "archive.db", "mysql://u:secret@h/d", "sqlite//x", "postgresql://u:secret@h:port/d"]
)
def test_what_is_no_url_of_a_database_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(InvalidRequest, match="DATABASE_URL") as refused:
        engine_of(url)

    assert "secret" not in str(refused.value)


async def test_no_error_quotes_the_password() -> None:
    database = Database("postgresql://archive:hunter2secret@127.0.0.1:1/none")

    with pytest.raises(ArchiveUnavailable) as refused:
        await database.check()

    await database.close()
    assert "hunter2secret" not in str(refused.value)
