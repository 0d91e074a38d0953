"""`python -m benchmarks.announcements`: what the announcement of an end costs the coordinator and nats-server.

Ends are built and published over a real nats-server that does nothing else; as many are only built. Then a look-up
passes all of them and finds nothing. CPU is user and system time. The answers are the short ones of scripted agents.
"""

import argparse
import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import structlog
import uvloop
from rich.console import Console
from rich.table import Table

from app.deliberation.announcements import Announcement, announcement
from app.deliberation.fold import State, fold
from app.log.announced_ends import REMEMBERED_FOR
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from benchmarks.bench import closed_loop
from benchmarks.cores import cpu_ticks
from tests.conftest import NatsServer
from tests.fakes import ScriptedAgents
from tests.unit.facts_of import CouncilScript, accepted, specification

IN_FLIGHT = 20
WARM_UP = 500
IDS = 60_000
STRATEGIES = "independent", "council"


def state_of(strategy: str) -> State:
    agents = ScriptedAgents(CouncilScript())
    state = fold(enumerate(agents.deliberate([accepted(specification(strategy=strategy, size=3))]), start=1))
    assert state is not None
    return state


def ended(state: State, number: int) -> Announcement:
    assert state.end is not None
    end = state.end.model_copy(update={"deliberation_id": f"{number:026d}", "ts": datetime.now(UTC)})
    return announcement("default", end, state)


class Cost(NamedTuple):
    """CPU of an announcement and of a look-up that passes it, in milliseconds, and what is stored of it."""

    built_ms: float
    published_ms: float
    served_ms: float
    passed_ms: float
    messages: float
    bytes: float


async def cost(state: State, deliberations: int, server: NatsServer) -> Cost:
    assert server.process is not None
    journal, numbers = await JetStreamJournal.connect(server.url), count()
    await apply(journal, StreamSettings())

    async def announce() -> None:
        await journal.announce(ended(state, next(numbers)))

    await closed_loop(IN_FLIGHT, WARM_UP, announce)
    began_s = time.process_time()
    for number in range(deliberations):
        ended(state, number)
    built_s = time.process_time() - began_s
    ticks, began_s = cpu_ticks(server.process.pid), time.process_time()
    await closed_loop(IN_FLIGHT, deliberations, announce)
    published_s = time.process_time() - began_s - built_s
    served_ms = (cpu_ticks(server.process.pid) - ticks) * 1_000 / os.sysconf("SC_CLK_TCK")
    stored = (await journal.request("$JS.API.STREAM.INFO.ORCHESTRATOR_EVENTS"))["state"]
    began_s = time.process_time()
    await journal.erase_announcement("default", "another", datetime.now(UTC) - REMEMBERED_FOR)
    passed_s = time.process_time() - began_s
    await journal.close()
    return Cost(
        built_s * 1_000 / deliberations,
        published_s * 1_000 / deliberations,
        served_ms / deliberations,
        passed_s * 1_000 / stored["messages"],
        stored["messages"] / (deliberations + WARM_UP),
        stored["bytes"] / (deliberations + WARM_UP),
    )


def _resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def memory_of_ids(header: str) -> int:
    """The bytes of memory of a nats-server that has stored messages, each with an id in a header."""
    with TemporaryDirectory() as directory:
        server = NatsServer(Path(directory))
        server.start()
        assert server.process is not None
        journal, numbers = await JetStreamJournal.connect(server.url), count()
        await apply(journal, StreamSettings())

        async def store() -> None:
            headers = {header: f"default.{next(numbers):026d}"}
            await journal.request("orchestration.deliberation.completed", b"{}", headers)

        await closed_loop(IN_FLIGHT, IDS, store)
        resident = _resident_bytes(server.process.pid)
        await journal.close()
        server.stop()
    return resident


async def measure(deliberations: int) -> None:
    rows: dict[str, Cost] = {}
    for strategy in STRATEGIES:
        with TemporaryDirectory() as directory:
            server = NatsServer(Path(directory))
            server.start()
            rows[strategy] = await cost(state_of(strategy), deliberations, server)
            server.stop()
    table = Table(title=f"The announcement of an end, three agents, mean of {deliberations}, {IN_FLIGHT} in flight")
    table.add_column("")
    for strategy in STRATEGIES:
        table.add_column(strategy, justify="right")
    cells: dict[str, Callable[[Cost], str]] = {
        "built, ms of the coordinator's CPU": lambda row: f"{row.built_ms:.2f}",
        "published, ms of the coordinator's CPU": lambda row: f"{row.published_ms:.2f}",
        "stored, ms of nats-server's CPU": lambda row: f"{row.served_ms:.2f}",
        "together": lambda row: f"{row.built_ms + row.published_ms + row.served_ms:.2f}",
        "messages stored": lambda row: f"{row.messages:.1f}",
        "bytes stored": lambda row: f"{row.bytes:,.0f}",
        "passed by a look-up, ms of its reader's CPU": lambda row: f"{row.passed_ms:.3f}",
    }
    for name, cell in cells.items():
        table.add_row(name, *map(cell, rows.values()))
    remembered = (await memory_of_ids("Nats-Msg-Id") - await memory_of_ids("Other-Message")) / IDS
    table.add_row("remembered, bytes of nats-server's memory for ten minutes", *[f"{remembered:.0f}"] * len(STRATEGIES))
    Console(width=max(110, Console().width)).print(table)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    parser = argparse.ArgumentParser(description="What the announcement of an end costs")
    parser.add_argument("--deliberations", type=int, default=5_000)
    uvloop.run(measure(parser.parse_args().deliberations))


if __name__ == "__main__":
    main()
