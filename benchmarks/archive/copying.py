"""Measures the speed of a projector on a full log, beside a plain insert, and its lag behind new facts."""

import asyncio
import time
from collections.abc import Iterable

from sqlalchemy import func, insert, select

from app.archive.database.connection import Database
from app.archive.database.store import Store
from app.archive.database.tables import deliberations
from app.archive.projector import BATCH_MAX, Projector
from app.log.journal import JetStreamJournal
from benchmarks.archive.filling import KEPT_S, Told, answers, councils, fill, until_copied
from benchmarks.archive.reading import percentile

ENDS_PER_SECOND = 75
LAGGING = "lagging"
LOOKS_EVERY_S = 0.01


async def copy(journal: JetStreamJournal, database: Database, count: int) -> None:
    """Copy councils from the log, then as many deliberations of one agent, and print the rates."""
    await _copy(journal, database, count, "council", councils(count))
    await _copy(journal, database, count, "single", answers(count, "single"))
    inserted_s = await _inserted(database)
    print(f"inserted  {2 * count / inserted_s:8.0f} rows of both a second, without reading the log")


async def copy_waiting(journal: JetStreamJournal, database: Database) -> tuple[float, float]:
    """Copy the whole log; returns the seconds that passed and the CPU seconds of the process."""
    began_s, computed_s = time.perf_counter(), -time.process_time()
    copying = asyncio.create_task(Projector(journal, Store(database), retention_s=KEPT_S).run())
    await until_copied(journal)
    took_s = time.perf_counter() - began_s
    computed_s += time.process_time()
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)
    return took_s, computed_s


async def _copy(journal: JetStreamJournal, database: Database, count: int, kind: str, told: Iterable[Told]) -> None:
    facts = await fill(journal, told)
    took_s, computed_s = await copy_waiting(journal, database)
    newest = select(deliberations.c.facts).order_by(deliberations.c.accepted.desc()).limit(count).subquery()
    async with database.begin() as connection:
        size = (await connection.execute(select(func.sum(func.length(newest.c.facts))))).scalar_one()
    print(f"copied    {count / took_s:8.0f} a second: {kind}, {facts / count:.0f} facts each")
    print(f"computing {1_000 * computed_s / count:8.2f} ms each")
    print(f"size      {size / count:8.0f} bytes of compressed facts each")


async def _inserted(database: Database) -> float:
    """The seconds that a plain insert of the same rows takes."""
    async with database.begin() as connection:
        rows = [dict(row) for row in (await connection.execute(select(deliberations))).mappings()]
    began_s = time.perf_counter()
    for begin in range(0, len(rows), BATCH_MAX):
        again = [{**row, "tenant": "again"} for row in rows[begin : begin + BATCH_MAX]]
        async with database.begin() as connection:
            await connection.execute(insert(deliberations), again)
    return time.perf_counter() - began_s


async def lag(journal: JetStreamJournal, database: Database, seconds: int) -> None:
    """End ENDS_PER_SECOND deliberations a second, and print how long after its end each was in the archive."""
    copying = asyncio.create_task(Projector(journal, Store(database), retention_s=KEPT_S).run())
    waiting, lags_s, count = dict[str, float](), list[float](), seconds * ENDS_PER_SECOND
    looking = asyncio.create_task(_look(database, waiting, lags_s, count))
    began_s, computed_s = time.perf_counter(), time.process_time()
    for number, told in enumerate(answers(count, LAGGING)):
        await asyncio.sleep(max(0.0, began_s + number / ENDS_PER_SECOND - time.perf_counter()))
        for fact in told:
            await journal.client.publish(*fact)
        waiting[told[0][0].split(".")[2]] = time.perf_counter()
    await looking
    computed_s = time.process_time() - computed_s
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)
    median_s, last_s = percentile(lags_s, 0.5), percentile(lags_s, 0.99)
    print(f"lag       {median_s:8.3f} s p50, {last_s:.3f} s p99, {max(lags_s):.3f} s at most")
    print(f"computing {computed_s / seconds:8.2f} s a second, with the writer and the reader of this measurement")


async def _look(database: Database, waiting: dict[str, float], lags_s: list[float], count: int) -> None:
    """Move each deliberation from `waiting` to `lags_s` once the archive has its end."""
    row = deliberations.c
    while len(lags_s) < count:
        ended = select(row.id).where(row.tenant == LAGGING, row.id.in_(list(waiting)), row.ended_us.is_not(None))
        async with database.begin() as connection:
            found = (await connection.execute(ended)).scalars().all()
        seen_s = time.perf_counter()
        lags_s += [seen_s - waiting.pop(id) for id in found]
        await asyncio.sleep(LOOKS_EVERY_S)
