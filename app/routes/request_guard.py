"""What is settled before a request reaches a route, and what its answer takes along. Pure ASGI.

Credentials in URLs are refused on every path, and other sites' names where no keys are asked for. Answers tell the
tenant's rate. An event stream ends when the credential that opened it does.
"""

from contextlib import ExitStack
from math import inf
from urllib.parse import parse_qsl, unquote

import anyio
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.authorization import Access
from app.access.keyring import Keyring
from app.access.keys import looks_like_key
from app.access.origins import own_name
from app.api.problems import error_response
from app.api.refusals import ForeignHost, KeyInUrl, Refusal
from app.routes.dependencies import gateway_in

_CREDENTIALS = frozenset({"access_token", "api-key", "api_key", "apikey", "authorization", "key", "token", "x-api-key"})


def key_in_url(scope: Scope) -> KeyInUrl | None:
    """The refusal of a URL in which a credential stands: by its look, or as a parameter of such a name."""
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


def foreign_host(scope: Scope) -> ForeignHost | None:
    """The refusal of a request under a name that another site may have pointed to this machine."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
    if own_name(host):
        return None
    remedy = "Ask as localhost, or set KEY_PEPPER and ask with a key."
    return ForeignHost("Without keys this gateway answers under this machine's own names alone.", remedy)


class RequestGuard:
    """Refuses what no route should see, and watches over streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        access = gateway_in(scope)["access"]
        refusal: Refusal | None = key_in_url(scope) or (foreign_host(scope) if access.development else None)
        if refusal is not None:
            # The answer must not tell the path again, as the credential may stand there.
            await error_response(Request({**scope, "path": "/", "raw_path": b"/"}), refusal)(scope, receive, send)
        elif access.keyring is None:
            await self._app(scope, receive, send)
        else:
            await _keyed(self._app, scope, receive, send, access, access.keyring)


def _streams(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])


async def _keyed(app: ASGIApp, scope: Scope, receive: Receive, send: Send, access: Access, keyring: Keyring) -> None:
    """Answer; an event stream is broken off when its key is revoked or its credential's time is over."""
    open_stream = False
    with anyio.CancelScope() as stream, ExitStack() as leaving:

        async def send_watched(message: Message) -> None:
            nonlocal open_stream
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *scope.get("rate_headers", ())]
                if "caller_until_s" in scope and _streams(message):
                    open_stream = True
                    leaving.callback(keyring.attach(scope["caller"].key_id, stream.cancel))
                    if scope["caller_until_s"] != inf:
                        stream.deadline = anyio.current_time() + scope["caller_until_s"] - access.now_s()
            elif not message.get("more_body", False):
                open_stream = False
            await send(message)

        await app(scope, receive, send_watched)
    if stream.cancelled_caught and open_stream:
        # An end in order: a client that comes back is told why it may not.
        await send({"type": "http.response.body", "body": b"", "more_body": False})
