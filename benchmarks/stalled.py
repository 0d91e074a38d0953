"""`python -m benchmarks.stalled [READERS]`: measures the cost of clients that open a stream and never read.

READERS sockets request the stream of one endless deliberation from one gateway process and read nothing. Half of them
request replays from different positions. One healthy viewer reads along. A reader's cost is the process's growth plus
the bytes that the system holds unsent for it. The cost ends with the connection. Exits with 1 when a reader costs more
than 256 KiB or stays longer than 30 s.
"""

import argparse
import asyncio
import os
import resource
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from app.deliberation.facts import CallDelta
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from benchmarks.reconnects import gateway, stored_ids
from benchmarks.viewers import memory_kb
from tests.conftest import NatsServer
from tests.story import Story

COST_MAX_KIB = 256
GONE_MAX_S = 30.0
PIECE_CHARACTERS = 2_000
STORED_PIECES = 100


@dataclass
class Cost:
    """The maximum cost per reader in KiB, and the seconds until each reader was gone."""

    readers: int
    process_kib: float = 0.0
    unsent_kib: float = 0.0
    gone_s: list[float] = field(default_factory=list[float])

    @property
    def each_kib(self) -> float:
        """The sum of both."""
        return self.process_kib + self.unsent_kib


def _unsent(port: int) -> dict[int, int]:
    """The unsent bytes of a local port's connections, by the peer's port."""
    found: dict[int, int] = {}
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, peer, _, queues, *_ = line.split()
        if int(local.rpartition(":")[2], 16) == port:
            found[int(peer.rpartition(":")[2], 16)] = int(queues.partition(":")[0], 16)
    return found


def _stalled(port: int, deliberation_id: str, after: str | None) -> socket.socket:
    """A socket that requests a stream and never reads: a replay after an event, or new events."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    opened.connect(("127.0.0.1", port))
    cursor = "" if after is None else f"?after={after}"
    opened.sendall(f"GET /deliberations/{deliberation_id}/events{cursor} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return opened


async def _publish(journal: JetStreamJournal, story: Story, begin: int, pieces: int | None = None) -> None:
    """Publish a text that grows by so many pieces, or until cancelled."""
    for number in count() if pieces is None else range(pieces):
        delta = CallDelta(
            deliberation_id=story.id,
            ts=datetime.now(UTC),
            call_id="s1-dev-001",
            agent_id="dev-001",
            attempt=1,
            offset=(begin + number) * PIECE_CHARACTERS,
            text="x" * PIECE_CHARACTERS,
        )
        await journal.publish_view("default", delta)
        await asyncio.sleep(0.05 if pieces is None else 0)


async def _read_along(port: int, deliberation_id: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /deliberations/{deliberation_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    while await reader.read(65_536):
        pass
    raise RuntimeError("the healthy viewer lost its stream")


async def _until_gone(cost: Cost, pid: int, port: int, story: Story, positions: list[str], timeout_s: float) -> None:
    """Open the readers and record their cost until the last one is gone.

    Every second one starts a replay at its own position.
    """
    before_kb = memory_kb(pid)
    afters = [positions[number % len(positions)] if number % 2 else None for number in range(cost.readers)]
    sockets = [_stalled(port, story.id, after) for after in afters]
    began_s, there = time.monotonic(), {each.getsockname()[1] for each in sockets}
    while there and time.monotonic() - began_s < timeout_s:
        await asyncio.sleep(0.1)
        unsent = _unsent(port)
        cost.gone_s += [time.monotonic() - began_s] * len(there - unsent.keys())
        there &= unsent.keys()
        cost.process_kib = max(cost.process_kib, (memory_kb(pid) - before_kb) / cost.readers)
        cost.unsent_kib = max(cost.unsent_kib, sum(unsent[each] for each in there) / 1_024 / cost.readers)
    for each in sockets:
        each.close()


async def measured(journal: JetStreamJournal, nats_url: str, readers: int, timeout_s: float, **settings: str) -> Cost:
    """The cost of so many readers for a gateway process with these settings."""
    story, cost = Story(f"{time.time_ns():x}", size=1), Cost(readers)
    await journal.append("default", story.accepted())
    await journal.append("default", story.opened())
    await _publish(journal, story, 0, STORED_PIECES)
    positions = await stored_ids(journal, [story.id])
    async with gateway(nats_url, **settings) as (pid, port):
        tasks = [
            asyncio.create_task(_publish(journal, story, STORED_PIECES)),
            asyncio.create_task(_read_along(port, story.id)),
        ]
        try:
            await asyncio.sleep(2)  # until the gateway's buffers have reached their size
            await _until_gone(cost, pid, port, story, positions[:-8], timeout_s)
        finally:
            for task in tasks:
                assert not task.done() or task.exception() is None, task.exception()
                task.cancel()
            await asyncio.wait(tasks)
    return cost


async def measure(readers: int) -> int:
    """Print the table; returns 1 when a bound is exceeded."""
    with tempfile.TemporaryDirectory() as store:
        server = NatsServer(Path(store))
        server.start()
        try:
            journal = await JetStreamJournal.connect(server.url, name="benchmark")
            await apply(journal, StreamSettings())
            cost = await measured(journal, server.url, readers, GONE_MAX_S * 2)
            await journal.close()
        finally:
            server.stop()
    table = Table(title=f"{readers} readers that never read, each")
    for column in ("KiB of the process", "KiB unsent", "together", "bound", "gone after s", "bound s", "still there"):
        table.add_column(column, justify="right")
    last_s = max(cost.gone_s, default=0.0)
    kib = [f"{cost.process_kib:.1f}", f"{cost.unsent_kib:.1f}", f"{cost.each_kib:.1f}", str(COST_MAX_KIB)]
    there = readers - len(cost.gone_s)
    table.add_row(*kib, f"{min(cost.gone_s, default=0):.1f}–{last_s:.1f}", f"{GONE_MAX_S:g}", str(there))
    Console(width=max(120, Console().width)).print(table)
    print(f"load over the last minute, at the end: {os.getloadavg()[0]:.1f}")
    return int(cost.each_kib > COST_MAX_KIB or last_s > GONE_MAX_S or there > 0)


def main() -> None:
    """Measure; exits with 1 when a bound is exceeded."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("readers", type=int, nargs="?", default=200)
    given = options.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.exit(uvloop.run(measure(given.readers)))


if __name__ == "__main__":
    main()
