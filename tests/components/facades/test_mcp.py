"""MCP at `/mcp` of a listening gateway, by the official client in both eras of the protocol, and message by message."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import httpx2
import jsonschema
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from app.api.request_body import BODY_BYTES_MAX
from app.deliberation.facts import Accepted, CancelRequested, decode
from app.deliberation.strategies import STRATEGIES
from app.facades.mcp.rest import ABANDONED
from app.facades.mcp.tasks import CANCELLED, TASKS
from tests.components.access.keyed import PEPPER, make_key
from tests.components.facades.mcp_messages import LEGACY, call, headers_for, message
from tests.components.inputs.files import picture
from tests.components.routes.listening import Gateway, listening
from tests.components.routes.served import played
from tests.conditions import until
from tests.fakes import InMemoryJournal
from tests.reported_inputs import REPORTED, reported
from tests.story import NOW

ERAS = ("auto", "legacy")
ASKED: dict[str, Any] = {"task": "Name a colour.", "num_agents": 2, "seed": 7}
TEXT = {"type": "resource", "resource": {"uri": "file:///home/ann/sales%20of%20March.txt?v=1", "text": "12 boats"}}


@pytest.fixture
async def gateway() -> AsyncGenerator[Gateway, None]:
    async with listening(lists=True) as made:
        yield made


@asynccontextmanager
async def connected(gateway: Gateway, mode: str = "auto", key: str = "") -> AsyncGenerator[Client, None]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(f"{gateway.client.base_url}/mcp".replace("//mcp", "/mcp"), http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def of_kind(journal: InMemoryJournal, kind: str) -> list[Any]:
    return [decode(record.data) for record in journal.records if record.tokens[-1] == kind]


async def accepted(journal: InMemoryJournal, before: int = 0) -> Accepted:
    await until(lambda: len(of_kind(journal, "accepted")) > before)
    return of_kind(journal, "accepted")[-1]


async def play(gateway: Gateway, fact: Accepted, until_stage: int | None = None) -> None:
    done = len(await gateway.journal.facts("default", fact.deliberation_id)) - 1
    for each in list(played(fact, now=lambda: NOW, until_stage=until_stage))[done:]:
        await gateway.write(each)


def cancellations(journal: InMemoryJournal) -> list[str | None]:
    return [fact.reason for fact in of_kind(journal, "cancel") if isinstance(fact, CancelRequested)]


async def rpc(gateway: Gateway, sent: dict[str, Any], **headers: str) -> dict[str, Any]:
    answered = await gateway.client.post("/mcp", json=sent, headers=headers_for(sent, **headers))
    assert answered.headers["content-type"].startswith("application/json"), answered.text
    return answered.json()


def of_tasks(method: str, **params: Any) -> dict[str, Any]:
    return message(method, params, extensions={TASKS: {}})


@pytest.mark.parametrize("mode", ERAS)
async def test_the_tools_are_listed_with_schemas_of_arguments_and_results(gateway: Gateway, mode: str) -> None:
    async with connected(gateway, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert client.server_info is not None and client.server_info.name == "deliberation-gateway"
    assert list(tools) == ["deliberate", "get_deliberation", "cancel_deliberation", "list_strategies", "list_roles"]
    for tool in tools.values():
        assert tool.description
        for schema in (tool.input_schema, tool.output_schema):
            assert schema is not None and schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)
        assert tool.input_schema["additionalProperties"] is False
    assert tools["deliberate"].input_schema["required"] == ["task"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_council_answers_with_the_document_of_rest_byte_for_byte(gateway: Gateway, mode: str) -> None:
    async with connected(gateway, mode) as client:
        calling = asyncio.create_task(client.call_tool("deliberate", ASKED))
        fact = await accepted(gateway.journal)
        await play(gateway, fact)
        result = await calling
    rest = await gateway.client.get(f"/deliberations/{fact.deliberation_id}?view=summary")
    text, link = result.content
    assert text.type == "text" and text.text == rest.text
    assert result.structured_content == rest.json() and not result.is_error
    assert result.structured_content["verdict"]["winner"]
    assert link.type == "resource_link" and link.uri == f"deliberation://{fact.deliberation_id}/transcript"
    assert fact.specification.seed == 7 and len(fact.specification.agents) == 2


@pytest.mark.parametrize("mode", ERAS)
async def test_embedded_resources_are_evidence(gateway: Gateway, mode: str) -> None:
    png = base64.b64encode(picture("PNG")).decode()
    plan = {"type": "resource", "resource": {"uri": "file:///plan.png", "mimeType": "image/png", "blob": png}}
    policy = {"id": "policy", "title": "The policy", "text": "No boats."}
    arguments = {**ASKED, "evidence": [policy], "resources": [TEXT, plan, TEXT], "wait_seconds": 0}
    async with connected(gateway, mode) as client:
        result = await client.call_tool("deliberate", arguments)
    assert not result.is_error, result.content
    first, text, pixels = of_kind(gateway.journal, "accepted")[-1].specification.evidence
    assert (first.id, text.title, pixels.title) == ("policy", "sales of March.txt", "plan.png")
    assert (text.file.kind, text.file.bytes, pixels.file.kind) == ("text", 8, "picture")


async def test_names_and_types_of_resources_add_nothing_to_their_upload(gateway: Gateway) -> None:
    uri = 'file:///a%22; name="x"%0D%0AX: y%0D%0A%0D%0Ab.txt'
    odd = {"type": "resource", "resource": {"uri": uri, "mimeType": "text/plain\r\nX: y", "text": "12 boats"}}
    async with connected(gateway) as client:
        result = await client.call_tool("deliberate", {**ASKED, "resources": [odd], "wait_seconds": 0})
    assert not result.is_error, result.content
    (evidence,) = of_kind(gateway.journal, "accepted")[-1].specification.evidence
    assert (evidence.title, evidence.file.bytes) == ('a"; name="x"X: yb.txt', 8)
    (file,) = (await gateway.client.get("/files")).json()["files"]
    assert file["name"] == "a%22; name=%22x%22X: yb.txt"


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_grows_and_names_each_stage(gateway: Gateway, mode: str) -> None:
    reported: list[tuple[float, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, message))

    async with connected(gateway, mode) as client:
        calling = asyncio.create_task(client.call_tool("deliberate", ASKED, progress_callback=report))
        fact = await accepted(gateway.journal)
        for stage in (1, 2):
            await play(gateway, fact, until_stage=stage)
            await until(lambda: f"stage {stage}, " in str(reported[-1:]))  # noqa: B023 -- awaited within the round
        await play(gateway, fact)
        assert not (await calling).is_error
    numbers = [progress for progress, _ in reported]
    assert numbers == sorted(set(numbers))
    assert str(reported[0][1]).endswith("is pending") and "stage 1, propose, round 0: 0 of 2 calls" in str(reported)


async def test_closing_the_request_cancels_the_deliberation(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        calling = asyncio.create_task(client.call_tool("deliberate", ASKED))
        await accepted(gateway.journal)
        calling.cancel()
        await until(lambda: cancellations(gateway.journal) == [ABANDONED])


async def test_a_connection_that_breaks_cancels_the_deliberation(gateway: Gateway) -> None:
    sent = message("tools/call", call("deliberate", **ASKED))
    with suppress(httpx.ReadTimeout):
        await gateway.client.post("/mcp", json=sent, headers=headers_for(sent), timeout=0.3)
    await accepted(gateway.journal)
    await until(lambda: cancellations(gateway.journal) == [ABANDONED])


async def test_a_notification_of_an_earlier_protocol_cancels_on_any_gateway(gateway: Gateway) -> None:
    session, another = await _session(gateway), await _session(gateway)
    sent = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call("deliberate", **ASKED)}
    calling = asyncio.create_task(gateway.client.post("/mcp", json=sent, headers=_legacy(session)))
    await accepted(gateway.journal)
    async with listening(gateway.journal) as other:
        for named, request_id in ((another, 7), (session, 8), (session, 7)):
            assert cancellations(gateway.journal) == []
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
            answered = await other.client.post("/mcp", json=note, headers=_legacy(named))
            assert answered.status_code == 202
    assert cancellations(gateway.journal) == [ABANDONED]
    calling.cancel()


async def test_a_cancelled_call_of_an_earlier_protocol_cancels_the_deliberation(gateway: Gateway) -> None:
    async with connected(gateway, "legacy") as client:
        calling = asyncio.create_task(client.call_tool("deliberate", ASKED))
        await accepted(gateway.journal)
        calling.cancel()
        await until(lambda: cancellations(gateway.journal) == [ABANDONED])


def _legacy(session: str) -> dict[str, str]:
    accept = "application/json, text/event-stream"
    return {"Accept": accept, "MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": session}


async def _session(gateway: Gateway) -> str:
    asked = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": asked}
    answered = await gateway.client.post("/mcp", json=first, headers=_legacy(""))
    assert answered.status_code == 200, answered.text
    return answered.headers["mcp-session-id"]


async def test_a_call_with_an_idempotency_key_goes_on_and_is_found_again(gateway: Gateway) -> None:
    asked = {**ASKED, "idempotency_key": "order-4711"}
    async with connected(gateway) as client:
        calling = asyncio.create_task(client.call_tool("deliberate", asked))
        fact = await accepted(gateway.journal)
        calling.cancel()
        again = await client.call_tool("deliberate", {**asked, "wait_seconds": 0})
        assert again.structured_content is not None and again.structured_content["id"] == fact.deliberation_id
        other = await client.call_tool("deliberate", {**asked, "seed": 8})
    assert other.is_error and json.loads(other.content[0].text)["code"] == "idempotency_conflict"  # pyright: ignore
    assert len(of_kind(gateway.journal, "accepted")) == 1 and cancellations(gateway.journal) == []


async def test_after_the_wait_the_result_has_the_id_and_the_deliberation_goes_on(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        result = await client.call_tool("deliberate", {**ASKED, "wait_seconds": 0})
        assert result.structured_content is not None and not result.is_error
        id = result.structured_content["id"]
        assert result.structured_content["status"] == "pending" and cancellations(gateway.journal) == []
        reading = asyncio.create_task(client.call_tool("get_deliberation", {"id": id, "wait_seconds": 30}))
        await play(gateway, await accepted(gateway.journal))
        found = await reading
    assert found.structured_content is not None and found.structured_content["status"] == "completed"


async def test_a_deliberation_is_cancelled_by_the_tool(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        begun = await client.call_tool("deliberate", {**ASKED, "wait_seconds": 0})
        assert begun.structured_content is not None
        asked = {"id": begun.structured_content["id"], "reason": "changed my mind"}
        found = await client.call_tool("cancel_deliberation", asked)
    assert found.structured_content is not None and found.structured_content["status"] == "cancelling"
    assert cancellations(gateway.journal) == ["changed my mind"]


def embedding(**content: str) -> dict[str, Any]:
    return {**ASKED, "resources": [TEXT, {"type": "resource", "resource": {"uri": "file:///b", **content}}]}


REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "unknown": ("deliberate", {**ASKED, "colour": "red"}, "invalid_request", "/colour"),
    "misspelt": ("deliberate", {"task": "x", "num_agent": 2}, "invalid_request", "num_agents?"),
    "of the wait": ("deliberate", {**ASKED, "wait_seconds": -1}, "invalid_request", "/wait_seconds"),
    "of the key": ("deliberate", {**ASKED, "idempotency_key": "a b"}, "invalid_request", "/idempotency_key"),
    "nested": ("deliberate", {**ASKED, "budget": {"calls": 3}}, "invalid_request", "/budget/calls"),
    "unknown role": ("deliberate", {"task": "x", "role": "NOBODY"}, "invalid_request", "/role"),
    "unknown strategy": ("deliberate", {"task": "x", "strategy": "councl"}, "invalid_request", "council?"),
    "no task": ("deliberate", {}, "invalid_request", "/task"),
    "too large": ("deliberate", {"task": "x" * 2_000_001}, "invalid_request", "/task"),
    "no id": ("get_deliberation", {"id": "nothing"}, "not_found", "nothing"),
    "a path": ("get_deliberation", {"id": "../roles"}, "invalid_request", "/id"),
    "of a read": ("get_deliberation", {"id": "x", "view": "whole"}, "invalid_request", "/view"),
    "of a cancellation": ("cancel_deliberation", {"id": "x", "why": "y"}, "invalid_request", "/why"),
    "a blob that is not base64": ("deliberate", embedding(blob="%"), "invalid_request", "/resources/1"),
    "a resource without content": ("deliberate", embedding(), "invalid_request", "not one of text and blob"),
    "a file that no agent reads": ("deliberate", embedding(blob="AAAA"), "invalid_request", "/resources/1"),
    "of a list": ("list_strategies", {"role": "DEV"}, "invalid_request", "/role"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_bad_argument_is_a_problem_that_names_it(gateway: Gateway, case: str) -> None:
    tool, arguments, code, named = REFUSED[case]
    async with connected(gateway) as client:
        result = await client.call_tool(tool, arguments)
    (text,) = result.content
    assert result.is_error and text.type == "text"
    problem = json.loads(text.text)
    assert problem["code"] == code and named in text.text
    assert all(fault["remedy"] for fault in problem["errors"])
    assert of_kind(gateway.journal, "accepted") == []


async def test_an_unknown_tool_is_an_error_that_suggests_one(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        with pytest.raises(MCPError, match="Did you mean deliberate"):
            await client.call_tool("deliberat", {})


async def test_strategies_and_roles_are_those_of_rest(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        strategies, roles = await client.call_tool("list_strategies"), await client.call_tool("list_roles")
    assert strategies.structured_content == (await gateway.client.get("/strategies")).json()
    assert roles.structured_content == (await gateway.client.get("/roles")).json()


@pytest.mark.parametrize("mode", ERAS)
async def test_verdicts_and_transcripts_are_resources(gateway: Gateway, mode: str) -> None:
    async with connected(gateway, mode) as client:
        await client.call_tool("deliberate", {**ASKED, "wait_seconds": 0})
        fact = await accepted(gateway.journal)
        await play(gateway, fact)
        id = fact.deliberation_id
        await gateway.client.get("/deliberations")  # which copies the log to the archive
        (listed,) = (await client.list_resources()).resources
        assert (listed.uri, listed.title) == (f"deliberation://{id}/verdict", "Name a colour.")
        templates = [each.uri_template for each in (await client.list_resource_templates()).resource_templates]
        assert templates == ["deliberation://{id}/verdict", "deliberation://{id}/transcript"]
        for part, query in (("verdict", "?view=summary"), ("transcript", "")):
            (read,) = (await client.read_resource(f"deliberation://{id}/{part}")).contents
            assert read.text == (await gateway.client.get(f"/deliberations/{id}{query}")).text  # pyright: ignore
        for unknown in ("deliberation://nothing/verdict", f"deliberation://{id}/votes", "file:///etc/passwd"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(unknown)
            assert refused.value.code == -32602


async def test_each_strategy_is_a_prompt(gateway: Gateway) -> None:
    async with connected(gateway) as client:
        prompts = (await client.list_prompts()).prompts
        assert [each.name for each in prompts] == list(STRATEGIES)
        assert prompts[0].arguments is not None
        assert [(each.name, each.required) for each in prompts[0].arguments] == [
            ("task", True), ("role", False), ("num_agents", False)
        ]  # fmt: skip
        found = await client.get_prompt("debate", {"task": "Tabs or spaces?", "num_agents": "2"})
        (said,) = found.messages
        assert said.content.type == "text"
        arguments = json.loads(said.content.text.partition("\n")[2])
        assert arguments == {"task": "Tabs or spaces?", "num_agents": 2, "strategy": "debate"}
        for name, given, named in (("debat", {"task": "x"}, "debate"), ("debate", {"tsk": "x"}, "/task")):
            with pytest.raises(MCPError, match=named):
                await client.get_prompt(name, given)


async def test_a_client_of_tasks_gets_a_task_whose_store_is_the_log(gateway: Gateway) -> None:
    created = (await rpc(gateway, of_tasks("tools/call", **call("deliberate", **ASKED))))["result"]
    fact = await accepted(gateway.journal)
    assert created["resultType"] == "task" and created["taskId"] == fact.deliberation_id
    assert created["status"] == "working" and isinstance(created["ttlMs"], int) and created["pollIntervalMs"] > 0
    get = of_tasks("tasks/get", taskId=created["taskId"])
    await play(gateway, fact, until_stage=2)
    working = (await rpc(gateway, get))["result"]
    assert working["status"] == "working" and "stage 2" in working["statusMessage"] and "result" not in working
    await play(gateway, fact)
    async with listening(gateway.journal, lists=True) as other:
        ended = (await rpc(other, get))["result"]
    rest = await gateway.client.get(f"/deliberations/{fact.deliberation_id}?view=summary")
    assert (ended["resultType"], ended["status"]) == ("complete", "completed")
    assert ended["result"]["structuredContent"] == rest.json() and ended["result"]["content"][0]["text"] == rest.text


async def test_a_task_is_cancelled_and_takes_no_input(gateway: Gateway) -> None:
    created = (await rpc(gateway, of_tasks("tools/call", **call("deliberate", **ASKED))))["result"]
    named = {"taskId": created["taskId"]}
    ignored = (await rpc(gateway, of_tasks("tasks/update", **named, inputResponses={})))["result"]
    assert ignored["resultType"] == "complete" and cancellations(gateway.journal) == []
    for _ in range(2):
        acknowledged = (await rpc(gateway, of_tasks("tasks/cancel", **named)))["result"]
        assert acknowledged["resultType"] == "complete" and "taskId" not in acknowledged
    assert cancellations(gateway.journal) == [CANCELLED]


async def test_tasks_are_refused_without_the_extension_an_id_or_a_right_header(gateway: Gateway) -> None:
    codes: dict[str, int] = {}
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        params: dict[str, Any] = {"taskId": "x", "inputResponses": {}}
        assert (await rpc(gateway, message(method, params)))["error"]["code"] == -32021
        codes[method] = (await rpc(gateway, of_tasks(method, **params)))["error"]["code"]
        mismatch = await rpc(gateway, of_tasks(method, **params), Mcp_Name="y")
        assert mismatch["error"]["code"] == -32020
    assert set(codes.values()) == {-32602}
    refused = (await rpc(gateway, of_tasks("tools/call", **call("deliberate"))))["result"]
    assert refused["isError"] and "/task" in refused["content"][0]["text"]
    discovered = (await rpc(gateway, message("server/discover")))["result"]["capabilities"]
    assert discovered["extensions"] == {TASKS: {}} and "tasks" not in discovered


async def test_a_stopping_gateway_ends_a_wait_and_cancels_nothing() -> None:
    async with listening() as gateway, connected(gateway) as client:
        await client.list_tools()  # or the client asks for the result's schema, of a gateway that is gone
        calling = asyncio.create_task(client.call_tool("deliberate", ASKED))
        await accepted(gateway.journal)
        gateway.server.handle_exit(15, None)
        result = await calling
        assert result.structured_content is not None and result.structured_content["status"] == "pending"
    assert cancellations(gateway.journal) == []


@pytest.fixture
async def keyed() -> AsyncGenerator[Gateway, None]:
    async with listening(key_pepper=PEPPER, tenant_requests_per_minute=60) as made:
        keyring = made.server.lifespan.state["access"].keyring
        await until(lambda: keyring.caught_up)
        yield made


async def test_without_a_key_every_message_is_refused(keyed: Gateway) -> None:
    for sent in (message("server/discover"), message("tools/list"), message("tools/call", call("list_roles"))):
        refused = await keyed.client.post("/mcp", json=sent, headers=headers_for(sent))
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        assert refused.headers["www-authenticate"].startswith("Bearer ")


async def test_another_tenant_finds_nothing(keyed: Gateway) -> None:
    own, other = await make_key(keyed.journal, "acme"), await make_key(keyed.journal, "umbrella")
    async with connected(keyed, key=own) as client:
        begun = await client.call_tool("deliberate", {**ASKED, "wait_seconds": 0})
        assert begun.structured_content is not None
    id = begun.structured_content["id"]
    async with connected(keyed, key=other) as client:
        for tool in ("get_deliberation", "cancel_deliberation"):
            refused = await client.call_tool(tool, {"id": id})
            assert refused.is_error and json.loads(refused.content[0].text)["code"] == "not_found"  # pyright: ignore
        with pytest.raises(MCPError, match="There is no deliberation"):
            await client.read_resource(f"deliberation://{id}/transcript")
    for method in ("tasks/get", "tasks/cancel"):
        answered = await rpc(keyed, of_tasks(method, taskId=id), Authorization=f"Bearer {other}")
        assert answered["error"]["code"] == -32602 and answered["error"]["data"]["code"] == "not_found"
    assert cancellations(keyed.journal) == []


async def test_a_tool_needs_the_scopes_of_its_rest_operation(keyed: Gateway) -> None:
    reads = await make_key(keyed.journal, "acme", scopes=["read"])
    async with connected(keyed, key=reads) as client:
        refused = await client.call_tool("deliberate", ASKED)
        assert refused.is_error and json.loads(refused.content[0].text)["code"] == "insufficient_scope"  # pyright: ignore
        assert not (await client.call_tool("list_strategies")).is_error
    submits = await make_key(keyed.journal, "acme", scopes=["submit"])
    async with connected(keyed, key=submits) as client:
        receipt = await client.call_tool("deliberate", ASKED)
        assert receipt.structured_content is not None and "verdict" not in receipt.structured_content
        read = await client.call_tool("get_deliberation", {"id": receipt.structured_content["id"]})
        assert read.is_error and json.loads(read.content[0].text)["code"] == "insufficient_scope"  # pyright: ignore


async def test_a_message_is_one_request_of_the_tenant(keyed: Gateway) -> None:
    key = await make_key(keyed.journal, "acme")
    left: list[int] = []
    for tool in ("list_strategies", "deliberate"):
        sent = message("tools/call", call(tool, **({**ASKED, "wait_seconds": 0} if tool == "deliberate" else {})))
        answered = await keyed.client.post("/mcp", json=sent, headers=headers_for(sent, Authorization=f"Bearer {key}"))
        left.append(int(answered.headers["ratelimit"].partition("r=")[2].partition(";")[0]))
    assert left[0] - left[1] == 1
    sent = message("tools/list")
    while (answered := await _list(keyed, sent, key)).status_code == 200:
        assert len(left) < 100
        left.append(0)
    assert (answered.status_code, answered.json()["code"]) == (429, "rate_limited")
    assert answered.headers["retry-after"]


async def _list(gateway: Gateway, sent: dict[str, Any], key: str) -> httpx.Response:
    return await gateway.client.post("/mcp", json=sent, headers=headers_for(sent, Authorization=f"Bearer {key}"))


def foreign() -> Iterator[Any]:
    yield pytest.param({"Origin": "https://evil.example"}, 403, "cross_site", id="origin")
    yield pytest.param({"Origin": "null"}, 403, "cross_site", id="opaque origin")
    yield pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, "cross_site", id="relation")
    yield pytest.param({"Host": "evil.example"}, 400, "foreign_host", id="host")


@pytest.mark.parametrize(("given", "status", "code"), foreign())
async def test_a_page_of_another_site_is_refused(
    gateway: Gateway, given: dict[str, str], status: int, code: str
) -> None:
    sent = message("tools/call", call("deliberate", **ASKED))
    refused = await gateway.client.post("/mcp", json=sent, headers={**headers_for(sent), **given})
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert of_kind(gateway.journal, "accepted") == []


async def test_bodies_are_bounded_and_strict_as_over_rest(gateway: Gateway) -> None:
    async def refused(content: bytes, kind: str = "application/json") -> tuple[int, str]:
        answered = await gateway.client.post("/mcp", content=content, headers={"Content-Type": kind})
        assert answered.headers["content-type"] == "application/problem+json"
        return answered.status_code, answered.json()["code"]

    assert await refused(b" " * (BODY_BYTES_MAX + 1)) == (413, "body_too_large")
    assert await refused(b"{") == (400, "invalid_json")
    assert await refused(b'{"id": 1, "id": 2}') == (400, "invalid_json")
    assert await refused(b'{"params": NaN}') == (400, "invalid_json")
    assert await refused(b"[" * 40 + b"]" * 40) == (400, "invalid_json")
    assert await refused(b"[]") == (422, "invalid_request")
    assert await refused(b"{}", "text/plain") == (415, "unsupported_media_type")


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_other_methods_are_refused(gateway: Gateway, method: str) -> None:
    answered = await gateway.client.request(method, "/mcp")
    assert (answered.status_code, answered.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("name", reported("arguments in strings"))
async def test_arguments_of_a_report_are_read_as_they_are_meant(gateway: Gateway, name: str) -> None:
    arguments = REPORTED[name]["input"]["arguments"]
    calling = asyncio.create_task(rpc(gateway, message("tools/call", call("deliberate", **arguments))))
    fact = await accepted(gateway.journal)
    await play(gateway, fact)
    assert not (await calling)["result"]["isError"]
    assert len(fact.specification.agents) == REPORTED[name]["expected"]["num_agents"]


@pytest.mark.parametrize(
    ("field", "value"), [("num_agents", "two"), ("num_agents", "true"), ("agents", "{}"), ("budget", "[1]")]
)
async def test_a_string_that_holds_no_such_value_is_refused(gateway: Gateway, field: str, value: str) -> None:
    arguments = {"task": "Name a colour.", field: value}
    answered = await rpc(gateway, message("tools/call", call("deliberate", **arguments)))
    assert answered["result"]["isError"] and field in answered["result"]["content"][0]["text"]
    assert of_kind(gateway.journal, "accepted") == []
