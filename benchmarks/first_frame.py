"""`python -m benchmarks.first_frame`: measures the time from the engine's first byte to the viewer's first frame.

The whole stack runs as `deliberate up` starts it, with an engine in this process that writes the time into its first
token. A viewer reads the deliberation's event stream. The lag ends when the frame with that token arrives, and covers
engine client, agent, log and gateway on shared cores. The floor is a socket that reads the engine's response itself.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from app.cli.stack.layout import StackOptions
from app.cli.stack.up import running_stack

ROUNDS = ((1, 100), (8, 200))
BOUND_MS = 15.0
# Long enough for the viewer to connect, as with a real engine.
TTFT_S = 0.3
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SENT = re.compile(rb'"(?:text|content)": ?"[^0-9]{0,40}(\d{10,})')
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
_MODELS = json.dumps({"object": "list", "data": [{"id": "stamping", "object": "model", "owned_by": "vllm"}]}).encode()


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _chunk(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "stamping", "choices": [choice]}
    return _piece(b"data: " + json.dumps({**body, "usage": usage}).encode() + b"\n\n")


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Responds to completions with the current time in nanoseconds."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            if not head.startswith(b"POST"):
                writer.write(_HEAD % b"application/json" + _piece(_MODELS) + _piece(b""))
                continue
            await asyncio.sleep(TTFT_S)
            writer.write(_HEAD % b"text/event-stream" + _chunk(f'{{"reasoning":"{time.monotonic_ns()}'))
            await asyncio.sleep(0.1)
            writer.write(_chunk('","answer":"forty-two","confidence":50}', "stop"))
            writer.write(_piece(b"data: [DONE]\n\n") + _piece(b""))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _lag_ms(url: httpx.URL, request: str) -> float:
    """Milliseconds from the engine's first byte to its arrival in the response to a request."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(f"{request}\r\nHost: {url.host}:{url.port}\r\n\r\n".encode())
        seen = b""
        while (sent := _SENT.search(seen)) is None:
            piece = await reader.read(65_536)
            if not piece:
                raise SystemExit(f"the stream ended before the first token: {seen[-500:]!r}")
            seen += piece
        return (time.monotonic_ns() - int(sent[1])) / 1e6
    finally:
        writer.transport.abort()


@dataclass
class Lags:
    """The lags of one round in milliseconds."""

    floor: list[float] = field(default_factory=list[float])
    product: list[float] = field(default_factory=list[float])


async def _round(url: str, engine_url: str, in_flight: int, total: int) -> Lags:
    lags, numbers = Lags(), iter(range(total))
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one() -> None:
            for _ in numbers:
                body = {"task": "Name a number.", "strategy": "single", "num_agents": 1}
                accepted = (await client.post("/deliberations", json=body)).raise_for_status().json()
                path = accepted["links"]["events"]
                lags.product.append(await _lag_ms(httpx.URL(url), f"GET {path} HTTP/1.1"))
                lags.floor.append(await _lag_ms(httpx.URL(engine_url), "POST /v1/chat/completions HTTP/1.1"))

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(one())
    return lags


async def main() -> int:
    """Print the table; returns 1 when a single viewer's median exceeds the bound."""
    table = Table(title="From the engine's first byte to the frame of a viewer, ms")
    for column in ("at once", "frames", "floor p50", "p50", "p90", "p99", "bound of p50"):
        table.add_column(column, justify="right")
    server = await asyncio.start_server(_engine, "127.0.0.1", 0)
    engine_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    medians: list[float] = []
    with tempfile.TemporaryDirectory() as data:
        options = StackOptions(data_dir=Path(data), port=0, nats_port=0, engine_urls=(engine_url,))
        async with running_stack(options) as stack:
            await _round(stack.url, engine_url, 4, 20)
            for in_flight, total in ROUNDS:
                lags = await _round(stack.url, engine_url, in_flight, total)
                floor, product = sorted(lags.floor), sorted(lags.product)
                quantiles = [f"{product[int(total * part)]:.1f}" for part in (0.5, 0.9, 0.99)]
                medians.append(product[total // 2])
                bound = f"{BOUND_MS:g}" if in_flight == 1 else ""
                table.add_row(str(in_flight), str(total), f"{floor[total // 2]:.1f}", *quantiles, bound)
    server.close()
    Console(width=max(100, Console().width)).print(table)
    print(f"load over the last minute, at the end: {os.getloadavg()[0]:.1f}")
    return int(medians[0] > BOUND_MS)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(uvloop.run(main()))
