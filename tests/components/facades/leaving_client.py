"""A client of ASGI that leaves, which httpx's in-memory transport cannot."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, cast

from tests.components.facades.chatting import PATH
from tests.components.routes.served import APP, Served


@dataclass
class Connection:
    """An ASGI client that can disconnect, which httpx's in-memory transport cannot."""

    gateway: Served
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict[str, str])
    path: str = PATH
    sent: list[Any] = field(default_factory=list[Any])
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    _requested: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self._requested:
            self._requested = True
            return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def received(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def call(self) -> None:
        named = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), *named],
            "client": ("client", 1),
            "server": ("gateway", 80),
            "state": dict(cast(Any, self.gateway.gateway)),
        }
        await APP(scope, self.receive, self.send)
