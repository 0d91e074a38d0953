"""The time of lists and searches, and a gateway's start and memory, over the deliberations of an archive."""

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx

from app.archive.database.connection import Database
from app.archive.database.search_query import parse
from app.archive.database.store import Store
from app.catalog.entries import ListFilter
from benchmarks.archive.filling import WORDS
from tests.conftest import free_port

SEARCHES = 300
LISTS = 300
PAGE = 50
LIST = "/deliberations"
REQUESTS = (
    ("floor: the list of roles", "/roles"),
    ("first page", LIST),
    ("a team, one in 20", f"{LIST}?metadata.team=t7"),
    ("an order, one in 10,000", f"{LIST}?metadata.order=7"),
    ("both", f"{LIST}?metadata.team=t7&metadata.order=7"),
    ("team and role", f"{LIST}?metadata.team=t7&role=DEV"),
    ("status, of none", f"{LIST}?status=failed"),
    ("team and status, of none", f"{LIST}?metadata.team=t7&status=failed"),
)


def searches(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Kinds of searches, each with one of them. Every deliberation has the task's words."""
    common, rare = WORDS[draw.randrange(20)], [WORDS[draw.randrange(5_000, 10_000)] for _ in range(3)]
    yield "in all", "colour"
    yield "common", common
    yield "middle", WORDS[draw.randrange(200, 500)]
    yield "rare", rare[0]
    yield "both", f"{common} {rare[0]}"
    yield "phrase", f'"{common} {WORDS[draw.randrange(20)]}"'
    yield "or", " OR ".join(rare)
    yield "without", f"colour -{common}"
    yield "prefix", f"{rare[0][:-1]}*"
    yield "nowhere", f"{rare[0]} nowhere"


async def search(database: Database) -> dict[str, list[float]]:
    """The milliseconds of searches for a page, by kind."""
    store, draw, took = Store(database), random.Random(11), dict[str, list[float]]()
    for _ in range(SEARCHES):
        for kind, q in searches(draw):
            began_s = time.perf_counter()
            await store.page("default", ListFilter(), parse(q), limit=PAGE)
            took.setdefault(kind, []).append((time.perf_counter() - began_s) * 1_000)
    return took


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def print_times(what: str, took: dict[str, list[float]]) -> None:
    """Print the median and the 99th percentile of milliseconds, by kind."""
    for kind, found in took.items():
        print(f"{what:7} {kind:26} p50 {percentile(found, 0.5):8.1f} ms   p99 {percentile(found, 0.99):8.1f} ms")


def memory_mib(process_id: int) -> float:
    """The resident memory of a process."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1_024


def cpu_s(process_id: int) -> float:
    """The seconds that a process has computed, which others that share the processor do not change much."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def serve(nats_url: str, database_url: str) -> None:
    """Start a gateway, and print its start, its memory and the time of lists."""
    port = free_port()
    environment = {"NATS_URL": nats_url, "DATABASE_URL": database_url, "PORT": str(port), "PATH": ""}
    began_s = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.main", env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while not await has_read(client):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.01)
            began_with_mib, took_s = memory_mib(process.pid), time.perf_counter() - began_s
            computed_s = cpu_s(process.pid)
            print(f"start   {took_s:.2f} s ({computed_s:.2f} s of computing) until all but a coordinator is ready")
            took = dict[str, list[float]]()
            for _ in range(LISTS):
                for kind, path in REQUESTS:
                    took.setdefault(kind, []).append(await request_ms(client, path))
            print_times("list", took)
            print(f"memory  {began_with_mib:.0f} MiB ready, {memory_mib(process.pid):.0f} MiB after the lists")
    finally:
        process.terminate()
        await process.wait()


async def has_read(client: httpx.AsyncClient) -> bool:
    """Whether a gateway lacks no more than its coordinator."""
    try:
        ready = (await client.get("/readyz")).json()
    except httpx.TransportError:
        return False
    return {fault["pointer"] for fault in ready.get("errors", [])} <= {"coordinator"}


async def request_ms(client: httpx.AsyncClient, path: str) -> float:
    """The milliseconds that a request takes."""
    began_s = time.perf_counter()
    response = await client.get(path)
    taken_s = time.perf_counter() - began_s
    response.raise_for_status()
    return 1_000 * taken_s


async def merge(database: Database) -> None:
    """Delete a deliberation, and print how long its words take to be overwritten in SQLite's index."""
    store = Store(database)
    ((_, entry),), _ = await store.page("default", ListFilter(), parse("colour"), limit=1)
    began = datetime.now(UTC)
    await store.delete("default", entry.id, began)
    began_s, computed_s = time.perf_counter(), time.process_time()
    await store.erase_removed(began, expired=False)
    took_s, computed_s = time.perf_counter() - began_s, time.process_time() - computed_s
    print(f"erased  {took_s:.2f} s, of them {computed_s:.2f} s of computing, after a deletion")
