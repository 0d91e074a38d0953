"""`deliberate mcp`: the MCP façade over stdin and stdout, for assistants that start their servers."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.cli.client import GatewayClient, JsonObject, not_a_gateway
from app.cli.exits import CommandError, Exit
from app.cli.target import on_gateway

if TYPE_CHECKING:
    from app.facades.mcp.rest import AskRoute


def over_http(gateway: GatewayClient) -> "AskRoute":
    """Asks the routes of a gateway over HTTP; one that cannot be reached answers 503."""
    from app.facades.mcp.rest import RouteAnswer

    async def ask(
        method: str,
        path: str,
        body: JsonObject | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_s: int = 0,
    ) -> RouteAnswer:
        try:
            response = await gateway.answer(method, path, body=body, headers=headers, wait_s=wait_s)
        except CommandError as error:
            return RouteAnswer(503, {}, json.dumps(error.document()).encode())
        if response.content and not response.headers.get("Content-Type", "").endswith("json"):
            return RouteAnswer(503, {}, json.dumps(not_a_gateway(gateway.url, path).document()).encode())
        return RouteAnswer(response.status_code, response.headers, response.content)

    return ask


@on_gateway
async def mcp(gateway: GatewayClient, *, as_json: bool) -> Exit:
    """Serve MCP on stdin and stdout: councils as tools of an assistant (docs/mcp.md). The command ends with stdin."""
    # Imported here: the package takes longer than all other commands.
    from mcp.server.stdio import stdio_server

    from app.facades.mcp.server import mcp_server

    ask = over_http(gateway)
    server = mcp_server(lambda _: ask)
    async with stdio_server() as (messages, answers):
        await server.run(messages, answers, server.create_initialization_options())
    return Exit.SUCCESS
