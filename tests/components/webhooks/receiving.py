"""A receiver of webhooks on a socket that follows a script: it answers, answers badly, or hangs."""

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from standardwebhooks import Webhook

from tests.conditions import until

Behaviour = int | bytes | Literal["hang", "die", "drip"]


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def checked(self, secret: str) -> dict[str, Any]:
        return Webhook(secret).verify(self.body, self.headers)


@dataclass
class Receiver:
    """`script` holds the behaviours for the next requests by path, `otherwise` the one for all others.

    A number is a status; bytes are the whole answer; `hang` never answers; `die` closes the connection; `drip` sends a
    head without an end.
    """

    otherwise: Behaviour = 204
    script: dict[str, deque[Behaviour]] = field(default_factory=lambda: defaultdict(deque))
    received: list[Received] = field(default_factory=list[Received])
    port: int = 0
    open: int = 0
    open_max: int = 0
    scheme: str = "http"

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def at(self, path: str) -> list[Received]:
        return [each for each in self.received if each.path == path]

    async def until(self, count: int, path: str | None = None, timeout_s: float = 20) -> list[Received]:
        found: Callable[[], list[Received]] = lambda: self.received if path is None else self.at(path)  # noqa: E731
        await until(lambda: len(found()) >= count, timeout_s)
        return found()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        path = first.split()[1]
        self.received.append(Received(path, headers, body))
        script = self.script[path]
        behaviour = script.popleft() if script else self.otherwise
        match behaviour:
            case int():
                writer.write(f"HTTP/1.1 {behaviour} Said\r\nContent-Length: 0\r\n\r\n".encode())
            case bytes():
                writer.write(behaviour)
            case "die":
                return
            case "hang":
                await reader.read()
            case "drip":
                writer.write(b"HTTP/1.1 200 OK\r\n")
                while not reader.at_eof() and not writer.is_closing():
                    writer.write(b"X-Drip: x\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)
        await writer.drain()


@asynccontextmanager
async def receiving(
    otherwise: Behaviour = 204, *, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Receiver]:
    receiver = Receiver(otherwise, scheme="https" if tls else "http")
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        # Not awaited: hanging connections last until the loop ends.
        server.close()
