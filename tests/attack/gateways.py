import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.archive.database.migrate import migrate
from tests.conftest import free_port

STARTS_WITHIN_S = 60.0
# A pipelined request that no request below may uncover: its path exists nowhere else.
HIDDEN = b"DELETE /deliberations/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(frozen=True, slots=True)
class Gateway:
    port: int
    client: httpx.AsyncClient
    output: Path


@asynccontextmanager
async def gateway(nats_url: str, place: Path, **settings: str) -> AsyncGenerator[Gateway]:
    port, output, database_url = free_port(), place / "gateway.log", f"sqlite:///{place}/archive.db"
    await migrate(database_url)
    environment = {**os.environ, "NATS_URL": nats_url, "PORT": str(port), "DATABASE_URL": database_url, **settings}
    with output.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.main"], env=environment, stdout=written, stderr=subprocess.STDOUT
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://localhost:{port}", timeout=30) as client:
            async with asyncio.timeout(STARTS_WITHIN_S):
                while not await _ready(client):
                    assert process.poll() is None, output.read_text()
                    await asyncio.sleep(0.05)
            yield Gateway(port, client, output)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 60)
        process.kill()
        process.wait()


async def _ready(client: httpx.AsyncClient) -> bool:
    with suppress(httpx.TransportError):
        return (await client.get("/roles")).status_code in (200, 401)
    return False


@dataclass(frozen=True, slots=True)
class Answer:
    content: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        return [status for status in map(int, _STATUS.findall(self.content)) if status >= 200]


async def send(port: int, pieces: Iterable[bytes], *, timeout_s: float = 1.0, pause_s: float = 0.0) -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def pour() -> None:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)

    pouring, content, closed = asyncio.create_task(pour()), b"", False
    try:
        while not closed:
            async with asyncio.timeout(timeout_s):
                received = await reader.read(65_536)
            content, closed = content + received, not received
    except TimeoutError:
        pass
    except ConnectionError:
        closed = True
    finally:
        pouring.cancel()
        writer.transport.abort()
    return Answer(content, closed)
