"""The id, log event and metrics of every request. Pure ASGI, so that streams pass unchanged."""

import logging
import re
import secrets
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.authorization import ANONYMOUS
from app.access.keys import Caller, looks_like_key
from app.observability.metrics import Metrics
from app.routes.dependencies import gateway_in

_DEVELOPMENT = (b"development-mode", b"no keys, loopback only")
_USABLE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
log = structlog.get_logger(__name__)


def usable_request_id(given: str | None) -> str:
    """The client's own id if it is short, plain and no API key; otherwise a new one."""
    usable = given is not None and _USABLE_ID.fullmatch(given) is not None and not looks_like_key(given)
    return given if given is not None and usable else secrets.token_hex(12)


class RequestContext:
    """Gives each request an id (`scope["request_id"]`, X-Request-Id), logs it as one event, and counts it.

    Every answer has `scope["answer_headers"]`: the id, and Development-Mode in development mode.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        request_id = scope["request_id"] = usable_request_id(given or None)
        added = scope["answer_headers"] = [(b"x-request-id", request_id.encode())]
        if gateway_in(scope)["access"].development:
            added.append(_DEVELOPMENT)
        began_s = time.perf_counter()
        status, streamed = 500, False

        async def send_identified(message: Message) -> None:
            nonlocal status, streamed
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *added]
                streamed = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            await send(message)

        try:
            await self._app(scope, receive, send_identified)
        finally:
            taken_s = time.perf_counter() - began_s
            route = getattr(scope.get("route"), "path", "unmatched")
            caller: Caller = scope.get("caller", ANONYMOUS)
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
            _count(gateway_in(scope)["metrics"], scope["method"], route, status, None if streamed else taken_s)


def _count(metrics: Metrics, method: str, route: str, status: int, taken_s: float | None) -> None:
    # Clients may invent methods, and labels must stay few.
    method = method if method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH") else "other"
    metrics.requests.labels(method, route, str(status)).inc()
    if taken_s is not None:
        metrics.request_seconds.labels(method, route).observe(taken_s)
