"""Serves the scripted connections of tests/fixtures/stream/ on a socket, with their faults.

A fixture lists `connections` in order. Each has the expected request (`asked`) and the response. A response is
`frames` (or `text`, sent in `pieces` of so many bytes), or a `status` with a `problem` or `body`. `then` says how the
connection ends: closed, `reset`, left in `silence`, or broken in the `half` of a frame. `events` are the ids and types
that a client yields. `texts` are the rebuilt texts, by deliberation if a stream is `of` several. `waits_ms` are the
minimum waits between connections, and `refused` is the error that the client raises.
"""

import asyncio
import json
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any
from urllib.parse import parse_qs, urlsplit

FIXTURES = Path(__file__).parents[2] / "fixtures" / "stream"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))


@cache
def fixture(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def wire(frame: dict[str, Any]) -> str:
    if "comment" in frame:
        return f": {frame['comment']}\n\n"
    lines = [f"{name}: {frame[name]}" for name in ("retry", "id", "event") if name in frame]
    if "data" in frame:
        lines.append(f"data: {json.dumps(frame['data'], ensure_ascii=False)}")
    return "\n".join(lines) + "\n\n"


@dataclass
class ScriptedStream:
    script: dict[str, Any]
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    at_s: list[float] = field(default_factory=list[float])
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def expected(self) -> list[dict[str, Any]]:
        return [
            {"deltas": None, "deliberation": None, **connection["asked"]} for connection in self.script["connections"]
        ]

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        target, *lines = head.split("\r\n")
        query = parse_qs(urlsplit(target.split(" ")[1]).query)
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        one = {name: query.get(name, [None])[0] for name in ("after", "deltas")}
        several = {"deliberation": query.get("deliberation")}
        self.asked.append({"Last-Event-ID": headers.get("last-event-id"), **one, **several})
        self.at_s.append(asyncio.get_running_loop().time())
        assert len(self.asked) <= len(self.script["connections"]), "the client connected more often than expected"
        connection = self.script["connections"][len(self.asked) - 1]
        try:
            await self._answer(connection, writer)
        except ConnectionError:
            pass  # the client has left
        finally:
            writer.close()

    async def _answer(self, connection: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        status, then = connection.get("status", 200), connection.get("then", "close")
        streamed = "frames" in connection or "text" in connection
        if streamed or status != 200 or "body" in connection:
            writer.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\n".encode())
        if streamed:
            writer.write(b"Content-Type: text/event-stream; charset=utf-8\r\n\r\n")
            text = connection.get("text") or "".join(map(wire, connection["frames"]))
            content = text.encode()
            for begin in range(0, len(content), size := connection.get("pieces", 65_536)):
                writer.write(content[begin : begin + size])
                await writer.drain()
        elif "problem" in connection or "body" in connection:
            media = "application/problem+json" if "problem" in connection else "text/html"
            content = (connection.get("body") or json.dumps(connection["problem"])).encode()
            writer.write(f"Content-Type: {media}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        else:
            writer.write(b"\r\n")
        if then == "half":
            half = wire(connection["half"]).encode()
            writer.write(half[: len(half) * 2 // 3])
        await writer.drain()
        if then == "silence":
            await self.over.wait()
        if then == "reset":
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))


@asynccontextmanager
async def scripted(script: dict[str, Any]) -> AsyncGenerator[tuple[ScriptedStream, str]]:
    stream = ScriptedStream(script)
    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    try:
        yield stream, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        stream.over.set()
        server.close()
        await server.wait_closed()
