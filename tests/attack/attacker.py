"""Attackers in a process of their own, so that they take no time from the measuring process.

`python -m tests.attack.attacker idle PORT COUNT SOURCE` opens idle connections, prints how many, and holds them until
its input ends. `… pour PORT KIND SECONDS` repeatedly sends heads of 64 MB on eight connections at once. It prints the
most bytes that one connection could send, and the number of refusals.
"""

import asyncio
import resource
import socket
import sys
import time
from contextlib import suppress

MEGABYTE = 1_048_576
HEAD_BYTES = 64 * MEGABYTE
AT_ONCE = 8
ENDLESS: dict[str, bytes] = {
    "value": b"GET / HTTP/1.1\r\nX-Endless: ",
    "name": b"GET / HTTP/1.1\r\nX-Endless",
    "headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    "target": b"GET /",
    "method": b"G",
    "version": b"GET / HTTP/1.1",
}


def hold_idle(port: int, count: int, source: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0)) for _ in range(count)]
    print(len(held), flush=True)
    sys.stdin.read()


async def pour(port: int, kind: str) -> tuple[int, bool]:
    start = ENDLESS[kind]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, piece = len(start), b"B: c\r\n" * 10_922 if kind == "headers" else b"x" * 65_536
    writer.write(start)
    with suppress(ConnectionError):
        while sent < HEAD_BYTES:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    answer = b""
    with suppress(ConnectionError, TimeoutError):
        answer = await asyncio.wait_for(reader.read(12), 10)
    writer.transport.abort()
    return sent, answer.startswith(b"HTTP/1.1 4") or sent < HEAD_BYTES


async def pour_for(port: int, kind: str, seconds: float) -> None:
    ends, results = time.monotonic() + seconds, list[tuple[int, bool]]()
    while time.monotonic() < ends:
        results += await asyncio.gather(*(pour(port, kind) for _ in range(AT_ONCE)))
    print(max(sent for sent, _ in results), sum(refused for _, refused in results), len(results), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "idle":
        hold_idle(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        asyncio.run(pour_for(int(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
