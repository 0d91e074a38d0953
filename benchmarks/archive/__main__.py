"""The archive's figures, on two databases.

`python -m benchmarks.archive [--councils 3000] [--rows 10000] [--copies 99] [--lag 20] [--database-url URL]
[--directory DIRECTORY]`. Councils are copied from a full log, then as many deliberations of one agent. Then some end at
75 a second. Rows are deliberations of one agent with an answer of 40 words, written by a projector; each of them is
then copied within the database, so that the default has a million. By default the database is a new file of SQLite. A
second run with the same directory reads the rows of the first.
"""

import argparse
import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop
from sqlalchemy import func, select

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Store
from app.archive.database.tables import deliberations
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from app.observability.process import settle_heap
from benchmarks.archive.copying import copy, lag
from benchmarks.archive.filling import EARLIER, answers, archive, multiply
from benchmarks.archive.reading import merge, print_times, search, serve
from tests.conftest import NatsServer


@asynccontextmanager
async def log_in(directory: Path) -> AsyncGenerator[tuple[NatsServer, JetStreamJournal]]:
    """A log with its files below a directory."""
    server = NatsServer(directory / "nats")
    server.start()
    try:
        journal = await JetStreamJournal.connect(server.url, name="benchmark")
        await apply(journal, StreamSettings())
        yield server, journal
        await journal.close()
    finally:
        server.stop()


async def measure(directory: Path, url: str, given: argparse.Namespace) -> None:
    """Print all figures."""
    # As in the archive's process.
    settle_heap()
    await migrate(url)
    database = Database(url)
    await Store(database).log_number(EARLIER)
    with tempfile.TemporaryDirectory() as other:
        copied_url = f"sqlite:///{other}/archive.db" if database.dialect == "sqlite" else url
        await migrate(copied_url)
        copied = Database(copied_url)
        async with log_in(Path(other)) as (_, journal):
            if given.councils:
                await copy(journal, copied, given.councils)
            if given.lag:
                await lag(journal, copied, given.lag)
        await copied.close()
    async with log_in(directory) as (server, journal):
        async with database.begin() as connection:
            counted = select(func.count()).where(deliberations.c.tenant == "default")
            present = (await connection.execute(counted)).scalar_one()
        if given.rows and not present:
            await archive(journal, Store(database), answers(given.rows))
            await multiply(database, given.copies)
        if given.rows:
            print(f"\n{present or given.rows * (given.copies + 1):,} deliberations on {database.dialect}")
            print_times("search", await search(database))
            await serve(server.url, url)
            await merge(database)
    await database.close()


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("councils", 3_000), ("rows", 10_000), ("copies", 99), ("lag", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--database-url")
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    # The loop of the archive's process.
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner, tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or Path(temporary)
        (directory / "nats").mkdir(parents=True, exist_ok=True)
        runner.run(measure(directory, given.database_url or f"sqlite:///{directory}/archive.db", given))


if __name__ == "__main__":
    main()
