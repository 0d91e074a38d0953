"""`python -m benchmarks.viewers [VIEWERS]`: measures many viewers of one gateway process, compared with a floor.

VIEWERS sockets are opened to one process, and each gets two frames per second, or `--frames-per-s`. The lag runs from
the publish of a delta to the frame's arrival; log, server and viewers share the machine's cores. The floor is a bare
asyncio server that writes messages from NATS to every socket, without HTTP, cursors or replay. With `--alone` the
process has the last core for itself, and log and viewers share the others.
"""

import argparse
import asyncio
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import nats
import uvloop
from nats.aio.msg import Msg
from rich.console import Console
from rich.table import Table

from app.deliberation.facts import CallDelta
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from benchmarks.cores import cpu_s, pin, process, separated
from tests.conftest import NatsServer, free_port
from tests.story import Story

SECONDS = 10
_FLOOR_STARTS = b": \n\n"
_SENT = re.compile(rb'"text":"(\d+)"')


class _Asked(argparse.Namespace):
    viewers: int
    frames_per_s: int
    alone: bool


class Viewer(asyncio.Protocol):
    """A socket that measures the lag of every received frame."""

    def __init__(self, request: bytes, lags_ms: list[float]) -> None:
        self._request = request
        self._lags_ms = lags_ms
        self.started = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        cast(asyncio.Transport, transport).write(self._request)  # uvloop's transports are not a subclass

    def data_received(self, data: bytes) -> None:
        """Record the lag of each frame. A stream has started with its snapshot, or with the floor's comment."""
        self.started = self.started or b"event: deliberation.snapshot" in data or data == _FLOOR_STARTS
        now = time.monotonic_ns()
        self._lags_ms += [(now - int(sent)) / 1e6 for sent in _SENT.findall(data)]


def memory_kb(pid: int) -> int:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


async def _connected(port: int, count: int, request: Callable[[int], bytes], lags_ms: list[float]) -> list[Viewer]:
    loop, viewers = asyncio.get_running_loop(), list[Viewer]()
    for number in range(count):
        _, viewer = await loop.create_connection(lambda n=number: Viewer(request(n), lags_ms), "127.0.0.1", port)
        viewers.append(viewer)
    async with asyncio.timeout(60):
        while not all(viewer.started for viewer in viewers):  # noqa: ASYNC110 -- another process decides
            await asyncio.sleep(0.05)
    return viewers


async def _publish(journal: JetStreamJournal, stories: list[Story], seconds: float, frames_per_s: int) -> None:
    """Publish deltas of each deliberation, evenly spread."""
    began = time.monotonic()
    for number in range(round(seconds * frames_per_s)):
        for place, story in enumerate(stories):
            due = began + (number + place / len(stories)) / frames_per_s
            await asyncio.sleep(max(0, due - time.monotonic()))
            delta = CallDelta(
                deliberation_id=story.id,
                ts=datetime.now(UTC),
                call_id="s1-dev-001",
                agent_id="dev-001",
                attempt=1,
                offset=number * 20,
                text=str(time.monotonic_ns()),
            )
            await journal.publish_view("default", delta)
    await asyncio.sleep(1)


async def _bare_server(nats_url: str, port: int) -> None:
    """The floor's server."""
    sockets: dict[str, list[asyncio.StreamWriter]] = {}

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sockets.setdefault((await reader.readline()).decode().strip(), []).append(writer)
        writer.write(_FLOOR_STARTS)

    async def on_message(message: Msg) -> None:
        for writer in sockets.get(message.subject.split(".")[3], ()):
            writer.write(message.data)

    client = await nats.connect(nats_url)
    await client.subscribe("live.deliberations.>", cb=on_message)
    server = await asyncio.start_server(join, "127.0.0.1", port)
    await server.serve_forever()


async def _measure(
    name: str, pid: int, port: int, journal: JetStreamJournal, stories: list[Story], asked: _Asked, request: str
) -> tuple[str, ...]:
    lags_ms: list[float] = []
    count, before_kb = asked.viewers, memory_kb(pid)
    began = time.monotonic()
    await _connected(port, count, lambda number: request.format(stories[number % len(stories)].id).encode(), lags_ms)
    opened_s = time.monotonic() - began
    lags_ms.clear()
    before_s = cpu_s(pid)
    await _publish(journal, stories, SECONDS, asked.frames_per_s)
    spent_s = cpu_s(pid) - before_s
    lags_ms.sort()
    expected = count * SECONDS * asked.frames_per_s
    return (
        name,
        str(len(stories)),
        f"{len(lags_ms)} of {expected}",
        *(f"{lags_ms[int(len(lags_ms) * part)]:.1f}" for part in (0.5, 0.99)),
        f"{lags_ms[-1]:.1f}",
        f"{(memory_kb(pid) - before_kb) / count:.1f}",
        f"{spent_s / SECONDS * 100:.0f} %",
        f"{opened_s:.1f}",
    )


async def measure(asked: _Asked) -> None:
    """Print the table."""
    cores, count, console = (
        separated() if asked.alone else None,
        asked.viewers,
        Console(width=max(140, Console().width)),
    )
    table = Table(title=f"{count} viewers of one process, {asked.frames_per_s} frames a second each")
    for column in ("server", "deliberations", "frames", "p50 ms", "p99 ms", "max ms", "KB a viewer", "CPU", "opened s"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as store:
        server = NatsServer(Path(store))
        server.start()
        try:
            journal = await JetStreamJournal.connect(server.url, name="benchmark")
            await apply(journal, StreamSettings())
            for number in (1, max(1, count // 10)):
                stories = [Story(f"{time.time_ns():x}-{number}-{place}") for place in range(number)]
                for story in stories:
                    await journal.append("default", story.accepted())
                    await journal.append("default", story.opened())
                port = free_port()
                async with process(port, "-m", "benchmarks.viewers", "--floor", server.url, str(port)) as pid:
                    if cores is not None:
                        pin(pid, cores.alone)
                    table.add_row(*await _measure("floor", pid, port, journal, stories, asked, "{}\n"))
                port, limit = free_port(), str(max(1, count))
                names = {"NATS_URL": server.url, "PORT": str(port), "STREAMS_PER_CLIENT_MAX": limit}
                request = "GET /deliberations/{}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
                async with process(port, "-m", "app.main", **names) as pid:
                    if cores is not None:
                        pin(pid, cores.alone)
                    table.add_row(*await _measure("gateway", pid, port, journal, stories, asked, request))
            await journal.close()
        finally:
            server.stop()
    console.print(table)
    console.print(f"load over the last minute, at the end: {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Measure, or serve as the floor."""
    if sys.argv[1:2] == ["--floor"]:
        uvloop.run(_bare_server(sys.argv[2], int(sys.argv[3])))
        return
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("viewers", type=int, nargs="?", default=1_000)
    options.add_argument("--frames-per-s", type=int, default=2, help="Frames a second for each viewer")
    options.add_argument("--alone", action="store_true", help="Give the measured process a core for itself")
    asked = options.parse_args(namespace=_Asked())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(measure(asked))


if __name__ == "__main__":
    main()
