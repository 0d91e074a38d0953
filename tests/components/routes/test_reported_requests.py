"""Requests of public reports, each against the routes, with its right answer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from app.deliberation.calls import FactProblem
from app.deliberation.decider import RunStage
from app.deliberation.facts import CallFinished, Fact
from app.deliberation.fold import State, begin
from app.deliberation.strategies import STRATEGIES
from tests.components.facades.chatting import End, accepted_in, play
from tests.components.routes.served import Served, finished, served
from tests.conditions import until
from tests.fakes import drive
from tests.reported_inputs import REPORTED, reported

COUNCIL = "/v1/responses"


@pytest.fixture
async def gateway() -> AsyncGenerator[Served]:
    async with served() as made:
        yield made


async def sent(gateway: Served, door: str, body: Any, end: End = play, **headers: str) -> httpx.Response:
    """The answer to a request, whose deliberation, if it begins one, is played to its end."""
    method, path = door.split(" ")
    before = len(accepted_in(gateway))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    waiting = asyncio.create_task(
        gateway.client.request(method, f"http://127.0.0.1:8000{path}", json=body, headers=named)
    )
    await until(lambda: len(accepted_in(gateway)) > before or waiting.done())
    if not waiting.done():
        await end(gateway, accepted_in(gateway)[-1].deliberation_id)
    return await waiting


async def cut_off(gateway: Served, deliberation_id: str) -> None:
    """Ends a deliberation whose every answer an engine cut off at the limit of tokens."""
    (accepted,) = [fact for fact in accepted_in(gateway) if fact.deliberation_id == deliberation_id]
    problem = FactProblem(code="invalid_output", detail="cut off at its limit of 16 tokens", retryable=False)
    now = gateway.clock.now

    def run(_: State, stage: RunStage) -> list[CallFinished]:
        whole = (finished(deliberation_id, call, stage.opened.stage, now(), "") for call in stage.calls)
        changes = {"text": None, "problem": problem, "finish_reason": "length"}
        return [outcome.model_copy(update=changes) for outcome in whole]

    for event in drive(begin(accepted, 1), STRATEGIES[accepted.specification.strategy], now, run):
        assert isinstance(event, Fact)
        await gateway.append(event)


@pytest.mark.parametrize("name", reported("null is absent"))
async def test_null_is_absent_for_every_optional_field(gateway: Served, name: str) -> None:
    report = REPORTED[name]["input"]
    response = await sent(gateway, report["door"], report["request"])
    assert response.status_code == REPORTED[name]["expected"], response.text
    assert len(accepted_in(gateway)) == 1


@pytest.mark.parametrize("name", reported("fields of a protocol"))
async def test_fields_of_the_protocol_that_change_nothing_are_let_pass(gateway: Served, name: str) -> None:
    report = REPORTED[name]["input"]
    response = await sent(gateway, report["door"].split(",")[0], report["request"], A2A_Version="1.0")
    assert response.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED", response.text


@pytest.mark.parametrize("name", reported("exact paths"))
async def test_a_path_may_have_a_slash_more(gateway: Served, name: str) -> None:
    report, expected = REPORTED[name]["input"], REPORTED[name]["expected"]
    response = await sent(gateway, report["door"], report.get("request"), **report.get("headers", {}))
    assert response.status_code == 200, response.text
    assert f'"{expected}"' in response.text


@pytest.mark.parametrize("path", ["/a2a/tasks", "//a2a//x/"])
async def test_what_is_no_door_is_a_problem_and_no_answer_of_json_rpc(gateway: Served, path: str) -> None:
    response = await gateway.client.get(f"http://127.0.0.1:8000{path}")
    assert response.status_code in (404, 405) and response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("name", reported("limits of tokens"))
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_limit_of_tokens_that_leaves_no_answer_ends_as_one(gateway: Served, name: str, streamed: bool) -> None:
    report, expected = REPORTED[name]["input"], REPORTED[name]["expected"]
    body = report["request"] | ({"stream": True} if streamed else {})
    response = await sent(gateway, report["door"], body, cut_off)
    assert response.status_code == 200 and expected in response.text.replace(": ", ":"), response.text


async def test_a_limit_that_the_client_did_not_set_is_a_failure(gateway: Served) -> None:
    for door, body in (
        ("POST /v1/chat/completions", {"model": "single/DEV", "messages": [{"role": "user", "content": "ping"}]}),
        ("POST /v1/responses", {"model": "single/DEV", "input": "ping"}),
    ):
        assert (await sent(gateway, door, body, cut_off)).status_code == 502


def filled(template: list[Any], output: list[Any]) -> list[Any]:
    """The items of a second request, with those of the first response in the places that name them."""
    (message,) = [item for item in output if item["type"] == "message"]
    items: list[Any] = []
    for item in template:
        if isinstance(item, str):
            items += output
        else:
            items.append(item | {"id": message["id"]} if item.get("type") == "item_reference" else item)
    return items


@pytest.mark.parametrize("name", reported("own output as input"))
async def test_a_response_takes_its_own_output_as_input(gateway: Served, name: str) -> None:
    report = REPORTED[name]["input"]
    first = (await sent(gateway, report["door"], report["first"] | {"model": "single/DEV"})).json()
    output: list[Any] = first["output"]
    if "role_tools" in report:
        used = {"id": "mcp_x_c1_1", "server_label": "s", "name": "look", "arguments": "{}", "output": "fine"}
        output = [{"type": "mcp_call", **used, "error": None, "status": "completed"}, *output]
    second = {"model": "single/DEV", "input": filled(report["second"]["input"], output)}
    response = await sent(gateway, report["door"], second)
    assert response.status_code == 200, response.text
    (text,) = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    assert (
        text in accepted_in(gateway)[-1].specification.task
        and "Another?" in accepted_in(gateway)[-1].specification.task
    )


@pytest.mark.parametrize("id", ["msg_nothing_0", "msg_x", "call_1", "msg_{first}_7", "msg_{first}_x"])
async def test_a_reference_to_nothing_is_refused_with_its_remedy(gateway: Served, id: str) -> None:
    first = (await sent(gateway, f"POST {COUNCIL}", {"model": "single/DEV", "input": "Name a colour."})).json()
    reference = {"type": "item_reference", "id": id.replace("{first}", first["id"].removeprefix("resp_"))}
    body = {"model": "single/DEV", "input": [reference, {"role": "user", "content": "Another?"}]}
    response = await sent(gateway, f"POST {COUNCIL}", body)
    assert response.status_code == 400 and response.json()["error"]["param"] == "input[0].id"
    assert "store false" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["rs", "mcp", "msg"])
async def test_references_without_a_type_and_to_other_items_pass(gateway: Served, kind: str) -> None:
    first = (await sent(gateway, f"POST {COUNCIL}", {"model": "single/DEV", "input": "Name a colour."})).json()
    id = f"{kind}_{first['id'].removeprefix('resp_')}_{0 if kind == 'msg' else 1}"
    body = {"model": "single/DEV", "input": [{"id": id}, {"role": "user", "content": "Another?"}]}
    assert (await sent(gateway, f"POST {COUNCIL}", body)).status_code == 200
    assert ("assistant]" in accepted_in(gateway)[-1].specification.task) == (kind == "msg")


RUN = {"threadId": "t", "runId": "r"}


@pytest.mark.parametrize("content", ["", None, [], [None], [{"type": "text", "text": ""}], "  "])
async def test_a_run_without_any_text_starts_no_council(gateway: Served, content: object) -> None:
    body = RUN | {"messages": [{"id": "1", "role": "user", "content": content}]}
    response = await sent(gateway, "POST /ag-ui", body)
    assert response.status_code == 422 and "No message has text" in response.text
    assert accepted_in(gateway) == []


@pytest.mark.parametrize("content", [5, True, {"text": "hi"}])
async def test_a_message_that_is_no_text_is_refused(gateway: Served, content: object) -> None:
    response = await sent(gateway, "POST /ag-ui", RUN | {"messages": [{"id": "1", "role": "user", "content": content}]})
    assert response.status_code == 422 and "/messages/0/content" in response.text
    assert accepted_in(gateway) == []
