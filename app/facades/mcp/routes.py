"""Route: MCP over streamable HTTP, without sessions: any gateway answers any request.

A client of 2026-07-28 cancels by closing its request. Earlier ones send a notification, to whichever gateway: the id of
a deliberation that they start follows from tenant, `Mcp-Session-Id` and JSON-RPC id, so that the notification finds it.
"""

import asyncio
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from app.api.request_body import json_body, parsed_body
from app.facades.mcp.rest import ABANDONED, PATH, SESSION, in_process, path_of, submission_key
from app.lifecycle.specify import keyed_id
from app.routes.dependencies import OfTenant, api_router

router = api_router("mcp")


class JsonRpcMessage(BaseModel, frozen=True, extra="allow", hide_input_in_errors=True):
    """A request or a notification; the protocol's server checks the rest."""

    method: str | None = None
    params: dict[str, Any] | None = None


def _exchange(content: bytes, initializes: bool) -> Response:
    from app.facades.mcp.exchange import McpExchange

    return McpExchange(content, initializes=initializes)


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
    # The first message imports the package.
    return await asyncio.to_thread(_exchange, content, message.method == "initialize")
