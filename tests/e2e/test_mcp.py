import asyncio
import json
import os
import re
import signal
import tomllib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from app.facades.mcp.rest import ABANDONED
from app.facades.mcp.tasks import TASKS
from tests.components.docs.blocks import Block, blocks
from tests.components.facades.mcp_messages import call, headers_for, message
from tests.e2e.conftest import DELIBERATE, SLOW, TASK, Stack, printed_by

pytestmark = pytest.mark.e2e

TRANSPORTS = ("http", "stdio")
BILLED = ("calls", "prompt_tokens", "completion_tokens")
BODY: dict[str, Any] = {"task": TASK, "num_agents": 2, "seed": 7}


def stdio(stack: Stack) -> StdioServerParameters:
    return StdioServerParameters(command=str(DELIBERATE), args=["mcp", "--url", stack.url])


@asynccontextmanager
async def connected(stack: Stack, transport: str, mode: str = "auto") -> AsyncGenerator[Client, None]:
    server = f"{stack.url}/mcp" if transport == "http" else stdio(stack)
    async with Client(server, mode=mode) as client:
        yield client


def text_of(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_one_seed_gives_the_verdict_of_rest_byte_for_byte(stack: Stack, transport: str, mode: str) -> None:
    rest = (await stack.client.post("/deliberations", json=BODY, headers={"Prefer": "wait=60"})).json()
    async with connected(stack, transport, mode) as client:
        result = await client.call_tool("deliberate", BODY)
    assert not result.is_error, text_of(result)
    given = json.loads(text_of(result))
    assert result.structured_content == given and given["id"] != rest["id"]
    assert given["status"] == rest["status"] == "completed" and rest["verdict"]["content"]
    assert json.dumps(given["verdict"]) == json.dumps(rest["verdict"])
    # An engine's cache is warmer at the second time.
    assert [given["usage"][name] for name in BILLED] == [rest["usage"][name] for name in BILLED]
    read = await stack.client.get(f"/deliberations/{given['id']}", params={"view": "summary"})
    assert text_of(result) == read.text


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_progress_follows_the_stages(stack: Stack, transport: str) -> None:
    reported: list[tuple[float, str]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, message or ""))

    await stack.script(**SLOW)
    async with connected(stack, transport) as client:
        result = await client.call_tool("deliberate", BODY, progress_callback=report)
    assert not result.is_error
    numbers = [progress for progress, _ in reported]
    assert numbers == sorted(set(numbers))
    stages = {found[1] for _, said in reported if (found := re.match(r"stage (\d+),", said))}
    assert stages >= {"1", "2", "3", "4"}, reported


@pytest.mark.parametrize(("transport", "mode"), [("http", "auto"), ("http", "legacy"), ("stdio", "auto")])
async def test_a_cancelled_call_cancels_the_deliberation(stack: Stack, transport: str, mode: str) -> None:
    await stack.script(**{**SLOW, "duration_ms": 20_000})
    started = asyncio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        if message is not None and message.startswith("stage 1"):
            started.set()

    async with connected(stack, transport, mode) as client:
        calling = asyncio.create_task(client.call_tool("deliberate", BODY, progress_callback=report))
        await asyncio.wait_for(started.wait(), 30)
        calling.cancel()
        listed = await stack.client.get("/deliberations", params={"limit": 1, "after": "now"})
        (newest,) = listed.json()["items"]
        found = await stack.until(newest["id"], status="cancelled")
    assert found["cancellation"]["reason"] == ABANDONED


async def test_resources_and_prompts_are_read_over_stdio(stack: Stack) -> None:
    id = await stack.submit(num_agents=1, strategy="single")
    await stack.until(id, status="completed")
    await stack.client.get("/deliberations", params={"after": "now"})
    async with connected(stack, "stdio") as client:
        assert f"deliberation://{id}/verdict" in [each.uri for each in (await client.list_resources()).resources]
        (read,) = (await client.read_resource(f"deliberation://{id}/transcript")).contents
        assert "council" in [each.name for each in (await client.list_prompts()).prompts]
    assert json.loads(read.text)["proposals"][0]["content"]  # pyright: ignore[reportAttributeAccessIssue] -- of text


async def test_stdio_without_a_gateway_says_so() -> None:
    async with Client(
        StdioServerParameters(command=str(DELIBERATE), args=["mcp", "--url", "http://127.0.0.1:9"])
    ) as client:
        refused = await client.call_tool("list_strategies")
    assert refused.is_error and "no gateway answers at http://127.0.0.1:9" in text_of(refused)


async def rpc(stack: Stack, sent: dict[str, Any]) -> dict[str, Any]:
    answered = await stack.client.post("/mcp", json=sent, headers=headers_for(sent))
    assert answered.status_code == 200, answered.text
    return answered.json()["result"]


async def test_a_task_survives_the_kill_of_the_gateway(stack: Stack) -> None:
    await stack.script(**SLOW)
    created = await rpc(stack, message("tools/call", call("deliberate", **BODY), extensions={TASKS: {}}))
    assert (created["resultType"], created["status"]) == ("task", "working")
    os.kill(stack.child("gateway")["pid"], signal.SIGKILL)
    await stack.until_ready()
    get = message("tasks/get", {"taskId": created["taskId"]}, extensions={TASKS: {}})
    async with asyncio.timeout(60):
        while (task := await rpc(stack, get))["status"] == "working":
            await asyncio.sleep(task["pollIntervalMs"] / 1_000)
    assert task["status"] == "completed" and task["result"]["structuredContent"]["verdict"]["winner"]
    ends = [record for record in await stack.journal.facts("default", task["taskId"]) if record.tokens[-1] == "end"]
    assert len(ends) == 1


def configurations() -> list[Block]:
    return [block for block in blocks() if block.page == "docs/connect.md" and block.language in ("json", "toml")]


def server_in(block: Block) -> dict[str, Any]:
    document = json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)
    servers: list[dict[str, Any]] = [value for value in document.values() if isinstance(value, dict)]
    (server,) = servers[0].values()
    return server


@pytest.mark.parametrize("block", configurations(), ids=str)
async def test_each_documented_configuration_reaches_the_gateway(stack: Stack, block: Block, tmp_path: Path) -> None:
    server = server_in(block)
    address = next((server[name] for name in ("url", "serverUrl", "httpUrl") if name in server), None)
    if address is None:
        arguments = [each.replace("http://127.0.0.1:8080", stack.url) for each in server["args"]]
        assert server["command"] == "deliberate" and stack.url in arguments
        made: Any = StdioServerParameters(command=str(DELIBERATE), args=arguments, env=server["env"])
    else:
        assert address == "http://127.0.0.1:8080/mcp"
        http = httpx2.AsyncClient(headers=server.get("headers"))
        made = streamable_http_client(f"{stack.url}/mcp", http_client=http)
    async with Client(made) as client:
        assert "deliberate" in [tool.name for tool in (await client.list_tools()).tools]
        assert not (await client.call_tool("list_strategies")).is_error


async def test_the_documented_program_prints_the_verdict(stack: Stack, tmp_path: Path) -> None:
    assert (await printed_by("docs/mcp.md", stack, tmp_path)).strip()
