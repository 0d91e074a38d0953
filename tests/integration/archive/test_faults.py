"""Faults of the archive's database are errors with their cause, and copying goes on once they are over."""

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url, text
from structlog.testing import capture_logs

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Archived, Store
from app.archive.database.writing import Rows, rows_of
from app.deliberation.errors import ArchiveRefused, ArchiveUnavailable
from app.deliberation.facts import Fact
from app.log.journal import JetStreamJournal
from tests.integration.archive.archived_stories import EPOCH, records_of, told, written
from tests.integration.archive.conftest import migrated, opened
from tests.integration.archive.postgres import PostgresServer, programs
from tests.integration.archive.projecting import projecting, read, tell, until_copied
from tests.story import NOW, Story

HOSTILE = "\x00 \U0001f600 \u2028 ' \" -- %s \\ ; DROP TABLE deliberations; {} \x7f \ufffe"


def hostile(story: Story) -> list[Fact]:
    accepted = story.accepted(task=HOSTILE, metadata={"key": HOSTILE, HOSTILE: "value"})
    return [accepted, *told(story, '{"answer":"\\u0000 \\ud83d\\ude00 \' -- %s"}')[1:]]


@pytest.fixture
async def file_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'file.db'}"
    await migrate(url)
    return url


async def test_hostile_text_is_kept_as_it_was(store: Store, fresh_id: str) -> None:
    records = records_of(Story(fresh_id), hostile(Story(fresh_id)))
    await store.write(EPOCH, [written(records)])

    found = await store.read("acme", fresh_id)

    assert found is not None and found.records == records


async def test_copying_goes_on_once_a_full_disk_has_space(journal: JetStreamJournal, file_url: str) -> None:
    database = Database(file_url)
    pages = [30]

    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages[0]}")

    event.listen(database._engine.sync_engine, "checkout", limit)  # pyright: ignore[reportPrivateUsage]
    store, told = Store(database), [Story(f"{number:026d}", size=20) for number in range(60)]
    async with projecting(journal, store) as projector:
        for story in told:
            await tell(journal, story)
        async with asyncio.timeout(20):
            while "full" not in projector.failure:
                await asyncio.sleep(0.01)
        pages[0] = 100_000
        await until_copied(journal)

    found = [await read(store, story.id) for story in told]
    await database.close()
    assert all(isinstance(each, Archived) for each in found) and projector.failure == ""


async def test_a_file_that_cannot_be_written_is_an_error_with_its_cause(file_url: str, fresh_id: str) -> None:
    """Root may write to any file, so SQLite opens it read only."""
    path = make_url(file_url).database
    async with opened(f"sqlite:///file:{path}?mode=ro&uri=true") as database:
        with pytest.raises(ArchiveUnavailable, match="readonly"):
            await Store(database).delete("acme", fresh_id, NOW)


def rows(id: str, dialect: str) -> Rows:
    return rows_of(written(records_of(Story(id), told(Story(id)))), 1, dialect)


def with_column(rows: Rows, column: str, value: object) -> Rows:
    return rows._replace(row={**rows.row, column: value})


@pytest.mark.parametrize(
    ("column", "value"),
    [("created_us", 1 << 70), ("summary", "a lone surrogate \ud800"), ("status", None), ("facts", "no bytes")],
)
async def test_a_value_that_the_database_refuses_is_no_outage(
    column: str, value: object, store: Store, fresh_id: str
) -> None:
    with pytest.raises(ArchiveRefused, match=r"refuses a value.*report this error") as refused:
        await store.put([with_column(rows(fresh_id, store.dialect), column, value)])

    assert "DATABASE_URL" not in str(refused.value)
    assert str(value) not in str(refused.value), "it may be a client's text"
    assert await store.read("acme", fresh_id) is None


Spoil = Callable[[Rows], Rows]
# With the SQLSTATE of the refusal.
SPOILED: list[tuple[Spoil, str]] = [
    (lambda rows: with_column(rows, "summary", "a NUL \0"), "22021"),
    (lambda rows: with_column(rows, "strategy", "x" * 65), "22001"),
    (lambda rows: rows._replace(words=f"'{'x' * 5_000}':1"), "54000"),
    (lambda rows: rows._replace(words=" ".join(f"'{each}':1" for each in range(200_000))), "54000"),
]


@pytest.mark.parametrize(("spoil", "state"), SPOILED)
async def test_what_postgresql_alone_refuses_is_no_outage(
    spoil: Spoil, state: str, postgres: PostgresServer, fresh_id: str
) -> None:
    async with migrated(postgres.database(f"t{uuid.uuid4().hex}")) as database:
        with pytest.raises(ArchiveRefused, match=f"SQLSTATE {state}"):
            await Store(database).put([spoil(rows(fresh_id, database.dialect))])


async def test_a_missing_table_stays_an_outage(database_url: str) -> None:
    """It may be restored: what waits for it is not to be skipped."""
    async with opened(database_url) as database:
        with pytest.raises(ArchiveUnavailable):
            async with database.begin() as connection:
                await connection.execute(text("SELECT * FROM nothing"))


async def test_a_deliberation_that_the_database_refuses_holds_no_other_one_up(
    journal: JetStreamJournal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [Story(f"{number:026d}") for number in range(12)]
    bad = told[5].id
    put = store.put

    async def spoiled(batch: Sequence[Rows], *more: Any) -> None:
        await put([with_column(each, "created_us", 1 << 70) if each.key[1] == bad else each for each in batch], *more)

    monkeypatch.setattr(store, "put", spoiled)
    for story in told:
        await tell(journal, story)
    with capture_logs() as logged:
        async with projecting(journal, store) as projector:
            await until_copied(journal)

    found = {story.id: await read(store, story.id) for story in told}
    assert [id for id, each in found.items() if not isinstance(each, Archived)] == [bad] and found[bad] is None
    assert (projector.counts["written"], projector.counts["skipped"], projector.failure) == (11, 1, "")
    skipped = [each for each in logged if each["event"] == "archive_skipped"]
    assert [each["deliberation_id"] for each in skipped] == [bad] and "refuses a value" in skipped[0]["error"]


async def test_a_copy_of_a_file_in_use_is_a_backup(file_url: str, tmp_path: Path) -> None:
    """`VACUUM INTO` copies the database as it is at one moment, while others write."""
    database = Database(file_url)
    store, story = Store(database), Story("kept")
    await store.write(EPOCH, [written(records_of(story, told(story)))])
    process = await asyncio.create_subprocess_exec(
        "python", "-c", "import sqlite3,sys; sqlite3.connect(sys.argv[1]).execute('VACUUM INTO ?', sys.argv[2:])",
        str(tmp_path / "file.db"), str(tmp_path / "backup.db"),
    )  # fmt: skip
    ended = await process.wait()
    await store.delete("acme", story.id, NOW)
    await database.close()

    async with opened(f"sqlite:///{tmp_path / 'backup.db'}") as restored:
        found = await Store(restored).read("acme", story.id)
    assert ended == 0 and found is not None and found.records == records_of(story, told(story))


async def test_a_dump_of_postgresql_is_restored_into_an_empty_database(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    source, target, dump = postgres.database("dumped"), postgres.database("restored"), str(tmp_path / "archive.dump")
    story = Story("kept")
    async with migrated(source) as database:
        await Store(database).write(EPOCH, [written(records_of(story, told(story)))])
    ended = list[int]()
    for program, *arguments in (
        ("pg_dump", "--format=custom", f"--file={dump}", source),
        ("pg_restore", "--no-owner", f"--dbname={target}", dump),
    ):
        process = await asyncio.create_subprocess_exec(str(programs() / program), *arguments)
        ended.append(await process.wait())

    async with opened(target) as restored:
        found = await Store(restored).read("acme", story.id)
    assert ended == [0, 0] and found is not None and found.records == records_of(story, told(story))
