"""An engine on a socket, which answers with exactly the bytes that a test gives it."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from socket import SO_LINGER, SOL_SOCKET
from struct import pack
from typing import Any

RECORDED: dict[str, dict[str, Any]] = {
    each["case"]: each for each in json.loads(files("serve_deployments.simulator").joinpath("replies.json").read_text())
}
LIST = b'{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "someone"}]}'


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class RawEngine:
    """Plays `replies` in their order, and the last one again and again. `models` answers the list of models.

    `waits_s` is the time before a reply, `pause_s` that between its pieces. At its end it `holds_open` the connection,
    or `resets` it. It `has_written` once a reply's last piece is.
    """

    replies: Sequence[Sequence[bytes]]
    models: Sequence[bytes] = (whole(LIST),)
    waits_s: float = 0.0
    pause_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    paths: list[str] = field(default_factory=list[str])
    url: str = ""
    holds_open: bool = False
    resets: bool = False
    has_written: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.paths.append(head.split(b" ", 2)[1].decode())
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                content = await reader.readexactly(int(length[1])) if length else b""
                if head.startswith(b"GET"):
                    pieces = self.models
                else:
                    self.bodies.append(json.loads(content))
                    pieces = self.replies[min(len(self.bodies), len(self.replies)) - 1]
                    await asyncio.sleep(self.waits_s)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(self.pause_s if content else 0)
                self.has_written |= bool(content)
                if self.resets and content:
                    # An end without a lingering time is a reset.
                    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
                    break
                while self.holds_open and content and not writer.is_closing() and not reader.at_eof():
                    await reader.read(1)
                if b"connection: close" in b"".join(pieces).lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["RawEngine"]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()


def recorded(case: str) -> RawEngine:
    played = RECORDED[case]
    replies = [[piece.encode("latin-1") for piece in reply["pieces"]] for reply in played["replies"]]
    models = [piece.encode("latin-1") for piece in played["models"]] if played["models"] else [whole(LIST)]
    return RawEngine(replies, models)
