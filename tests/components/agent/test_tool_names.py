"""Tools of two servers with one name are both offered, and each is used at its own server."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from app.deliberation.calls import Usage
from app.deliberation.specification import ToolAllowance
from app.deliberation.tools import WORKSPACE_LIMITS
from serve_deployments.agent.tool_loop import ToolLoop
from serve_deployments.engine.replies import EngineReply
from serve_deployments.engine.tool_calls import ToolCall, ToolTurn
from serve_deployments.tools.toolbox import GrantedTools, Tool, ToolResult
from tests.fakes import InMemoryJournal
from tests.integration.agent.stage_runs import call, request
from tests.reported_inputs import REPORTED, reported


class Box:
    """A server with these tools, which remembers the names by which they are used."""

    def __init__(self, server: str, names: Sequence[str]) -> None:
        self.server, self.names = server, names
        self.used: list[str] = []

    async def tools(self) -> Sequence[Tool]:
        return [
            Tool(self.server, name, "", {"type": "object", "properties": {}}, repeatable=True) for name in self.names
        ]

    async def use(self, name: str, arguments: Mapping[str, Any], within_s: float) -> ToolResult:
        self.used.append(name)
        return ToolResult(f"{self.server}.{name}", failed=False)

    @property
    def granted(self) -> GrantedTools:
        return GrantedTools(self.server, self, frozenset(self.names), WORKSPACE_LIMITS)


@pytest.mark.parametrize("name", reported("names of two servers"))
async def test_a_tool_server_hides_no_tool_of_the_workspace(name: str) -> None:
    report = REPORTED[name]["input"]
    names = report["role_tools"]["allow"]
    workspace, server = Box("workspace", ["list_files", *names]), Box(report["role_tools"]["mcp"]["name"], names)
    allowance = ToolAllowance(names=("list_files", *names), uses=8, bytes=65_536)
    asked, offered = call(), list[frozenset[str]]()

    async def ask(turn: ToolTurn) -> EngineReply:
        offered.append(turn.names)
        wanted = [*(each["name"] for each in report["tool_calls"]), *(f"{server.server}_{own}" for own in names)]
        calls = (
            tuple(ToolCall(f"c{place}", tool, "{}") for place, tool in enumerate(wanted)) if not turn.outcomes else ()
        )
        return EngineReply("no answer", "stop", Usage(), None, tool_calls=calls)

    boxes = [workspace.granted, server.granted]
    loop = ToolLoop(InMemoryJournal(), request((asked,)), asked, allowance, boxes, lambda: 60.0, lambda use: None)
    await loop.run(ask)
    assert offered[0] == {"list_files", *names, *(f"{server.server}_{own}" for own in names)}
    assert workspace.used == [each["name"] for each in report["tool_calls"]] and server.used == names
