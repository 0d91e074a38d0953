"""One HTTP exchange over ASGI: its body, its client's leaving, and its answer, refusals in vLLM's shape."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from serve_deployments.simulator.recorded import RecordedReply

BODY_BYTES_MAX = 16 * 1024 * 1024
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
# The types that vLLM 0.32 gives: `vllm/entrypoints/serve/exception_handling`.
_KINDS = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class RequestRefused(Exception):
    """An answer other than 200. `param` is the field at fault; `kind` is the error's type, by default the status's."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers
        kind = kind or _KINDS.get(status) or HTTPStatus(status).phrase
        self.body = json.dumps({"error": {"message": text, "type": kind, "param": param, "code": status}}).encode()


def bad_request(text: str, param: str | None = None) -> RequestRefused:
    return RequestRefused(400, f"{text} (parameter={param})" if param else text, param=param)


def unauthorized() -> RequestRefused:
    refused = RequestRefused(401, "Unauthorized")
    refused.body = b'{"error":"Unauthorized"}'
    return refused


async def sleep_until(due_s: float) -> None:
    delay_s = due_s - time.monotonic()
    if delay_s > 0.0:
        await asyncio.sleep(math.ceil(delay_s * 1_000.0) / 1_000.0)
        # uvloop's timers count in whole milliseconds from a clock that it truncates, so one may fire early.
        await sleep_until(due_s)


class Exchange(Request):
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self.arrived_s = time.monotonic()

    async def body(self) -> bytes:
        body = bytearray()
        async for piece in self.stream():
            body += piece
            if len(body) > BODY_BYTES_MAX:
                # The rest is not read, so the connection cannot be used again.
                text = f"The body exceeds {BODY_BYTES_MAX} bytes."
                raise RequestRefused(413, text, headers={"connection": "close"})
        return bytes(body)

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        """Cancel the block and raise ClientDisconnect as soon as the client leaves. The body must have been read."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        async def watch() -> None:
            nonlocal gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            gone = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not gone or task.uncancel() > 0:
                raise
            raise ClientDisconnect from None
        finally:
            watcher.cancel()

    async def answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Mapping[str, str] | None = None,
        cut_at: int | None = None,
    ) -> None:
        extra = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        head = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *extra]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        await self.write(body[:cut_at], last=cut_at is None)

    async def play(self, reply: RecordedReply) -> None:
        await self._send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
        for piece in reply.pieces:
            await self.write(piece)
        await self.write(b"", last=True)

    async def start_stream(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
