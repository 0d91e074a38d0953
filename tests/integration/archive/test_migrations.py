import re

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from app.archive.database.connection import Database, engine_of
from app.archive.database.migrate import migrate
from app.archive.database.tables import metadata
from app.deliberation.errors import ArchiveUnavailable, InvalidRequest


def _differences(connection: Connection) -> list[object]:
    def compared(_: object, name: str | None, kind: str, *__: object) -> bool:
        # SQLite keeps a full-text table in tables of its own.
        return connection.dialect.name != "sqlite" or kind != "table" or not str(name).startswith("texts")

    context = MigrationContext.configure(connection, opts={"include_object": compared})
    return list(compare_metadata(context, metadata))


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
        await Database(empty_url).check()


async def run(url: str, statement: str) -> None:
    engine = engine_of(url)
    async with engine.begin() as connection:
        await connection.execute(text(statement))
    await engine.dispose()


async def refusal(url: str) -> str:
    with pytest.raises(ArchiveUnavailable) as refused:
        await Database(url).check()
    return str(refused.value)


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "version 9999.*update this one"),
        ("UPDATE alembic_version SET version_num = 'a1b2c3d4'", "another program.*DATABASE_URL"),
    ],
)
async def test_tables_that_no_migration_of_ours_leads_to_are_refused_also_by_the_migration(
    database_url: str, statement: str, complaint: str
) -> None:
    await run(database_url, statement)

    assert re.search(complaint, await refusal(database_url))
    with pytest.raises(ArchiveUnavailable, match=complaint):
        await migrate(database_url)


async def test_tables_of_an_earlier_version_are_refused_with_the_command(database_url: str) -> None:
    await run(database_url, "UPDATE alembic_version SET version_num = '0000'")

    assert "deliberate archive migrate" in await refusal(database_url)


async def test_a_database_of_another_program_is_refused_and_left_as_it_is(empty_url: str) -> None:
    await run(empty_url, "CREATE TABLE invoices (number INTEGER)")

    assert "another program" in await refusal(empty_url)
    with pytest.raises(ArchiveUnavailable, match="another program"):
        await migrate(empty_url)


async def test_a_missing_table_is_named(database_url: str) -> None:
    await run(database_url, "DROP TABLE deliberations")

    assert "lacks the table deliberations" in await refusal(database_url)


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
