"""Migrations make the tables that the code declares; anything else is refused with the remedy."""

import re

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, select, text

from app.archive.database import transcript
from app.archive.database.connection import Database, engine_of
from app.archive.database.migrate import migrate
from app.archive.database.rows import Written, labels_of, row_of
from app.archive.database.search_query import parse
from app.archive.database.store import Archived, Store
from app.archive.database.tables import deliberations, labels, metadata, position
from app.catalog.entries import ListFilter
from app.deliberation.errors import ArchiveUnavailable, InvalidRequest
from app.deliberation.fold import state_of
from tests.integration.archive.test_store import records_of, told
from tests.story import Story


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
        await Database.connect(empty_url)


async def run(url: str, statement: str) -> None:
    engine = engine_of(url)
    async with engine.begin() as connection:
        await connection.execute(text(statement))
    await engine.dispose()


async def refusal(url: str) -> str:
    with pytest.raises(ArchiveUnavailable) as refused:
        await Database.connect(url)
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


async def test_what_an_earlier_version_has_written_gets_its_columns_labels_and_words(empty_url: str) -> None:
    ended = records_of(Story("ended"), told(Story("ended")), first=7)
    await migrate(empty_url, "0001")
    engine = engine_of(empty_url)
    async with engine.begin() as connection:
        columns = "tenant, id, version, created_us, status, log, facts"
        insert = text(f"INSERT INTO deliberations ({columns}) VALUES ('acme', :id, :version, 1, :status, 1, :facts)")
        await connection.execute(insert, [
            {"id": "ended", "version": position(1, 12), "status": "completed", "facts": transcript.pack(ended)},
            {"id": "running", "version": position(1, 2), "status": "pending", "facts": None},
        ])  # fmt: skip
        await connection.execute(text("INSERT INTO logs (number, epoch) VALUES (1, '0a1b2c3d')"))
    await engine.dispose()

    await migrate(empty_url)

    database = await Database.connect(empty_url)
    async with database.begin() as connection:
        rows = (await connection.execute(select(deliberations).order_by(deliberations.c.id))).mappings().all()
        found = (await connection.execute(select(labels))).all()
    state = state_of(ended)
    assert state is not None
    expected = row_of(Written("acme", "ended", state.accepted.ts, state, ended), 1)
    assert dict(rows[0]) == expected | {"created_us": 1}
    assert (rows[1]["id"], rows[1]["accepted"], rows[1]["facts"]) == ("running", None, None)
    assert {tuple(each) for each in found} == {(each, position(1, 7)) for each in labels_of("acme", state)}
    store = Store(database)
    assert await store.read("acme", "ended") == Archived("0a1b2c3d", ended)
    hits = await store.search("acme", parse("colour"), ListFilter(), limit=5)
    assert [(place, entry.id) for place, entry in hits] == [(position(1, 7), "ended")]
    await database.close()
