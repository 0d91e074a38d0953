"""Servers of others: sessions that end, older transports, keys that change, names, results and lists of many forms."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.deliberation.specification import ToolAllowance
from app.deliberation.tools import McpServer, RoleTools, ToolLimits
from app.tenant_slots import TenantSlots
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.tools import mcp_client
from serve_deployments.tools.servers import ToolServer, ToolServers
from serve_deployments.tools.toolbox import Tool, ToolFailure
from tests.conditions import until
from tests.conftest import free_port
from tests.integration.tools.mcp_servers import serving, uses
from tests.integration.tools.tool_calls import call

pytestmark = pytest.mark.usefixtures("patient_replicas")


@asynccontextmanager
async def connected(**declared: Any) -> AsyncGenerator[ToolServer]:
    server = ToolServer(McpServer(name="books", **declared))
    try:
        await server.tools()
        yield server
    finally:
        await server.close()


def old(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.integration.tools.old_server", "stdio", str(folder)]


async def used(server: ToolServer, name: str, **arguments: Any) -> str:
    result = await server.use(name, arguments, 10)
    assert not result.failed
    return result.text


def named(tools: Sequence[Tool]) -> Mapping[str, Tool]:
    return {tool.name: tool for tool in tools}


# --- connections -----------------------------------------------------------------------------------------------------


async def test_a_session_that_its_server_forgot_is_made_anew_and_the_use_is_made_once(tmp_path: Path) -> None:
    async with serving("old", tmp_path, free_port()) as url, connected(url=url) as server:
        assert await used(server, "write", text="a") == "write is done"
        (tmp_path / "forget").touch()
        assert await used(server, "write", text="b") == "write is done", "it must not be repeated, and was not made"
    assert uses(tmp_path) == ['write {"text": "a"}', 'write {"text": "b"}']


async def test_an_error_of_the_server_at_one_use_ends_no_other_use(tmp_path: Path) -> None:
    async with serving("old", tmp_path, free_port()) as url, connected(url=url) as server:
        before = server._connected  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(ToolFailure, match="HTTP 503") as failed:
            await server.use("asks", {"status": 503}, 10)
        assert failed.value.code == "refused" and server._connected is before  # pyright: ignore[reportPrivateUsage]
    assert uses(tmp_path) == [], "it may have been made, and is not made again on another connection"


async def test_a_key_that_changed_is_read_again(tmp_path: Path) -> None:
    headers, key = tmp_path / "headers", tmp_path / "key"
    for each, text in ((key, "Bearer first-key"), (headers, "Authorization: Bearer first-key\n")):
        each.write_text(text)
    async with serving("old", tmp_path, free_port()) as url, connected(url=url, headers_file=str(headers)) as server:
        await used(server, "write")
        key.write_text("Bearer second-key")
        with pytest.raises(ToolFailure, match="HTTP 401") as refused:
            await server.use("write", {}, 10)
        assert refused.value.code == "server_away"
        headers.write_text("Authorization: Bearer second-key\n")
        await until(lambda: server.away_since is None and bool(server.tool_names), timeout_s=20)
        await used(server, "write")
    assert len(uses(tmp_path)) == 2


async def test_a_command_that_ended_between_two_uses_is_started_again(tmp_path: Path) -> None:
    async with connected(command=tuple(old(tmp_path))) as server:
        pid = (tmp_path / "pid").read_text()
        os.kill(int(pid), signal.SIGKILL)
        await until(lambda: (tmp_path / "pid").read_text() not in (pid, "") and bool(server.tool_names))
        assert await used(server, "write") == "write is done"


async def test_a_server_of_the_older_transport_alone_is_used(tmp_path: Path) -> None:
    async with serving("shelf", tmp_path, free_port(), "sse") as url, connected(url=url) as server:
        assert await used(server, "look_up", word="life") == "life is forty-two"


FAILS = "import os, sys; sys.exit(f'Error: {os.environ.get(\"TOKEN\")} is refused\\nbye')"


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"command": (sys.executable, "-c", FAILS)}, r"ended with status 1: Error: \[secret\] is refused"),
        ({"command": ("/bin/false",)}, "the command ended with status 1$"),
        ({"command": ("/nowhere/server",)}, "No such file"),
        ({"url": "{url}/nothing"}, "404"),
    ],
    ids=["an error", "no word", "no program", "another path"],
)
async def test_a_server_that_cannot_be_used_says_why_without_secrets(
    tmp_path: Path, declared: dict[str, Any], why: str
) -> None:
    (tmp_path / "env").write_text("TOKEN=secret-of-the-server\n")
    async with serving("shelf", tmp_path, free_port()) as url:
        if "command" in declared:
            spec = McpServer(name="books", env_file=str(tmp_path / "env"), **declared)
        else:
            spec = McpServer(name="books", url=declared["url"].format(url=url))
        server = ToolServer(spec)
        with pytest.raises(ToolFailure, match=why):
            await server.tools()
        await server.close()


async def test_a_tool_that_breaks_the_protocol_costs_no_other_of_its_list(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    server = ToolServer(McpServer(name="books", command=tuple(old(tmp_path))))
    whole = ToolServer(McpServer(name="books", command=tuple(old(tmp_path / "whole"))))
    (tmp_path / "whole").mkdir()
    assert [tool.name for tool in await server.tools()] == [tool.name for tool in await whole.tools()]
    await server.close()
    await whole.close()


# --- tools and results -----------------------------------------------------------------------------------------------


async def test_a_name_that_engines_do_not_take_is_mapped_to_one_that_they_take(tmp_path: Path) -> None:
    tools = RoleTools(mcp=McpServer(name="books", command=tuple(old(tmp_path))), allow=("files.read",))
    assert tools.allow == ("files_read",)
    async with connected(command=tuple(old(tmp_path))) as server:
        tool = named(await server.tools())["files_read"]
        assert tool.input_schema == {"type": "object", "properties": {"path": {}}}, "no alternatives at its top"
        assert await used(server, "files_read", path="/a") == "files.read is done"


async def test_links_texts_and_structured_results_are_carried_and_the_rest_is_named(tmp_path: Path) -> None:
    async with connected(command=tuple(old(tmp_path))) as server:
        assert (await used(server, "contents")).splitlines() == [
            "contents is done",
            "[link to book://1: The first page]",
            "[resource book://2]",
            "The second page.",
            "[resource book://3, image/gif: not carried]",
            "[audio, audio/wav: not carried]",
        ]
        assert json.loads(await used(server, "structured")) == {"degrees": 36}


async def test_a_command_gets_the_variables_of_its_file_and_they_are_secrets(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("TOKEN=secret-of-the-server\n")
    async with connected(command=tuple(old(tmp_path)), env_file=str(tmp_path / "env")) as server:
        assert await used(server, "environment") == "TOKEN=[secret] HOME=True"


async def test_requests_of_the_server_are_refused_and_its_use_goes_on(tmp_path: Path) -> None:
    async with connected(command=tuple(old(tmp_path))) as server:
        assert await used(server, "asks") == "refused, refused, refused, answered"


@pytest.mark.parametrize("over_http", [False, True])
async def test_many_notices_before_a_result_are_no_flood(tmp_path: Path, over_http: bool) -> None:
    async with serving("old", tmp_path, free_port()) as url:
        declared: dict[str, Any] = {"url": url} if over_http else {"command": tuple(old(tmp_path))}
        async with connected(**declared) as server:
            assert await used(server, "notices") == "notices is done"


async def test_a_list_that_changed_is_read_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(command=tuple(old(tmp_path))) as server:
        (tmp_path / "more").touch()
        assert "late" not in named(await server.tools())
        monkeypatch.setattr(mcp_client, "LIST_AGE_MAX_S", 0)
        assert "late" in named(await server.tools())
        assert await used(server, "late") == "late is done"


SCHEMAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "no properties": ({"type": "object"}, {}),
    "a dialect": ({"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {}}}, {"a": {}}),
    "alternatives": ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, {"a": {}, "b": {}}),
    "parts": ({"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}}}, {"a": {}, "b": {}}),
    "a reference": ({"$ref": "#/$defs/X", "$defs": {"X": {"properties": {"a": {}}}}}, {"a": {}}),
    "a reference to nothing": ({"$ref": "#/$defs/Y"}, {}),
    "a parameter called properties": (
        {"properties": {"properties": {"type": "array"}}},
        {"properties": {"type": "array"}},
    ),
    "nonsense": ({"properties": [], "anyOf": None, "required": ["a"]}, {}),
}


@pytest.mark.parametrize(("given", "properties"), SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_is_offered_as_an_object_with_properties(given: dict[str, Any], properties: dict[str, Any]) -> None:
    offered = mcp_client.offered_schema(given)
    assert offered["type"] == "object" and offered["properties"] == properties
    assert not offered.keys() & {"$schema", "$ref", "anyOf", "oneOf", "allOf", "enum", "not"}


# --- uses at once ----------------------------------------------------------------------------------------------------


async def test_tenants_share_the_places_of_a_busy_server_in_turn() -> None:
    slots, begun, going = TenantSlots(2), list[str](), asyncio.Event()

    async def use(tenant: str, number: int) -> None:
        async with slots.slot(tenant):
            begun.append(f"{tenant}{number}")
            await going.wait()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for tenant, number in [*(("a", n) for n in range(6)), ("b", 0), ("b", 1), ("c", 0)]:
            group.create_task(use(tenant, number))
        await until(lambda: len(begun) == 2)
        gone = group.create_task(use("b", 9))
        await asyncio.sleep(0)
        gone.cancel()
        going.set()
    assert begun[:2] == ["a0", "a1"], "no other tenant had come"
    assert set(begun[2:5]) >= {"b0", "c0"} and begun.index("b1") < begun.index("a4")
    assert sorted(begun) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1", "c0"]
    async with asyncio.timeout(5), slots.slot("a"), slots.slot("b"):
        pass


async def test_a_use_that_goes_while_its_turn_comes_gives_its_place_back() -> None:
    slots = TenantSlots(1)

    async def use() -> None:
        async with slots.slot("b"):
            raise AssertionError("it was cancelled")

    async with slots.slot("a"):
        waiting = asyncio.get_running_loop().create_task(use())
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    async with asyncio.timeout(5), slots.slot("c"):
        assert waiting.cancelled()


async def test_calls_of_a_replica_share_a_servers_places_and_each_server_has_its_own(tmp_path: Path) -> None:
    slow, quick = (
        RoleTools(mcp=McpServer(name=name, command=("x",), concurrency=count), allow=(tool,), per_call=ToolLimits())
        for name, count, tool in (("slow", 1, "write"), ("quick", 2, "look_up"))
    )
    tools, asked = ToolServers((slow, quick), NodeDirectory(tmp_path)), call()
    assert asked.tools == ToolAllowance(names=("look_up", "write"), uses=8, bytes=65_536)
    first, second = tools.granted(asked, "acme"), tools.granted(asked, "globex")
    assert [each.slots for each in first] == [each.slots for each in second]
    assert first[0].slots is not first[1].slots and None not in [each.slots for each in first]
