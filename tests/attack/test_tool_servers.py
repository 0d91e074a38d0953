"""A tool server that lies ends its own use, in time, and nothing else: the agents' loop goes on meanwhile."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.bounded_child import NICENESS, ChildExceeded, ChildLimits, run_child
from app.deliberation.tools import McpServer
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import AT_ONCE
from serve_deployments.node_directory.sweep import SLOT
from serve_deployments.tools.bounded_transport import COOKIES_BYTES_MAX, SENT_MAX
from serve_deployments.tools.mcp_client import CHECKED_WITHIN_S, offered_schema
from serve_deployments.tools.servers import SILENT_USES_MAX, ToolServer
from serve_deployments.tools.toolbox import ToolFailure
from tests.attack import evil_tool_server
from tests.attack.evil_http_server import EvilHttpServer
from tests.attack.pauses import PAUSE_S_MAX, paused
from tests.conditions import until

WITHIN_S = 10.0


@asynccontextmanager
async def server(lie: str, node: NodeDirectory | None = None) -> AsyncGenerator[ToolServer]:
    command = (sys.executable, "-m", "tests.attack.evil_tool_server", lie)
    serving = ToolServer(McpServer(name="evil", command=command), node)
    try:
        for _ in range(20):
            try:
                await serving.tools()
                break
            except ToolFailure:
                continue
        yield serving
    finally:
        await serving.close()


async def use(lie: str) -> str:
    """The text of a use, or its failure; it ends in time, and the loop goes on meanwhile."""
    async with server(lie) as serving, paused() as pauses:
        began_s = time.monotonic()
        try:
            text = (await serving.use("look_up", {}, WITHIN_S)).text
        except ToolFailure as failure:
            text = f"{failure.code}: {failure.detail}"
        assert time.monotonic() - began_s < WITHIN_S + 2.0
        assert pauses.longest_s < PAUSE_S_MAX, pauses.longest_s
        return text


async def test_checks_of_one_tenants_results_leave_half_of_the_nodes_turns_to_others(tmp_path: Path) -> None:
    node = NodeDirectory(tmp_path / "node")

    async def seconds(serving: ToolServer) -> float:
        began_s = time.monotonic()
        assert (await serving.use("look_up", {}, WITHIN_S, "globex")).text == "the result"
        return time.monotonic() - began_s

    # Two servers, as those of two replicas.
    async with server("pattern", node) as evil, server("fits", node) as good:
        alone_s = max([await seconds(good) for _ in range(3)])
        uses = [asyncio.create_task(evil.use("look_up", {}, WITHIN_S, "acme")) for _ in range(4 * AT_ONCE)]
        await until(lambda: sum(name.startswith(SLOT) for name in os.listdir(node.path)) > AT_ONCE)
        beside_s = max([await seconds(good) for _ in range(3)])
        for use in uses:
            use.cancel()
        await asyncio.gather(*uses, return_exceptions=True)
    assert beside_s <= 1.5 * alone_s + 1.0


@pytest.mark.parametrize("lie", ["pattern", "nested"])
async def test_a_schema_that_takes_for_ever_ends_with_its_check(lie: str) -> None:
    assert f"took longer than {CHECKED_WITHIN_S:.3g} s" in await use(lie)


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("fits", "the result"),
        ("fits not", "refused: the result does not fit the tool's outputSchema: 'aaa"),
        ("no schema", "refused: the tool's outputSchema is no JSON Schema: "),
        ("nowhere", "refused: the tool's outputSchema has a reference that leads nowhere"),
        ("itself", "refused: the result cannot be checked against the tool's outputSchema"),
    ],
)
async def test_a_result_is_checked_against_the_schema_of_its_tool(lie: str, told: str) -> None:
    assert (await use(lie)).startswith(told)


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("asks", "more than 500 messages within 5 s"),
        ("tells", "more than 500 messages within 5 s"),
        ("parts", "more than 20,000 values in one message"),
        ("structure", "more than 20,000 values in one message"),
        ("values", "more than 400,000 values within 5 s"),
        ("lines", "more than 500 messages within 5 s"),
        ("errors", "more than 67,108,864 bytes within 5 s"),
    ],
    ids=["asks", "tells", "parts", "structure", "values", "lines", "errors"],
)
async def test_a_server_that_sends_too_many_is_cut_off(lie: str, told: str) -> None:
    assert await use(lie) == f"too_large: the server sent {told}"


@asynccontextmanager
async def served(lie: str) -> AsyncGenerator[tuple[EvilHttpServer, ToolServer]]:
    """A tool server over HTTP, and the connection to it."""
    async with EvilHttpServer(lie).serving() as evil:
        serving = ToolServer(McpServer(name="evil", url=evil.url))
        try:
            await serving.tools()
            yield evil, serving
        finally:
            await serving.close()


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("pieces", "more than 1,000 pieces of responses within 5 s"),
        ("comments", "more than 500 messages within 5 s"),
        ("bytes", "more than 500 messages within 5 s"),
    ],
    ids=["pieces", "comments", "bytes"],
)
async def test_a_response_without_an_end_is_cut_off(lie: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take longer than the bound's time for more of them.
    monkeypatch.setitem(SENT_MAX, "pieces of responses", 1_000)
    async with served(lie) as (_, serving):
        with pytest.raises(ToolFailure) as raised:
            await serving.use("look_up", {}, WITHIN_S)
    assert (raised.value.code, raised.value.detail) == ("too_large", f"the server sent {told}")


async def test_a_stream_that_ends_at_once_is_not_opened_for_ever() -> None:
    async with served("ends") as (evil, serving):
        await until(lambda: serving.away_since is not None)
        assert "more than 500 messages within 5 s" in serving.why and evil.asked["GET"] <= SENT_MAX["messages"]


async def test_the_response_to_a_use_that_is_given_up_is_read_no_further() -> None:
    async with served("hangs") as (evil, serving):
        with pytest.raises(ToolFailure, match="no result within"):
            await serving.use("look_up", {}, 0.2)
        await until(lambda: evil.abandoned == 1)
        assert serving.described()["connected"], "other uses go on"
        await until(lambda: evil.asked["notifications/cancelled"] == 1)


async def test_a_server_has_few_cookies_kept() -> None:
    async with served("cookies") as (evil, serving):
        for _ in range(3):
            assert (await serving.use("look_up", {}, WITHIN_S)).text == "the result"
    assert evil.cookie_bytes <= COOKIES_BYTES_MAX


async def test_a_server_that_was_cut_off_sends_no_more_on_its_next_connection() -> None:
    async with server("asks") as serving:
        with pytest.raises(ToolFailure, match="more than 500 messages within 5 s"):
            await serving.use("look_up", {}, WITHIN_S)
        await until(lambda: serving.away_since is not None)
        with pytest.raises(ToolFailure) as raised:
            await serving.use("look_up", {}, WITHIN_S)
    assert raised.value.code == "server_away", "not even its handshake was read"


async def test_a_process_that_a_server_leaves_behind_keeps_no_connection_open() -> None:
    async with server("leaves") as serving:
        for _ in range(SILENT_USES_MAX):
            with pytest.raises(ToolFailure):
                await serving.use("look_up", {}, 0.2)
        await serving.tools()
        async with asyncio.timeout(evil_tool_server.LEFT_S / 2):
            await serving.close()


async def test_a_process_that_a_bounded_child_leaves_behind_keeps_nobody_waiting() -> None:
    limits = ChildLimits(memory_bytes=1 << 30, file_bytes=1 << 20)
    async with asyncio.timeout(evil_tool_server.LEFT_S / 2):
        with pytest.raises(ChildExceeded, match="took longer than"):
            command = ("/bin/sh", "-c", f"setsid sleep {evil_tool_server.LEFT_S} &")
            await run_child(command, limits=limits, within_s=0.5, environment=os.environ)


def servers() -> set[int]:
    """The processes of tool servers that this one started."""
    children = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return {pid for pid in children if b"evil_tool_server" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def test_a_use_ends_in_its_time_where_the_server_reads_nothing() -> None:
    async with server("deaf") as serving:
        began_s = time.monotonic()
        with pytest.raises(ToolFailure, match="no result within 1 s"):
            await serving.use("look_up", {"more than a pipe takes": "x" * 300_000}, 1.0)
        assert time.monotonic() - began_s < 2.0


async def test_a_server_yields_cpu_time_to_its_replica() -> None:
    async with server("fits") as serving:
        assert (await serving.use("look_up", {}, WITHIN_S)).text == "the result"
        niceness = {os.getpriority(os.PRIO_PROCESS, pid) for pid in servers()}
    assert niceness == {min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19)}


@pytest.mark.parametrize(
    "lie",
    [*sorted(set(evil_tool_server.RESULTS) - {"parts", "structure"}), *evil_tool_server.INPUT_SCHEMAS, "names", "deep"],
)
async def test_a_lie_in_any_field_is_at_most_the_failure_of_its_use(lie: str) -> None:
    assert await use(lie)


@pytest.mark.parametrize("schema", evil_tool_server.INPUT_SCHEMAS.values(), ids=evil_tool_server.INPUT_SCHEMAS)
def test_an_offered_schema_is_an_object_with_properties(schema: dict[str, object]) -> None:
    offered = offered_schema(schema)
    assert offered["type"] == "object" and isinstance(offered["properties"], dict)
