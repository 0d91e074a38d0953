"""One message of streamable HTTP, and its answer. The module imports `mcp`, which takes a second: in a thread."""

import secrets
from typing import cast

from fastapi import Request, Response
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import Message, Receive, Scope, Send

from app.facades.mcp.rest import SESSION, AskRoute, in_process, submission_key
from app.facades.mcp.server import mcp_server
from app.facades.mcp.tools import McpContext


def _ask_of(context: McpContext) -> AskRoute:
    request = cast("Request", context.request)
    session = request.headers.get(SESSION)
    if session is None or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return in_process(request)
    return in_process(request, submission_key(session, context.request_id))


_SERVER = mcp_server(_ask_of)


class McpExchange(Response):
    """The answer to one message. The answer to `initialize` names a session, which nothing stores."""

    def __init__(self, content: bytes, *, initializes: bool) -> None:
        super().__init__()
        self._content = content
        self._initializes = initializes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unread = [self._content]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def named(message: Message) -> None:
            if self._initializes and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (SESSION.encode(), secrets.token_hex(16).encode())]
            await send(message)

        manager = StreamableHTTPSessionManager(_SERVER, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, replay, named)
