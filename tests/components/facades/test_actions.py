"""Tools of the client through every door: a call that the council decides on, its result, and the reply."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from app.deliberation.conversation import turns_of
from tests.components.facades.ag_ui_client import OFFICIAL
from tests.components.facades.ag_ui_inputs import message, props, run_input
from tests.components.facades.chatting import accepted_in, complete, error_of, frames_of
from tests.components.routes.served import Served
from tests.conditions import until

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": "read", "description": "Read a file.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
RESPONSES, AG_UI = "/v1/responses", "/ag-ui"
CALLED = {"name": "read", "arguments": {"path": "a"}}


def called(function: Mapping[str, str]) -> dict[str, Any]:
    return {"name": function["name"], "arguments": json.loads(function["arguments"])}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [OFFICIAL.validate_python(event) and event for event in map(json.loads, lines)]


async def asked(gateway: Served, path: str, body: Mapping[str, Any]) -> httpx.Response:
    """The answer to a request whose deliberation is played."""
    before = len(accepted_in(gateway))
    waiting = asyncio.create_task(gateway.client.post(path, json=body))
    await until(lambda: len(accepted_in(gateway)) > before or waiting.done())
    if len(accepted_in(gateway)) > before:
        await gateway.play(accepted_in(gateway)[-1].deliberation_id)
    return await waiting


def turns_asked(gateway: Served) -> list[tuple[str, str | None, str]]:
    specified = accepted_in(gateway)[-1].specification
    return [(turn.role, turn.name, turn.text) for turn in turns_of(specified.task, specified.turns)]


async def test_a_deliberation_decides_on_a_call_and_goes_on_with_its_result(gateway: Served) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "text": "What is in a?"}]
    body = {"conversation": said, "strategy": "vote", "actions": {"tools": [FUNCTION]}}
    id = (await asked(gateway, "/deliberations", body)).json()["id"]
    read = (await gateway.client.get(f"/deliberations/{id}")).json()
    (call,) = read["verdict"]["action"]["calls"]
    assert call == {"id": f"call_{id}_1", **CALLED} and read["verdict"]["content"] == 'read(path="a")'
    assert read["proposals"][0]["action"] == {"calls": [CALLED]}
    assert [tally["votes"] for tally in read["verdict"]["tally"]] == [2]

    said += [{"role": "assistant", "calls": [call]}, {"role": "tool", "name": call["id"], "text": "12"}]
    id = (await asked(gateway, "/deliberations", body)).json()["id"]
    read = (await gateway.client.get(f"/deliberations/{id}")).json()
    assert (
        read["verdict"]["action"].keys() == {"reply"}
        and read["verdict"]["action"]["reply"] == read["verdict"]["content"]
    )
    assert turns_asked(gateway)[2] == ("tool", call["id"], "12")


async def test_a_chat_completion_has_the_calls_and_takes_their_results(gateway: Served) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is in a?"}]
    first = (await complete(gateway, model="vote/DEV", messages=messages, tools=[TOOL])).json()
    (choice,) = first["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert (call["type"], call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "function",
        *CALLED.values(),
    )
    assert first["deliberation"]["tally"][0]["votes"] == 2

    messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "12"}]
    second = (await complete(gateway, model="vote/DEV", messages=messages, tools=[TOOL])).json()
    assert second["choices"][0]["finish_reason"] == "stop" and second["choices"][0]["message"]["content"]
    _, (_, _, assistant), tool = turns_asked(gateway)
    assert json.loads(assistant)["calls"] == [{"id": call["id"], **CALLED}] and tool == ("tool", call["id"], "12")


async def test_a_streamed_completion_has_the_same_calls(gateway: Served) -> None:
    streamed = await complete(gateway, tools=[TOOL], stream=True)
    frames = frames_of(streamed.text)
    (delta,) = [choice["delta"] for frame in frames for choice in frame["choices"] if "tool_calls" in choice["delta"]]
    (call,) = delta["tool_calls"]
    assert (call["index"], call["function"]["name"]) == (0, "read") and json.loads(
        call["function"]["arguments"]
    ) == CALLED["arguments"]
    assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_independent_members_each_have_a_choice(gateway: Served) -> None:
    told = (await complete(gateway, model="independent/DEV", n=3, tools=[TOOL])).json()
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in told["choices"]]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("fields", "recorded"),
    [
        ({}, (False, 16, ["read", "list"])),
        ({"tool_choice": "auto"}, (False, 16, ["read", "list"])),
        ({"tool_choice": "required"}, (True, 16, ["read", "list"])),
        ({"parallel_tool_calls": False}, (False, 1, ["read", "list"])),
        ({"tool_choice": {"type": "function", "function": {"name": "list"}}}, (True, 16, ["list"])),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}},
            (False, 16, ["read"]),
        ),
        ({"tool_choice": "none"}, None),
    ],
)
async def test_a_choice_of_tools_bounds_the_actions(gateway: Served, fields: dict[str, Any], recorded: Any) -> None:
    listing = {"type": "function", "function": {"name": "list"}}
    await complete(gateway, tools=[TOOL, listing], **fields)
    actions = accepted_in(gateway)[-1].specification.constraints.actions
    found = actions and (actions.must_call, actions.calls_max, [tool.name for tool in actions.tools])
    assert found == recorded


async def test_extensions_say_how_many_must_agree_and_how_arguments_compare(gateway: Served) -> None:
    parameters = PARAMETERS | {"x-compare": {"path": "path"}}
    tool = {"type": "function", "x-agreement_min": 1, "function": FUNCTION | {"parameters": parameters}}
    options = {"agreement_min": 0.6, "on_disagreement": "fail"}
    told = (await complete(gateway, model="vote/DEV", tools=[tool], deliberation=options)).json()
    constraints = accepted_in(gateway)[-1].specification.constraints
    assert constraints.actions is not None
    (recorded,) = constraints.actions.tools
    assert (recorded.agreement_min, recorded.comparisons) == (1, {"path": "path"})
    assert (constraints.agreement_min, constraints.on_disagreement) == (0.6, "fail")
    assert told["deliberation"]["agreed"] is True and told["deliberation"]["tally"][0]["votes"] == 3


async def test_a_failed_agreement_is_409_with_the_tally(gateway: Served) -> None:
    options = {"agreement_min": 1, "on_disagreement": "fail"}
    refused = await complete(gateway, model="vote/DEV", deliberation=options)
    error = error_of(refused)
    assert (refused.status_code, error["code"]) == (409, "no_agreement") and "3 of 3 members" in error["message"]
    assert refused.headers["x-should-retry"] == "false"


async def test_a_response_has_the_calls_and_goes_on_from_them(gateway: Served) -> None:
    tool = {"type": "function", **FUNCTION, "strict": True}
    body = {"model": "vote/DEV", "input": "What is in a?", "tools": [tool], "parallel_tool_calls": False}
    first = (await asked(gateway, RESPONSES, body)).json()
    (item,) = [item for item in first["output"] if item["type"] == "function_call"]
    assert (item["name"], json.loads(item["arguments"]), item["status"]) == (*CALLED.values(), "completed")
    assert (first["tools"], first["parallel_tool_calls"]) == ([tool], False)

    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "12"}
    for given in (
        {"input": [output], "previous_response_id": first["id"]},
        {"input": [{"role": "user", "content": "What is in a?"}, item, output]},
        {"input": [{"role": "user", "content": "What is in a?"}, {"type": "item_reference", "id": item["id"]}, output]},
    ):
        answer = await asked(gateway, RESPONSES, body | given)
        assert answer.status_code == 200, answer.text
        second = answer.json()
        assert [item["type"] for item in second["output"]][-1] == "message"
        _, (_, _, assistant), last = turns_asked(gateway)
        assert json.loads(assistant)["calls"] == [{"id": item["call_id"], **CALLED}]
        assert last == ("tool", item["call_id"], "12")
    page = (await gateway.client.get(f"{RESPONSES}/{second['id']}/input_items", params={"order": "asc"})).json()
    assert [entry["type"] for entry in page["data"]] == ["message", "function_call", "function_call_output"]
    assert page["data"][1]["call_id"] == page["data"][2]["call_id"] == item["call_id"]


async def test_a_streamed_response_tells_the_arguments(gateway: Served) -> None:
    tool = {"type": "function", **FUNCTION}
    body = {"model": "vote/DEV", "input": "What is in a?", "tools": [tool], "stream": True}
    events = frames_of((await asked(gateway, RESPONSES, body)).text)
    (done,) = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert (done["name"], json.loads(done["arguments"])) == tuple(CALLED.values())
    assert events[-1]["response"]["output"][-1]["type"] == "function_call"


async def test_a_run_calls_the_front_ends_tools_and_reads_their_results(gateway: Served) -> None:
    said = [message("What is in a?")]
    body = run_input(messages=said, props=props(strategy="vote"), tools=[FUNCTION])
    events = events_of(await asked(gateway, AG_UI, body))
    start, arguments, end = [event for event in events if event["type"].startswith("TOOL_CALL")]
    assert (start["toolCallName"], json.loads(arguments["delta"])) == tuple(CALLED.values())
    assert start["toolCallId"] == end["toolCallId"] and events[-1]["outcome"] == {"type": "success"}

    id = start["toolCallId"]
    function = {"name": "read", "arguments": arguments["delta"]}
    said += [
        {"id": "m2", "role": "assistant", "toolCalls": [{"id": id, "type": "function", "function": function}]},
        {"id": "m3", "role": "tool", "toolCallId": id, "content": "12"},
    ]
    again = events_of(await asked(gateway, AG_UI, body | {"runId": "r2", "messages": said}))
    assert [event["type"] for event in again if event["type"].startswith("TOOL_CALL")] == []
    assert turns_asked(gateway)[2] == ("tool", id, "12")
