"""The REST routes, which every part of the façade asks: in this process, or over HTTP from `deliberate mcp`.

So keys, scopes, bounds and problems are those of REST. Nothing about a client is kept between its requests.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from fastapi import Request
from starlette.types import Message

from app.api.problems import PROBLEM_DOCUMENTS, answer_to, problem
from app.api.schemas import dump
from app.deliberation.errors import DeliberationError

PATH = "/mcp"
SESSION = "mcp-session-id"
ABANDONED = "the MCP client closed or cancelled its request"
JsonDocument = dict[str, Any]
Headers = Mapping[str, str]


class RouteAnswer(NamedTuple):
    """The answer of a route; names of headers in lower case."""

    status: int
    headers: Headers
    content: bytes

    @property
    def refused(self) -> bool:
        return self.status >= 400

    @property
    def document(self) -> JsonDocument:
        return json.loads(self.content)


class AskRoute(Protocol):
    async def __call__(
        self,
        method: str,
        path: str,
        body: JsonDocument | bytes | None = None,
        headers: Headers | None = None,
        wait_s: int = 0,
    ) -> RouteAnswer:
        """The answer of a route, refusals included; the gateway may hold it for `wait_s` (`Prefer: wait`).

        A body of bytes needs its `Content-Type`.
        """
        ...


def encoded(document: object) -> bytes:
    """JSON that is no longer than a client's, whose bytes are bounded."""
    return json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")


def refusal(error: DeliberationError) -> RouteAnswer:
    """The answer to an error of the façade, as a route would give it."""
    problem_document = problem(answer_to(error, PROBLEM_DOCUMENTS, ""), PATH, "")
    return RouteAnswer(problem_document.status, {}, dump(problem_document))


def path_of(deliberation_id: str, rest: str = "") -> str:
    return f"/deliberations/{quote(deliberation_id, safe='')}{rest}"


def submission_key(session: str, request_id: object) -> str:
    """The Idempotency-Key of a submission by a protocol before 2026-07-28."""
    return hashlib.sha256(encoded([session, request_id])).hexdigest()


def in_process(outer: Request, idempotency_key: str | None = None) -> AskRoute:
    """Asks the routes on behalf of an outer request, with its caller: one request of the client is counted once.

    `idempotency_key` is for submissions without a key of their own.
    """

    async def ask(
        method: str,
        path: str,
        body: JsonDocument | bytes | None = None,
        headers: Headers | None = None,
        wait_s: int = 0,
    ) -> RouteAnswer:
        content = body if isinstance(body, bytes) else b"" if body is None else encoded(body)
        sent = {"Content-Type": "application/json", **(headers or {})}
        if wait_s:
            sent["Prefer"] = f"wait={wait_s}"
        if idempotency_key is not None and (method, path) == ("POST", "/deliberations"):
            sent.setdefault("Idempotency-Key", idempotency_key)
        path, _, query = path.partition("?")
        named = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
        place = {"path": path, "raw_path": path.encode(), "query_string": query.encode()}
        answered: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Message) -> None:
            answered.append(message)

        await outer.app.router({**outer.scope, **place, "method": method, "headers": named}, receive, send)
        start, *parts = answered
        received = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return RouteAnswer(start["status"], received, b"".join(part.get("body", b"") for part in parts))

    return ask
