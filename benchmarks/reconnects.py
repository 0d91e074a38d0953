"""`python -m benchmarks.reconnects --streams 200 --reconnects 5000`: checks streams under repeated disconnects.

Deliberations are written over a real nats-server for one gateway process, and STREAMS sockets follow them. Each
connection is reset at a random event, in the middle of its chunk, and the next one resumes with `Last-Event-ID`. Half
of the streams keep up with the writer and break in live events; the others break in replays. Every tenth stream covers
three deliberations. Each stream must match the log: every event once, in order, and every text rebuilt exactly. Exits
with 1 on any violation.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from app.client import Frame, SseDecoder, Texts
from app.client.events import event_of
from app.deliberation.facts import CallFinished
from app.log.journal import JetStreamJournal
from app.log.stream_settings import StreamSettings
from app.log.streams import apply
from tests.conftest import NatsServer, free_port
from tests.story import Story

TENANT = "default"
TEXT = "Grün ist die Farbe, 緑は色, \u2028\x85 and 𝄞 is not; "
AGENTS = 2
PIECES = 60
# Accepted, opened, closed, completed; started and finished per agent; and one restarted attempt.
EVENTS = 4 + 2 * AGENTS + 1 + PIECES * AGENTS
SEVERAL = 3
# The writer's lead in pieces over a stream that keeps up; the other half is written without waiting.
AHEAD = 4
KEEPS_UP_S = 5.0
WRITE_TIMEOUT_S = 240.0
STARTS_WITHIN_S = 60.0
STOPS_WITHIN_S = 60.0


@dataclass(eq=False)
class Viewer:
    """One stream over all its connections: the received events and the faults."""

    deliberation_ids: Sequence[str]
    breaks: Sequence[int]
    shown: list[str] = field(default_factory=list[str])
    texts: dict[str, Texts] = field(default_factory=dict[str, Texts])
    faults: list[str] = field(default_factory=list[str])
    reconnects: int = 0
    cursor: str | None = None
    ended: bool = False
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def path(self) -> str:
        """The request's path and query."""
        if len(self.deliberation_ids) == 1:
            return f"/deliberations/{self.deliberation_ids[0]}/events?after=0"
        named = "&".join(f"deliberation={each}" for each in self.deliberation_ids)
        return f"/events?{named}&deltas=true&after=0"

    def feed(self, frame: Frame) -> None:
        """Record an event, and compare its text with the rebuilt one."""
        if frame.id is not None:
            self.cursor = frame.id
        if frame.event in ("stream.gap", "deliberation.snapshot"):
            self.faults.append(f"{frame.event} after {len(self.shown)} events")
        if frame.id is None or not frame.data:
            return
        self.shown.append(frame.id)
        event = event_of(frame)
        texts = self.texts.setdefault(str(frame.fields()["deliberation_id"]), Texts())
        if isinstance(event, CallFinished):
            rebuilt = texts.get(event.call_id)
            if rebuilt is None or rebuilt.text != event.text or not rebuilt.whole:
                self.faults.append(f"{event.deliberation_id} {event.call_id} was rebuilt otherwise than recorded")
        texts.apply(event)

    def judge(self, stored: Sequence[str]) -> None:
        """Compare the received events with the log."""
        if not self.ended:
            self.faults.append(f"the stream had not ended after {len(self.shown)} events")
        missing, twice = len(set(stored) - set(self.shown)), len(self.shown) - len(set(self.shown))
        if missing or twice or self.shown != list(stored):
            self.faults.append(f"{missing} events missing, {twice} doubled, of {len(stored)}")

    async def follow(self, port: int) -> None:
        """Connect until all deliberations have ended, disconnecting at the planned events."""
        while not self.ended:
            position = self.breaks[self.reconnects] if self.reconnects < len(self.breaks) else None
            await self._connect(port, position)
            self.reconnects += position is not None

    async def _connect(self, port: int, position: int | None) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            last = "" if self.cursor is None else f"Last-Event-ID: {self.cursor}\r\n"
            writer.write(f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{last}\r\n".encode())
            status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
            if status != 200:
                self.ended = True
                if status != 204:
                    self.faults.append(f"status {status} after {len(self.shown)} events")
                return
            await self._read(reader, position)
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, position: int | None) -> None:
        """Read the chunks of a response (RFC 9112, §7.1) up to its end or the planned position."""
        decoder = SseDecoder()
        while position is None or len(self.shown) < position:
            size = int(await reader.readline() or b"0", 16)
            if not size:
                return
            chunk = (await reader.readexactly(size + 2))[:-2]
            for frame in decoder.feed(chunk):
                self.feed(frame)
                if len(self.shown) == position:
                    break
            self.progress.set()


async def write(journal: JetStreamJournal, story: Story, viewer: Viewer | None) -> None:
    """Write an accepted deliberation; with a viewer, at most AHEAD pieces ahead of it.

    The first agent restarts its call once.
    """
    texts, attempts, written = dict.fromkeys(story.agents, ""), dict.fromkeys(story.agents, 1), 2
    await journal.append(TENANT, story.opened())
    for agent in story.agents:
        await journal.publish_view(TENANT, story.started(agent))
    for number in range(PIECES):
        for agent in story.agents:
            if number == PIECES // 2 and agent == story.agents[0]:
                texts[agent], attempts[agent] = "", 2
                await journal.publish_view(TENANT, story.started(agent, attempt=2))
            piece = TEXT[number % len(TEXT) :][: 1 + number % 5]
            await journal.publish_view(TENANT, story.delta(agent, len(texts[agent]), piece, attempts[agent]))
            texts[agent], written = texts[agent] + piece, written + 1
        while viewer is not None and not viewer.ended and len(viewer.shown) < written - AHEAD * AGENTS:
            viewer.progress.clear()
            try:
                async with asyncio.timeout(KEEPS_UP_S):
                    await viewer.progress.wait()
            except TimeoutError:
                viewer = None  # it missed events, which the final check reports
        await asyncio.sleep(0)
    for agent in story.agents:
        await journal.append(TENANT, story.finished(agent, texts[agent], attempts[agent]))
    await journal.append(TENANT, story.closed())
    await journal.append(TENANT, story.completed())


@asynccontextmanager
async def gateway(nats_url: str, **settings: str) -> AsyncGenerator[tuple[int, int], None]:
    """A listening gateway process: its process id and port."""
    port = free_port()
    environment = {**os.environ, "NATS_URL": nats_url, "PORT": str(port), **settings}
    command = [sys.executable, "-m", "app.main"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(STARTS_WITHIN_S):
            while process.returncode is None:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except ConnectionError:
                    await asyncio.sleep(0.05)
        yield process.pid, port
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOPS_WITHIN_S)
        except TimeoutError:
            process.kill()
            raise


def viewers_of(run: str, streams: int, reconnects: int, chance: random.Random) -> list[Viewer]:
    """The streams with their planned disconnects, `reconnects` in total."""
    made: list[Viewer] = []
    for number in range(streams):
        size = SEVERAL if number % 10 == 9 else 1
        ids = [f"{run}-{number}-{part}" for part in range(size)]
        own = reconnects // streams + (number < reconnects % streams)
        made.append(Viewer(ids, sorted(chance.randrange(size * EVENTS) for _ in range(own))))
    return made


async def stored_ids(journal: JetStreamJournal, deliberation_ids: Sequence[str]) -> list[str]:
    """The ids of all events of the deliberations in the log, in order."""
    epoch, found = (await journal.state()).epoch, list[int]()
    for each in deliberation_ids:
        found += [record.sequence async for record in journal.read(f"deliberations.{TENANT}.{each}.>", 0)]
    return [f"{epoch}-{sequence}" for sequence in sorted(found)]


async def followed(journal: JetStreamJournal, nats_url: str, streams: int, reconnects: int, seed: int) -> list[Viewer]:
    """Write and follow all deliberations; returns the checked streams."""
    viewers = viewers_of(f"{time.time_ns():x}", streams, reconnects, random.Random(seed))
    stories = {each: Story(each, AGENTS) for viewer in viewers for each in viewer.deliberation_ids}
    for story in stories.values():
        await journal.append(TENANT, story.accepted())
    async with gateway(nats_url) as (_, port):
        with suppress(TimeoutError):
            async with asyncio.timeout(WRITE_TIMEOUT_S), asyncio.TaskGroup() as group:
                for number, viewer in enumerate(viewers):
                    group.create_task(viewer.follow(port))
                    keeps_up = number % 2 == 0 and len(viewer.deliberation_ids) == 1
                    for each in viewer.deliberation_ids:
                        group.create_task(write(journal, stories[each], viewer if keeps_up else None))
    for viewer in viewers:
        viewer.judge(await stored_ids(journal, viewer.deliberation_ids))
    return viewers


async def measure(streams: int, reconnects: int, seed: int) -> int:
    """Print the table; returns the number of violations."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as store:
        server = NatsServer(Path(store))
        server.start()
        try:
            journal = await JetStreamJournal.connect(server.url, name="benchmark")
            await apply(journal, StreamSettings())
            viewers = await followed(journal, server.url, streams, reconnects, seed)
            await journal.close()
        finally:
            server.stop()
    faults = [fault for viewer in viewers for fault in viewer.faults]
    table = Table(title=f"Streams broken off and resumed, seed {seed}")
    for column in ("streams", "reconnects", "events shown", "texts rebuilt", "violations", "seconds"):
        table.add_column(column, justify="right")
    received = sum(len(viewer.shown) for viewer in viewers)
    texts = sum(len(each) for viewer in viewers for each in viewer.texts.values())
    broken = sum(viewer.reconnects for viewer in viewers)
    table.add_row(*map(str, (len(viewers), broken, received, texts, len(faults))), f"{time.monotonic() - began:.0f}")
    console = Console(width=max(100, Console().width))
    console.print(table)
    for fault in faults[:20]:
        console.print(fault)
    return len(faults)


def main() -> None:
    """Measure; exits with 1 on any violation."""
    parser = argparse.ArgumentParser(description="Streams that are broken off again and again")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--reconnects", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sys.exit(1 if uvloop.run(measure(asked.streams, asked.reconnects, asked.seed)) else 0)


if __name__ == "__main__":
    main()
