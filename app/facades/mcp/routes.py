"""Route: MCP over streamable HTTP, without sessions: any gateway answers any request.

A client of 2026-07-28 cancels by closing its request. Earlier clients send a notification, to whichever gateway. The id
of their deliberation follows from tenant, `Mcp-Session-Id` and JSON-RPC id, so that the notification finds it.
"""

import secrets
from typing import Any, cast

from fastapi import Request, Response
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from app.api.request_body import json_body, parsed_body
from app.facades.mcp.rest import ABANDONED, PATH, SESSION, AskRoute, in_process, path_of, submission_key
from app.facades.mcp.server import mcp_server
from app.facades.mcp.tools import McpContext
from app.lifecycle.specify import keyed_id
from app.routes.dependencies import OfTenant, api_router

router = api_router("mcp")


def _ask_of(context: McpContext) -> AskRoute:
    request = cast("Request", context.request)
    session = request.headers.get(SESSION)
    if session is None or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return in_process(request)
    return in_process(request, submission_key(session, context.request_id))


_SERVER = mcp_server(_ask_of)


class JsonRpcMessage(BaseModel, frozen=True, extra="allow", hide_input_in_errors=True):
    """A request or a notification; the protocol's server checks the rest."""

    method: str | None = None
    params: dict[str, Any] | None = None


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


@router.post(PATH, include_in_schema=False)
async def call_mcp(request: Request, tenant: OfTenant) -> Response:
    """A JSON-RPC message of MCP."""
    content = await json_body(request)
    message = parsed_body(content, JsonRpcMessage)
    session = request.headers.get(SESSION)
    if message.method == "notifications/cancelled" and session is not None and message.params:
        key = submission_key(session, message.params.get("requestId"))
        path = path_of(keyed_id(tenant, key), "/cancel")
        await in_process(request)("POST", path, body={"reason": ABANDONED, "by": "disconnect"})
    return McpExchange(content, initializes=message.method == "initialize")
