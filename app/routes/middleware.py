"""Before every route: id, log event and metrics of a request, and its refusal by URL or Host, in pure ASGI."""

import logging
import re
import secrets
import time
from contextlib import ExitStack
from math import inf
from urllib.parse import parse_qsl, unquote

import anyio
import structlog
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.authorization import ANONYMOUS, Access
from app.access.keyring import Keyring
from app.access.keys import Caller, looks_like_key
from app.api.problems import error_response
from app.api.refusals import ForeignHost, KeyInUrl, Refusal
from app.observability.metrics import Metrics
from app.observability.request_span import RequestSpan
from app.routes.dependencies import gateway_in

_DEVELOPMENT = (b"development-mode", b"no keys, loopback only")
# A body is what its Content-Type says, also where it repeats a client's texts.
_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
# A cookie in a request keeps no cache between from storing the answer for others.
_NOT_STORED = (b"cache-control", b"no-store")
_USABLE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
# Clients may invent methods, and labels must stay few.
_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"})
log = structlog.get_logger(__name__)


def usable_request_id(sent: str | None) -> str:
    usable = sent is not None and _USABLE_ID.fullmatch(sent) is not None and not looks_like_key(sent)
    return sent if sent is not None and usable else secrets.token_hex(12)


class RequestContext:
    """Gives each request an id (`scope["request_id"]`, X-Request-Id), logs it as one event, counts and traces it.

    Every answer has `scope["answer_headers"]`: the id, and Development-Mode in development mode. An answer without
    Cache-Control is not to be stored. HEAD is answered as GET, by status and headers alone: an event stream ends with
    them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _canonical(scope)
        sent = _header(scope, b"x-request-id")
        request_id = scope["request_id"] = usable_request_id(sent or None)
        added = scope["answer_headers"] = [(b"x-request-id", request_id.encode()), _NO_SNIFFING]
        if gateway_in(scope)["access"].development:
            added.append(_DEVELOPMENT)
        tracer = gateway_in(scope)["tracer"]
        span = None
        if tracer is not None:
            span = RequestSpan.begun(tracer, _header(scope, b"traceparent"), scope["scheme"], scope["path"])
            scope["record_acceptance"] = span.record_acceptance
        began_s = time.perf_counter()
        status, streamed = 500, False
        # Uvicorn reads HEAD in its own scope and leaves out the body.
        head = scope["method"] == "HEAD"
        inner: Scope = {**scope, "method": "GET"} if head else scope

        async def send_identified(message: Message) -> None:
            nonlocal status, streamed
            if message["type"] == "http.response.start":
                status = message["status"]
                stored = any(name == b"cache-control" for name, _ in message["headers"])
                message["headers"] = [*message["headers"], *added, *(() if stored else (_NOT_STORED,))]
                streamed = _is_stream(message)
            elif head and streamed:
                return
            await send(message)
            if head and streamed:
                # The stream learns from `receive` that its viewer left.
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await self._app(inner, receive, send_identified)
        finally:
            taken_s = time.perf_counter() - began_s
            route = getattr(inner.get("route"), "path", "unmatched")
            caller: Caller = inner.get("caller", ANONYMOUS)
            known = {"tenant": caller.tenant, "key_id": caller.key_id} if caller.authenticated else {}
            # Probes request it every few seconds.
            log.log(
                logging.DEBUG if route == "/healthz" else logging.INFO,
                "request",
                request_id=request_id,
                method=scope["method"],
                route=route,
                status=status,
                duration_ms=round(taken_s * 1_000, 2),
                **known,
            )
            method = scope["method"] if scope["method"] in _METHODS else "other"
            _count(gateway_in(scope)["metrics"], method, route, status, None if streamed else taken_s)
            if span is not None:
                span.end(method, route, status, request_id, known.get("tenant"))


_SLASHES = re.compile(r"//+")


def _canonical(scope: Scope) -> Scope:
    """The scope with a path without doubled slashes and without one at its end, which clients add by their base URLs.

    A redirect would cost clients their body or their key.
    """
    path: str = scope["path"]
    if "//" not in path and (not path.endswith("/") or path == "/"):
        return scope
    raw: bytes = scope.get("raw_path") or path.encode()
    whole = _SLASHES.sub("/", path).rstrip("/") or "/"
    return {
        **scope,
        "path": whole,
        "raw_path": (_SLASHES.sub("/", raw.decode("latin-1")).rstrip("/") or "/").encode("latin-1"),
    }


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value for name, value in scope["headers"] if name == wanted), b"").decode("latin-1")


def _count(metrics: Metrics, method: str, route: str, status: int, taken_s: float | None) -> None:
    metrics.requests.labels(method, route, str(status)).inc()
    if taken_s is not None:
        metrics.request_seconds.labels(method, route).observe(taken_s)


_CREDENTIALS = frozenset({"access_token", "api-key", "api_key", "apikey", "authorization", "key", "token", "x-api-key"})


def key_in_url(scope: Scope) -> KeyInUrl | None:
    """The refusal of a URL that contains a credential, recognized by its form or by its parameter's name."""
    query: bytes = scope["query_string"]
    if looks_like_key(scope["path"]):
        return KeyInUrl("")
    if not query:
        return None
    text = query.decode("latin-1")
    for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=None):
        if name.lower() in _CREDENTIALS or looks_like_key(value):
            return KeyInUrl("a parameter" if looks_like_key(name) else name)
    return KeyInUrl("a parameter") if looks_like_key(unquote(text)) else None


class RequestGuard:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        access = gateway_in(scope)["access"]
        refusal: Refusal | None = key_in_url(scope) or (None if access.knows_host(scope) else ForeignHost())
        if refusal is not None:
            # Without the path, because the answer must not repeat a credential in it.
            request = Request({**scope, "path": "/", "raw_path": b"/"})
            await error_response(request, refusal)(scope, receive, send)
        elif access.keyring is None:
            await self._app(scope, receive, send)
        else:
            await _guard_stream(self._app, scope, receive, send, access, access.keyring)


def _is_stream(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])


async def _guard_stream(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, access: Access, keyring: Keyring
) -> None:
    """Answer; end an event stream when its key is revoked or its credential expires."""
    open_stream = False
    with anyio.CancelScope() as stream, ExitStack() as exits:

        async def send_guarded(message: Message) -> None:
            nonlocal open_stream
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *scope.get("rate_headers", ())]
                caller: Caller = scope.get("caller", ANONYMOUS)
                if caller.valid_until_s is not None and _is_stream(message):
                    open_stream = True
                    exits.callback(keyring.attach(caller.key_id, stream.cancel))
                    if caller.valid_until_s != inf:
                        stream.deadline = anyio.current_time() + caller.valid_until_s - access.now_s()
            elif not message.get("more_body", False):
                open_stream = False
            await send(message)

        await app(scope, receive, send_guarded)
    if stream.cancelled_caught and open_stream:
        # A regular end of the body: a client that reconnects gets the reason.
        await send({"type": "http.response.body", "body": b"", "more_body": False})
