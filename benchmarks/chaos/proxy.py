"""A TCP proxy that can disturb its connections: delay, half-open, truncate, reset."""

import asyncio
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Self

CutKind = Literal["reset", "truncate", "half-open", "delay"]
CUTS: tuple[CutKind, ...] = ("reset", "truncate", "half-open", "delay")
# The bytes that a client sent, the connection, and the time (epoch seconds).
Seen = Callable[[bytes, int, float], None]
PIECE_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: closing sends a reset


def now_s() -> float:
    """Epoch seconds; the server uses the same clock."""
    return time.time()


class Link:
    """One proxied connection: two pumps, and an event that faults clear. A `dead` one drops its bytes."""

    def __init__(self, seen: Seen | None) -> None:
        self.number = id(self)
        self.open = asyncio.Event()
        self.open.set()
        self.dead = False
        self.writers: list[asyncio.StreamWriter] = []
        self._seen = seen

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upwards: bool) -> None:
        """Forward bytes in one direction until either side closes."""
        with suppress(ConnectionError, OSError):
            while data := await reader.read(PIECE_BYTES):
                # Taken before a delay, because the sender may be gone after it.
                sent_at_s = now_s()
                await self.open.wait()
                if self.dead:
                    return
                if upwards and self._seen is not None:
                    self._seen(data, self.number, sent_at_s)
                writer.write(data)
                await writer.drain()
        with suppress(ConnectionError, OSError):
            writer.close()

    def reset(self) -> None:
        """Reset both sides, so that bytes in flight are lost."""
        self.dead = True
        for writer in self.writers:
            raw: socket.socket | None = writer.get_extra_info("socket")
            with suppress(OSError):
                if raw is not None:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    def truncate(self) -> None:
        """Close both sides normally in the middle of the data."""
        for writer in self.writers:
            writer.close()


class FaultProxy:
    """Listens on loopback and forwards to `upstream_port`; `seen` gets the forwarded bytes of clients.

    Use as an async context manager; `port` is where it listens.
    """

    def __init__(self, upstream_port: int, seen: Seen | None = None) -> None:
        self._upstream_port = upstream_port
        self._seen = seen
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._links):
            link.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self._seen)
        link.writers = [writer, up_writer]
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(link.pump(reader, up_writer, upwards=True))
                pumps.create_task(link.pump(up_reader, writer, upwards=False))
        finally:
            self._links.discard(link)
            for each in link.writers:
                each.transport.abort()

    def cut(self, kind: CutKind, rng: random.Random, seconds: float) -> bool:
        """Disturb one connection; False without one. `seconds` is the duration of a delay or a half-open state."""
        if not self._links:
            return False
        link = rng.choice(sorted(self._links, key=lambda each: each.number))
        match kind:
            case "reset":
                link.reset()
            case "truncate":
                link.truncate()
            case "half-open" | "delay":
                self._hold(link, kind, seconds)
        return True

    def _hold(self, link: Link, kind: CutKind, seconds: float) -> None:
        async def hold() -> None:
            link.open.clear()
            await asyncio.sleep(seconds)
            # A delayed connection finally forwards its bytes; a half-open one drops them.
            if kind == "half-open":
                link.reset()
            link.open.set()

        task = asyncio.get_running_loop().create_task(hold())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
