"""What tool servers of public reports send, and how their commands end."""

import json
import sys
from contextlib import nullcontext

import mcp_types
import pytest
from mcp_types.methods import validate_server_result
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from app.deliberation.tools import McpServer
from serve_deployments.tools.bounded_transport import SentBound
from serve_deployments.tools.mcp_client import connection
from serve_deployments.tools.servers import START_WITHIN_S
from serve_deployments.tools.tolerance import mended_result
from serve_deployments.tools.toolbox import ToolFailure
from tests.reported_inputs import REPORTED, reported

SERVER = """
import json, sys
results = json.loads(sys.argv[1])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = results.get(asked["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.parametrize("name", reported("one bad entry"))
async def test_one_bad_entry_costs_no_other(name: str) -> None:
    report = REPORTED[name]["input"]
    began = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    }
    results = {
        "initialize": began,
        "tools/list": report["answer_to_tools_list"],
        "tools/call": report["answer_to_tools_call"],
    }
    spec = McpServer(name="s", command=(sys.executable, "-c", SERVER, json.dumps(results)))
    async with connection(spec, 30, SentBound()) as connected:
        assert [tool.name for tool in connected.tools] == REPORTED[name]["expected"]
        (used,) = report["tool_calls"]
        result = await connected.use(used["name"], used["arguments"], nullcontext())
    assert (result.text, result.failed) == ("fine", False)


def schema(**fields: object) -> dict[str, object]:
    return {"name": "x", "inputSchema": {"type": "object", **fields}}


@pytest.mark.parametrize(
    "entry",
    [
        *(None, 7, {}, {"name": 5, "inputSchema": {"type": "object"}}, {"name": "x"}),
        *(schema(properties=5), schema(properties={"a": 5}), schema(required="a"), {**schema(), "outputSchema": 5}),
    ],
)
def test_what_is_no_tool_is_left_out(entry: object) -> None:
    good = {"name": "good", "inputSchema": {"type": "object"}}
    listed = mended_result("tools/list", {"tools": [entry, good], "nextCursor": None})
    assert [tool.name for tool in mcp_types.ListToolsResult.model_validate(listed, by_name=False).tools] == ["good"]
    validate_server_result("tools/list", LATEST_HANDSHAKE_VERSION, listed)


@pytest.mark.parametrize("name", reported("the cause of an end"))
async def test_a_command_that_ends_names_its_cause(name: str) -> None:
    script = REPORTED[name]["input"]["fails.sh"]
    with pytest.raises(ToolFailure) as failure:
        async with connection(McpServer(name="s", command=("sh", "-c", script)), 30, SentBound()):
            pass
    assert all(part in failure.value.detail for part in REPORTED[name]["expected"]), failure.value.detail


def test_a_command_has_a_minute_to_start() -> None:
    (name,) = reported("slow starts")
    assert "time.sleep(15)" in REPORTED[name]["input"]["slow.py"] and START_WITHIN_S == 60
