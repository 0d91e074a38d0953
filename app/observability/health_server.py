"""A port that answers while the event loop of a process without routes runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_REQUEST_BYTES_MAX = 4_096
_ALIVE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"


@asynccontextmanager
async def health_server(host: str, port: int) -> AsyncGenerator[int]:
    """Answer every request on a port with 200 while the event loop runs; yields the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_ALIVE)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port, limit=_REQUEST_BYTES_MAX)
    async with server:
        yield server.sockets[0].getsockname()[1]
