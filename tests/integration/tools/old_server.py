"""A server of the protocol's version of 2025-03, without the official package; it does as servers of others do.

`python -m tests.integration.tools.old_server stdio FOLDER`, or `http FOLDER PORT`. Over HTTP it has sessions, and
forgets them when `FOLDER/forget` appears; it demands the key in `FOLDER/key`, where there is one.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

Message = dict[str, Any]
ANY = {"type": "object", "properties": {}}
NOTICES = 60
NOTICE_BYTES = 100_000
# Each server asks its client for something before it answers.
ASKS = ("sampling/createMessage", "elicitation/create", "roots/list", "ping")


def tools(folder: Path) -> list[Message]:
    found = [
        {"name": "files.read", "inputSchema": {"type": "object", "anyOf": [{"properties": {"path": {}}}]}},
        {"name": "notices", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
        {"name": "asks", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
        {"name": "contents", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
        {"name": "structured", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
        {"name": "environment", "inputSchema": ANY, "annotations": {"readOnlyHint": True}},
        {"name": "write", "inputSchema": ANY},
    ]
    if (folder / "more").exists():
        found.append({"name": "late", "inputSchema": ANY})
    if (folder / "broken").exists():
        found.append({"name": "broken", "inputSchema": {"type": "string"}})
    return found


def result_of(name: str, arguments: Message, folder: Path) -> Message:
    with (folder / "uses").open("a") as file:
        file.write(f"{name} {json.dumps(arguments)}\n")
    text = {"type": "text", "text": f"{name} is done"}
    match name:
        case "contents":
            link = {"type": "resource_link", "uri": "book://1", "name": "one", "description": "The first page"}
            page = {"type": "resource", "resource": {"uri": "book://2", "text": "The second page."}}
            blob = {"type": "resource", "resource": {"uri": "book://3", "blob": "AA==", "mimeType": "image/gif"}}
            return {"content": [text, link, page, blob, {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}]}
        case "structured":
            return {"content": [], "structuredContent": {"degrees": 36}}
        case "environment":
            return {"content": [{**text, "text": f"TOKEN={os.environ.get('TOKEN')} HOME={'HOME' in os.environ}"}]}
        case _:
            return {"content": [text]}


def answers(message: Message, folder: Path, ask: Callable[[Message], Message] | None) -> Iterator[Message]:
    """The messages that answer a request, notices and requests of the server's own before the result."""
    id, method, params = message["id"], message["method"], message.get("params", {})
    result: Message
    match method:
        case "initialize":
            info = {"name": "old", "version": "1"}
            result = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": tools(folder)}
        case "tools/call":
            name = params["name"]
            if name == "notices":
                for _ in range(NOTICES):
                    told = {"level": "info", "data": "x" * NOTICE_BYTES}
                    yield {"jsonrpc": "2.0", "method": "notifications/message", "params": told}
            result = result_of(name, params.get("arguments") or {}, folder)
            if name == "asks" and ask is not None:
                told = [ask({"jsonrpc": "2.0", "id": f"ask-{asked}", "method": asked, "params": {}}) for asked in ASKS]
                text = ", ".join("refused" if "error" in each else "answered" for each in told)
                result = {"content": [{"type": "text", "text": text}]}
        case _:
            yield {"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}}
            return
    yield {"jsonrpc": "2.0", "id": id, "result": result}


def serve_stdio(folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))

    def send(message: Message) -> None:
        print(json.dumps(message), flush=True)

    def ask(message: Message) -> Message:
        send(message)
        while True:
            heard: Message = json.loads(sys.stdin.readline())
            if heard.get("id") == message["id"] and "method" not in heard:
                return heard

    print("Listening on standard input")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            for each in answers(message, folder, ask):
                send(each)


def serve_http(folder: Path, port: int) -> None:
    sessions, lock = set[str](), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self._answer(405)

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            key = folder / "key"
            if key.exists() and self.headers["Authorization"] != key.read_text():
                return self._answer(401)
            with lock:
                if (folder / "forget").exists():
                    (folder / "forget").unlink()
                    sessions.clear()
                session = self.headers["Mcp-Session-Id"]
                if message["method"] == "initialize":
                    session = uuid4().hex
                    sessions.add(session)
                elif session not in sessions:
                    return self._answer(404 if session else 400)
            if message.get("params", {}).get("arguments", {}).get("status"):
                return self._answer(int(message["params"]["arguments"]["status"]))
            if "id" not in message:
                return self._answer(202)
            events = "".join(f"event: message\ndata: {json.dumps(each)}\n\n" for each in answers(message, folder, None))
            return self._answer(200, events.encode(), Content_Type="text/event-stream", Mcp_Session_Id=session)

        def log_message(self, format: str, *args: Any) -> None: ...

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    transport, folder, *port = sys.argv[1:]
    if transport == "stdio":
        serve_stdio(Path(folder))
    else:
        serve_http(Path(folder), int(port[0]))
