"""Faults of the archive's database are errors with their cause, and copying goes on once they are over."""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event, make_url

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Archived, Store
from app.deliberation.errors import ArchiveUnavailable
from app.deliberation.facts import Fact
from app.log.journal import JetStreamJournal
from tests.integration.archive.postgres import PostgresServer, programs
from tests.integration.archive.test_projector import projecting, read, tell, until_copied
from tests.integration.archive.test_store import EPOCH, records_of, told, written
from tests.story import NOW, Story

HOSTILE = "\x00 \U0001f600 \u2028 ' \" -- %s \\ ; DROP TABLE deliberations; {} \x7f \ufffe"


def hostile(story: Story) -> list[Fact]:
    """A deliberation with hostile text in its task, its metadata and its answers."""
    accepted, facts = story.accepted(), told(story, '{"answer":"\\u0000 \\ud83d\\ude00 \' -- %s"}')
    update = {"task": HOSTILE, "metadata": {"key": HOSTILE, HOSTILE: "value"}}
    return [accepted.model_copy(update={"specification": accepted.specification.model_copy(update=update)}), *facts[1:]]


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


async def test_a_transcript_of_ten_megabytes_is_kept(store: Store, fresh_id: str) -> None:
    text = os.urandom(5_000_000).hex()
    story = Story(fresh_id, size=1)
    records = records_of(story, told(story, f'{{"answer":"{text}"}}'))
    await store.write(EPOCH, [written(records)])

    found = await store.read("acme", fresh_id)

    assert found is not None and found.records == records and len(text) == 10_000_000


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
    database = Database(f"sqlite:///file:{path}?mode=ro&uri=true")

    with pytest.raises(ArchiveUnavailable, match="readonly"):
        await Store(database).delete("acme", fresh_id, NOW)

    await database.close()


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

    restored = await Database.connect(f"sqlite:///{tmp_path / 'backup.db'}")
    found = await Store(restored).read("acme", story.id)
    await restored.close()
    assert ended == 0 and found is not None and found.records == records_of(story, told(story))


async def test_a_dump_of_postgresql_is_restored_into_an_empty_database(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    source, target, dump = postgres.database("dumped"), postgres.database("restored"), str(tmp_path / "archive.dump")
    await migrate(source)
    database = await Database.connect(source)
    story = Story("kept")
    await Store(database).write(EPOCH, [written(records_of(story, told(story)))])
    await database.close()
    ended = list[int]()
    for program, *arguments in (
        ("pg_dump", "--format=custom", f"--file={dump}", source),
        ("pg_restore", "--no-owner", f"--dbname={target}", dump),
    ):
        process = await asyncio.create_subprocess_exec(str(programs() / program), *arguments)
        ended.append(await process.wait())

    restored = await Database.connect(target)
    found = await Store(restored).read("acme", story.id)
    await restored.close()
    assert ended == [0, 0] and found is not None and found.records == records_of(story, told(story))
