"""A tool server over HTTP that lies in one way, in this process: what it was asked for is counted."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

COOKIES = "".join(f"Set-Cookie: {{post}}-{number}={'x' * 200}\r\n" for number in range(100))
# Heads that end no response, or a body that takes for ever.
ENDLESS = {
    "pieces": ("Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"),
    "comments": ("Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\n: x\n\n\r\n"),
    "bytes": ("Content-Type: text/event-stream\r\n\r\n", ":" + "x" * 65_536 + "\n\n"),
}


class EvilHttpServer:
    """`asked` counts requests by method; `cookie_bytes` is the longest cookie that was sent.

    `abandoned` counts the responses whose reader went before their end.
    """

    def __init__(self, lie: str) -> None:
        self.lie = lie
        self.asked = Counter[str]()
        self.cookie_bytes = 0
        self.abandoned = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["EvilHttpServer"]:
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 24) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
            yield self

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                self.cookie_bytes = max(self.cookie_bytes, len(headers.get("cookie", "")))
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                message = json.loads(body) if body else {}
                self.asked[message.get("method") or head.partition(" ")[0]] += 1
                await self._answer(message, reader, writer)
                await writer.drain()
        writer.close()

    async def _answer(
        self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number, method = message.get("id"), message.get("method")
        if method == "tools/call" and self.lie in ENDLESS:
            head, piece = ENDLESS[self.lie]
            writer.write(f"HTTP/1.1 200 OK\r\n{head}".encode())
            while True:
                writer.write(piece.encode() * max(1, 10_000 // len(piece)))
                await writer.drain()
        if method == "tools/call" and self.lie == "hangs":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
            await reader.read()
            self.abandoned += 1
        elif number is None and not message and self.lie == "ends":
            body = "retry: 0\n\n" if self.asked["GET"] == 1 else ""
            head = f"Content-Type: text/event-stream\r\nContent-Length: {len(body)}"
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}".encode())
        elif number is None:
            status = "202 Accepted" if message else "405 Method Not Allowed"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        else:
            body = json.dumps({"jsonrpc": "2.0", "id": number, **self._result(message)})
            cookies = COOKIES.format(post=self.asked.total()) if self.lie == "cookies" else ""
            head = f"Content-Type: application/json\r\nMcp-Session-Id: s\r\n{cookies}Content-Length: {len(body)}"
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}".encode())

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        match message["method"]:
            case "initialize":
                server = {"name": "evil", "version": "1"}
                version = message["params"]["protocolVersion"]
                return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}}
            case "tools/list":
                return {"result": {"tools": [{"name": "look_up", "inputSchema": {"type": "object"}}]}}
            case "tools/call":
                return {"result": {"content": [{"type": "text", "text": "the result"}]}}
            case _:
                return {"error": {"code": -32601, "message": "no such method"}}
