import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from app.access.keys import Scope
from app.deliberation.facts import Cancelled
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.facades.ag_ui_client import OFFICIAL, Events, client_of
from tests.components.facades.ag_ui_inputs import message, props, run_input
from tests.components.facades.chatting import accepted_in, cancelled_in, play
from tests.components.facades.endings import failing
from tests.components.facades.leaving_client import Connection
from tests.components.inputs.files import picture
from tests.components.routes.served import Served, served
from tests.conditions import until

PATH = "/ag-ui"
JOIN = f"{PATH}/connect"


def parsed(response: httpx.Response) -> Events:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = [json.loads(each.removeprefix("data: ")) for each in response.text.split("\n\n") if each[:5] == "data:"]
    for event in found:
        OFFICIAL.validate_python(event)
    client_of(found)
    return found


async def begun(gateway: Served, body: dict[str, Any]) -> asyncio.Task[httpx.Response]:
    before = len(accepted_in(gateway))
    running = asyncio.create_task(gateway.client.post(PATH, json=body))
    await until(lambda: len(accepted_in(gateway)) > before or running.done())
    assert not running.done(), (await running).text
    return running


async def run(gateway: Served, body: dict[str, Any], end: Any = play) -> Events:
    running = await begun(gateway, body)
    await end(gateway, accepted_in(gateway)[-1].deliberation_id)
    return parsed(await running)


async def joined(gateway: Served, **fields: Any) -> Events:
    return parsed(await gateway.client.post(JOIN, json=run_input(**fields)))


def content(found: Events) -> dict[str, str]:
    return {id: each["content"] for id, each in client_of(found).messages.items()}


async def test_a_run_is_the_deliberation(gateway: Served) -> None:
    options = props(strategy="council", role="DEV", num_agents=2, seed=7, metadata={"project": "x"})
    context = [{"description": "The colours", "value": "red, blue"}, {"description": "", "value": ""}]
    response = await begun(gateway, run_input(props=options, context=context))
    (fact,) = accepted_in(gateway)
    assert (fact.specification.task, fact.specification.seed) == ("Name a colour.", 7)
    assert fact.specification.metadata == {"project": "x", "ag_ui.thread": "t1"}
    assert [each.text for each in fact.specification.evidence] == ["The colours\n\nred, blue"]
    await gateway.play(fact.deliberation_id)
    found = parsed(await response)
    assert (await response).headers["x-deliberation-id"] == fact.deliberation_id
    read = (await gateway.client.get(f"/deliberations/{fact.deliberation_id}")).json()
    assert (found[0]["threadId"], found[0]["runId"]) == ("t1", "r1") == (found[-1]["threadId"], found[-1]["runId"])
    assert content(found)[f"{fact.deliberation_id}.verdict.0"] == read["verdict"]["content"]
    assert sum(each["inputTokens"] for each in found[-1]["usage"]) == read["usage"]["prompt_tokens"]
    assert found[-1]["result"]["winner"] == read["verdict"]["winner"]


@pytest.mark.parametrize("until_stage", [None, 1, 2, 3])
async def test_whoever_joins_a_run_has_all_of_it(gateway: Served, until_stage: int | None) -> None:
    running = await begun(gateway, run_input())
    id = accepted_in(gateway)[0].deliberation_id
    if until_stage is not None:
        await gateway.play(id, until_stage=until_stage)
    joining = asyncio.create_task(gateway.client.post(JOIN, json=run_input(messages=[])))
    await until(lambda: gateway.gateway["feed"].streams == 1)
    await gateway.play(id)
    first, second = client_of(parsed(await running)), client_of(parsed(await joining))
    assert second.messages == {"m1": message(), **first.messages}
    assert (second.activity, second.state) == (first.activity, first.state)
    again = await joined(gateway)
    assert client_of(again).messages == second.messages and again[0]["type"] == "RUN_STARTED"
    assert [event["type"] for event in again][-1] == "RUN_FINISHED" and len(again) == 5


async def test_a_run_is_found_by_itself_by_its_thread_and_by_its_deliberation(gateway: Served) -> None:
    async with served(lists=True) as kept:
        ids = list[str]()
        for place in (1, 2):
            await run(kept, run_input(run=f"r{place}", messages=[message(id=f"m{place}")]))
            ids.append(accepted_in(kept)[-1].deliberation_id)
        await kept.copied()
        assert [event["runId"] for event in await joined(kept, run="unknown") if "runId" in event] == ["r2", "r2"]
        assert (await joined(kept, run="r1"))[0]["runId"] == "r1"
        rest = await kept.accepted(metadata={"ag_ui.thread": "t2"})
        await kept.play(rest)
        for asked in ({"run": rest}, {"run": ids[0], "thread": "elsewhere"}):
            found = await joined(kept, **{"thread": "t3", **asked})
            assert found[0]["runId"] in (rest, "r1") and found[0]["threadId"] == asked.get("thread", "t3")
        running = await begun(kept, run_input(run="r3", messages=[message(id="m3")]))
        joining = asyncio.create_task(kept.client.post(JOIN, json=run_input(run="unknown")))
        await until(lambda: kept.gateway["feed"].streams == 1)
        await kept.play(accepted_in(kept)[-1].deliberation_id)
        assert parsed(await joining)[0]["runId"] == "r3" and parsed(await running)
    missing = await gateway.client.post(JOIN, json=run_input())
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_the_next_run_of_a_thread_knows_the_conversation_and_not_the_members(gateway: Served) -> None:
    first = client_of(await run(gateway, run_input()))
    known = [message(), *first.messages.values(), message("And why?", "m2")]
    second = await run(gateway, run_input(run="r2", messages=known))
    task = accepted_in(gateway)[-1].specification.task
    (verdict,) = [each["content"] for id, each in first.messages.items() if ".verdict." in id]
    assert task.count(verdict) == 1 and "And why?" in task
    members = [each["content"] for each in first.messages.values() if "subagentRunId" in each]
    assert len(members) > 3 and not any(each in task for each in members if each != verdict)
    said = [each for each in (await joined(gateway, run="r2"))[1]["messages"] if "subagentRunId" not in each]
    assert [(each["role"], each["content"]) for each in said[:3]] == [
        ("user", "Name a colour."),
        ("assistant", verdict),
        ("user", "And why?"),
    ]
    assert second[-1]["outcome"] == {"type": "success"}


async def test_the_same_run_starts_once_and_another_input_is_refused(gateway: Served) -> None:
    first = await run(gateway, run_input())
    assert parsed(await gateway.client.post(PATH, json=run_input())) == first and len(accepted_in(gateway)) == 1
    other = await gateway.client.post(PATH, json=run_input(messages=[message("Name a shape.")]))
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize("background", [False, True])
async def test_a_client_that_leaves_cancels_unless_in_the_background(gateway: Served, background: bool) -> None:
    connection = Connection(gateway, run_input(props=props(background)), path=PATH)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(connection.call())
        await until(lambda: b"RUN_STARTED" in connection.received)
        connection.disconnected.set()
    assert cancelled_in(gateway) == ([] if background else ["the client left"])


async def test_a_viewer_that_leaves_cancels_nothing_and_viewers_have_a_bound(gateway: Served) -> None:
    async with served(streams_per_client_max=1) as bounded:
        running = await begun(bounded, run_input())
        connection = Connection(bounded, run_input(), path=JOIN)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(connection.call())
            await until(lambda: bounded.gateway["feed"].streams == 1)
            second = await bounded.client.post(JOIN, json=run_input())
            assert (second.status_code, second.json()["code"]) == (429, "too_many_streams")
            connection.disconnected.set()
        assert cancelled_in(bounded) == [] and bounded.gateway["feed"].streams == 0
        await bounded.play(accepted_in(bounded)[0].deliberation_id)
        assert parsed(await running)[-1]["type"] == "RUN_FINISHED"


async def test_a_cancelled_run_says_so_and_a_failed_one_is_an_error(gateway: Served) -> None:
    running = await begun(gateway, run_input())
    id = accepted_in(gateway)[0].deliberation_id
    assert (await gateway.client.post(f"/deliberations/{id}/cancel")).status_code in (200, 202)
    await gateway.append(Cancelled(deliberation_id=id, ts=gateway.clock.now()))
    assert parsed(await running)[-1]["outcome"] == {"type": "cancelled"}
    failed = await run(gateway, run_input(run="r2"), failing("no_answers", "none of 3 agents answered"))
    assert (failed[-1]["type"], failed[-1]["code"]) == ("RUN_ERROR", "no_answers")


async def test_a_gateway_that_stops_ends_the_stream_by_an_error(gateway: Served) -> None:
    running = await begun(gateway, run_input(props=props(background=True)))
    await until(lambda: gateway.gateway["feed"].watched == 1)
    gateway.gateway["feed"].drain()
    assert (parsed(await running)[-1]["type"], cancelled_in(gateway)) == ("RUN_ERROR", [])


async def test_parts_that_no_agent_reads_are_named_in_the_task(gateway: Served) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": {"type": "url", "value": "x"}}]
    await run(
        gateway, run_input(messages=[message(content=parts), message(id="m2", role="activity", content={"a": 1})])
    )
    assert accepted_in(gateway)[0].specification.task == "What is it?\n[image left out]"


async def test_a_run_takes_pictures_and_documents_in_their_places(gateway: Served) -> None:
    png, notes = picture("PNG"), b"notes"
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "data", "value": encoded(png), "mimeType": "image/png"}},
        {"type": "binary", "mimeType": "text/plain", "data": encoded(notes), "filename": "notes.txt"},
    ]
    await run(gateway, run_input(messages=[message(content=parts)]))
    specified = accepted_in(gateway)[0].specification
    shown, read = specified.evidence
    assert specified.task == f"What is it?\n[evidence {shown.id}]\n[evidence {read.id}]"
    assert [known.file and known.file.kind for known in specified.evidence] == ["picture", "text"]
    assert read.title == "notes.txt"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def with_part(kind: str, data: str, media_type: str) -> dict[str, Any]:
    source = {"type": "data", "value": data, "mimeType": media_type}
    return {"messages": [message(content=[{"type": kind, "source": source}])]}


async def test_a_thread_of_400_kb_is_shown_whole_when_it_is_joined(gateway: Served) -> None:
    said = [message(f"{number} " + "word " * 400, id=f"m{number}") for number in range(200)]
    events = await run(gateway, run_input(messages=said))
    assert events[-1]["type"] == "RUN_FINISHED"
    joined = parsed(await gateway.client.post(JOIN, json=run_input(messages=said)))
    (snapshot,) = (event for event in joined if event["type"] == "MESSAGES_SNAPSHOT")
    assert [known["content"] for known in snapshot["messages"][:200]] == [known["content"] for known in said]


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"tools": [{"name": "f g", "description": ""}]}, 422, "string_pattern_mismatch", "/tools/0/name"),
    ({"resume": [{"interruptId": "i", "status": "resolved"}]}, 422, "unsupported_parameter", "/resume"),
    ({"props": props(webhook={"url": "https://h.example"})}, 422, "conflict", "/forwardedProps/deliberation/webhook"),
    ({"props": props(task="x")}, 422, "conflict", "/forwardedProps/deliberation/task"),
    ({"props": props(num_agent=3)}, 422, "extra_forbidden", "/forwardedProps/deliberation/num_agent"),
    ({"props": props(strategy="best")}, 422, "unknown_strategy", "/forwardedProps/deliberation/strategy"),
    ({"props": props(metadata=1)}, 422, "dict_type", "/forwardedProps/deliberation/metadata"),
    ({"props": {"background": "yes"}}, 422, "bool_type", "/forwardedProps/background"),
    ({"messages": []}, 422, "missing", "/messages"),
    ({"messages": [message("x" * 2_000_001)]}, 422, "string_too_long", "/messages"),
    ({"messages": [message(role="robot")]}, 422, "literal_error", "/messages/0/role"),
    ({"context": [{"description": "d", "value": "x" * 2_000_001}]}, 422, "string_too_long", "/context"),
    (with_part("image", "§", "image/png"), 422, "invalid_base64", "/messages/0/content"),
    (with_part("image", encoded(b"notes"), "image/png"), 422, "no_picture", "/messages/0/content/0"),
    (with_part("document", "", "text/plain"), 422, "empty_file", "/messages/0/content/0"),
    ({"thread": ""}, 422, "string_too_short", "/threadId"),
    ({"messages": [message("x" * 4_300_000)]}, 413, "body_too_large", ""),
]


@pytest.mark.parametrize(("fields", "status", "code", "pointer"), REFUSED)
async def test_refuses_by_name(gateway: Served, fields: Any, status: int, code: str, pointer: str) -> None:
    response = await gateway.client.post(PATH, json=run_input(**fields))
    found = response.json()
    assert response.status_code == status, found
    faults = [(each["code"], each["pointer"]) for each in found["errors"]] or [(found["code"], "")]
    assert faults[0] == (code, pointer) and accepted_in(gateway) == []


@pytest.fixture
async def keyed() -> AsyncGenerator[Served, None]:
    async with served(key_pepper=PEPPER) as gateway:
        yield gateway


@pytest.mark.parametrize(("scopes", "run_status"), [(("submit",), 403), (("read",), 403), (("submit", "read"), 200)])
async def test_a_run_needs_both_scopes_and_is_its_tenants_alone(
    keyed: Served, scopes: tuple[Scope, ...], run_status: int
) -> None:
    own, other = bearer(await make_key(keyed.journal, "acme", scopes)), bearer(await make_key(keyed.journal, "else"))
    body = run_input(props=props(background=True))
    asking = asyncio.create_task(keyed.client.post(PATH, json=body, headers=own))
    await until(lambda: bool(accepted_in(keyed)) or asking.done())
    for run_id in ("r1", *(fact.deliberation_id for fact in accepted_in(keyed))):
        assert (await keyed.client.post(JOIN, json=run_input(run=run_id), headers=other)).status_code == 404
    keyed.gateway["feed"].drain()
    assert (await asking).status_code == run_status
