"""The time of the queries of `GET /stats` over many ended deliberations, and of counting them.

`python -m benchmarks.archive.statistics [--deliberations 50000] [--copies 20] [--days 30] [--database-url URL]`; by
default a new SQLite file. They are of four strategies, three roles and two models, and take 5 to 60 seconds.
"""

import argparse
import asyncio
import math
import random
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import get_args

from sqlalchemy import func, insert, select, text, update

from app.api.schemas import StatsGroup
from app.archive.database import measures
from app.archive.database.connection import Database
from app.archive.database.measures import Measure
from app.archive.database.migrate import migrate
from app.archive.database.rows import microseconds
from app.archive.database.statistics import StatsFilter
from app.archive.database.store import Store
from app.archive.database.tables import AMOUNTS, rollups
from app.archive.projector import BATCH_MAX

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUERIES = 20
ID_CHARS = 26
TENANTS = 4
NAMES = (
    *(("strategy", name) for name in ("council", "vote", "debate", "single")),
    *(("role", name) for name in ("DEV", "QA", "ARCHITECT")),
    *(("model", name) for name in ("m-1", "m-2")),
)


def deliberation(draw: random.Random, number: int, at: datetime) -> list[Measure]:
    """The rows of one: a strategy, three roles and two models."""
    took_us = int(1_000_000 * math.exp(draw.gauss(2.9, 0.6)))
    measured = {"bench": 0, "status": "completed", "duration": measures.duration_class(took_us), "took_us": took_us}
    amounts = {"number": 1, "decided": 1, "agreeing": 1, "agreement_ppm": 500_000, "degraded": 0}
    tokens = {"prompt_tokens": 12_000, "cached_tokens": 8_000, "completion_tokens": 3_000}
    cost = {"currency": "USD", "cost_millionths": 9_000, "unpriced_calls": 0}
    common = {
        "tenant": f"t{number % TENANTS}",
        "id": f"{number:0{ID_CHARS}d}",
        "created_us": microseconds(at),
        "won": draw.randrange(2),
        **measured,
        **amounts,
        **tokens,
        **cost,
    }
    chosen = [NAMES[draw.randrange(4)], *NAMES[4:]]
    return [{**common, "kind": kind, "name": name} for kind, name in chosen]


async def fill(database: Database, count: int, days: int) -> float:
    """Count deliberations, evenly over the days; returns the seconds."""
    draw, began_s = random.Random(3), time.perf_counter()
    for begin in range(0, count, BATCH_MAX):
        numbers = range(begin, min(begin + BATCH_MAX, count))
        rows = [
            row for each in numbers for row in deliberation(draw, each, NOW - timedelta(days=days * (1 - each / count)))
        ]
        keys = list({(row["tenant"], row["id"]): None for row in rows})
        async with database.begin() as connection:
            await measures.replace(connection, database.dialect, keys, rows)
    return time.perf_counter() - began_s


async def multiply(database: Database, copies: int) -> None:
    """Copy each deliberation within the database, with ids of their own and a microsecond apart."""
    names = measures.measures.columns.keys()
    async with database.begin() as connection:
        for copy in range(1, copies):
            row = measures.measures.c
            changed = {"id": row.id + f"-{copy}", "created_us": row.created_us + copy}
            chosen = select(*(changed.get(name, row[name]) for name in names)).where(func.length(row.id) == ID_CHARS)
            await connection.execute(insert(measures.measures).from_select(names, chosen))
        await connection.execute(update(rollups).values({name: rollups.c[name] * copies for name in AMOUNTS}))
    if database.dialect == "postgresql":
        async with database.begin() as connection:
            await connection.execute(text("ANALYZE"))


async def asked(store: Store, period: tuple[datetime, datetime | None], by: StatsGroup | None) -> list[float]:
    """The milliseconds of some queries, sorted."""
    since, until = period
    tenant = None if by == "tenant" else "t0"
    took = list[float]()
    for _ in range(QUERIES):
        began_s = time.perf_counter()
        found, _ = await store.stats(StatsFilter(tenant, since, until, NOW, by))
        took.append((time.perf_counter() - began_s) * 1_000)
        assert found.total
    return sorted(took)


def shown(took: Sequence[float]) -> str:
    """The fastest, the median and the slowest."""
    return f"{took[0]:8.1f} ms fastest, {took[len(took) // 2]:.1f} ms median, {took[-1]:.1f} ms slowest"


async def measure(url: str, count: int, copies: int, days: int) -> None:
    """Fill, ask, and print the figures."""
    await migrate(url)
    database = Database(url)
    began_s = time.process_time()
    filling_s = await fill(database, count, days)
    cpu_s = time.process_time() - began_s
    await multiply(database, copies)
    async with database.begin() as connection:
        sums = (await connection.execute(select(func.count()).select_from(rollups))).scalar_one()
    print(f"{count * copies} deliberations over {days} days; {sums} sums by hour and day")
    print(
        f"counted   {filling_s / count * 1e6:8.0f} µs a deliberation, {cpu_s / count * 1e6:.0f} µs CPU of this process"
    )
    whole = NOW - timedelta(days=30), None
    odd = NOW - timedelta(days=30) + timedelta(minutes=70), NOW - timedelta(minutes=70)
    for name, period in (("whole days", whole), ("odd minutes", odd)):
        for by in (None, *get_args(StatsGroup)):
            print(f"30 days, {name:14}{by or 'all':10}{shown(await asked(Store(database), period, by))}", flush=True)
    await database.close()


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deliberations", type=int, default=50_000)
    parser.add_argument("--copies", type=int, default=20, help="of each of these deliberations")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--database-url")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = given.database_url or f"sqlite:///{directory}/archive.db"
        asyncio.run(measure(url, given.deliberations, given.copies, given.days))


if __name__ == "__main__":
    main()
