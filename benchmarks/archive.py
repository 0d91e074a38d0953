"""The archive's speed behind a full log, and the size of its rows, beside a plain insert of the same rows.

`python -m benchmarks.archive [--deliberations 3000] [--database-url URL]`; by default a new SQLite file.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, insert, select

from app.archive.database.connection import Database
from app.archive.database.migrate import migrate
from app.archive.database.store import Store
from app.archive.database.tables import deliberations
from app.archive.projector import BATCH_MAX, Projector
from app.deliberation.facts import encode, prefix, suffix
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ARCHIVE_CONSUMER, STREAM, StreamSettings
from app.log.streams import apply
from tests.conftest import NatsServer
from tests.story import Story

STAGES = 3
ANSWER = '{"answer":"' + "a sentence of an answer, " * 30 + '"}'
KEPT_S = 10**9


async def fill(journal: JetStreamJournal, count: int) -> int:
    """Write whole deliberations into the log; returns the number of facts."""
    written = 0
    for number in range(count):
        story = Story(f"{number:026d}", 3)
        facts = [story.accepted()]
        for stage in range(1, STAGES + 1):
            answers = [story.finished(agent, ANSWER, stage=stage) for agent in story.agents]
            facts += [story.opened(stage), *answers, story.closed(stage)]
        for fact in (*facts, story.completed()):
            await journal.client.publish(f"{prefix('t', story.id)}.{suffix(fact)}", encode(fact))
            written += 1
    await journal.client.flush()
    while (await journal.state()).last_sequence < written:  # noqa: ASYNC110 -- another process
        await asyncio.sleep(0.1)
    return written


async def copied(journal: JetStreamJournal, store: Store) -> float:
    """The seconds until a projector has copied all of the log."""
    began_s = time.perf_counter()
    copying = asyncio.create_task(Projector(journal, store, retention_s=KEPT_S).run())
    while True:
        found = await journal.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{ARCHIVE_CONSUMER}")
        if not found["num_pending"] and not found["num_ack_pending"]:
            break
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - began_s
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)
    return seconds


async def inserted(database: Database) -> float:
    """The seconds that a plain insert of the same rows takes, in transactions of the same size."""
    async with database.begin() as connection:
        rows = [dict(row) for row in (await connection.execute(select(deliberations))).mappings()]
    began_s = time.perf_counter()
    for begin in range(0, len(rows), BATCH_MAX):
        again = [{**row, "tenant": "again"} for row in rows[begin : begin + BATCH_MAX]]
        async with database.begin() as connection:
            await connection.execute(insert(deliberations), again)
    return time.perf_counter() - began_s


async def measure(url: str, count: int) -> None:
    """Fill a log of its own, copy it, and print the figures."""
    with tempfile.TemporaryDirectory() as directory:
        server = NatsServer(Path(directory))
        server.start()
        try:
            journal = await JetStreamJournal.connect(server.url, name="benchmark")
            await apply(journal, StreamSettings())
            facts = await fill(journal, count)
            await migrate(url)
            database = await Database.connect(url)
            copying_s = await copied(journal, Store(database))
            async with database.begin() as connection:
                size = (await connection.execute(select(func.sum(func.length(deliberations.c.facts))))).scalar_one()
            inserting_s = await inserted(database)
            await database.close()
            await journal.close()
        finally:
            server.stop()
    print(f"{count} deliberations with {facts} facts in the log")
    print(f"copied    {count / copying_s:8.0f} deliberations a second")
    print(f"inserted  {count / inserting_s:8.0f} rows a second, without reading the log")
    print(f"size      {size / count:8.0f} bytes of compressed facts a deliberation")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deliberations", type=int, default=3_000)
    parser.add_argument("--database-url")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = given.database_url or f"sqlite:///{directory}/archive.db"
        asyncio.run(measure(url, given.deliberations))


if __name__ == "__main__":
    main()
