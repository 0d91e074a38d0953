import asyncio
import json
from typing import Any

import httpx
import pytest

from app.deliberation.facts import Cancelled, decode
from app.deliberation.ports import Record
from app.facades import door
from tests.components.facades.chatting import End as Ending
from tests.components.facades.chatting import accepted_in, cancelled_in, error_of, play
from tests.components.facades.endings import failing, writing
from tests.components.facades.leaving_client import Connection
from tests.components.facades.response_events import events
from tests.components.routes.served import COORDINATOR, Served, served
from tests.conditions import until
from tests.fakes import InMemoryJournal

BODY: dict[str, Any] = {"model": "council/DEV", "input": "Name a colour."}
PATH = "/v1/responses"


async def respond(gateway: Served, end: Ending = play, **body: Any) -> httpx.Response:
    before = len(accepted_in(gateway))
    waiting = asyncio.create_task(gateway.client.post(PATH, json=BODY | body))
    await until(lambda: len(accepted_in(gateway)) > before or waiting.done())
    if not waiting.done():
        await end(gateway, accepted_in(gateway)[-1].deliberation_id)
    return await waiting


async def started(gateway: Served, **body: Any) -> str:
    response = await gateway.client.post(PATH, json=BODY | {"background": True} | body)
    assert response.status_code == 200, response.text
    return response.json()["id"]


def parsed(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return events([f"{frame}\n\n".encode() for frame in response.text.split("\n\n") if frame and frame[0] != ":"])


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


async def test_a_response_is_the_deliberation(gateway: Served) -> None:
    response = await respond(gateway, instructions="Be brief.", metadata={"project": "x"}, store=False)
    found, id = response.json(), response.headers["x-deliberation-id"]
    read = (await gateway.client.get(f"/deliberations/{id}")).json()
    assert found["id"] == f"resp_{id}" and response.headers["location"] == f"/deliberations/{id}"
    assert text_of(found) == read["verdict"]["content"]
    assert (found["instructions"], found["metadata"], found["store"]) == ("Be brief.", {"project": "x"}, False)
    assert found["usage"]["input_tokens"] == read["usage"]["prompt_tokens"]
    assert found["usage"]["by_agent"] == read["usage"]["by_agent"] and found["usage"]["calls"] == read["usage"]["calls"]
    assert found["deliberation"]["winner"] == read["verdict"]["winner"]
    assert (await gateway.client.get(f"{PATH}/{found['id']}")).json() == found


async def test_a_response_repeats_the_tools_and_the_choice_among_them(gateway: Served) -> None:
    tool = {"type": "function", "name": "f", "description": "Finds.", "parameters": {"type": "object"}}
    choice = {"type": "function", "name": "f"}
    id = await started(gateway, tools=[tool], tool_choice=choice)
    found = (await gateway.client.get(f"{PATH}/{id}")).json()
    assert found["tool_choice"] == choice and found["tools"] == [tool | {"strict": True}]


async def test_a_stream_is_what_a_later_reader_gets(gateway: Served) -> None:
    response = await respond(gateway, stream=True)
    live = parsed(response)
    id = live[0]["response"]["id"]
    whole = await gateway.client.get(f"{PATH}/{id}?stream=true")
    assert parsed(whole) == live and live[-1]["type"] == "response.completed"
    for after in (0, 7, len(live) - 2, len(live) - 1, len(live) + 5):
        rest = await gateway.client.get(f"{PATH}/{id}?stream=true&starting_after={after}")
        assert parsed(rest) == live[after + 1 :]


async def test_a_stream_of_a_running_response_goes_on_live_from_any_number(gateway: Served) -> None:
    id = await started(gateway, reasoning={"summary": "detailed"})
    deliberation = id.removeprefix("resp_")
    await gateway.play(deliberation, until_stage=2)
    begun = asyncio.create_task(gateway.client.get(f"{PATH}/{id}?stream=true&starting_after=3"))
    await until(lambda: gateway.gateway["feed"].watched == 1)
    assert gateway.gateway["feed"].streams == 1
    await gateway.play(deliberation)
    found = parsed(await begun)
    assert [event["sequence_number"] for event in found] == [*range(4, found[-1]["sequence_number"] + 1)]
    assert found[-1]["type"] == "response.completed" and gateway.gateway["feed"].streams == 0


async def test_background_work_is_queued_then_in_progress_then_completed(gateway: Served) -> None:
    id = await started(gateway)
    deliberation = id.removeprefix("resp_")
    statuses = [(await gateway.client.get(f"{PATH}/{id}")).json()["status"]]
    await gateway.play(deliberation, until_stage=1)
    statuses.append((await gateway.client.get(f"{PATH}/{id}")).json()["status"])
    await gateway.play(deliberation)
    last = (await gateway.client.get(f"{PATH}/{id}")).json()
    assert [*statuses, last["status"]] == ["queued", "in_progress", "completed"]
    assert last["background"] is True and last["completed_at"] is not None


@pytest.mark.parametrize("background", [False, True])
async def test_a_client_that_leaves_cancels_the_foreground_alone(gateway: Served, background: bool) -> None:
    connection = Connection(gateway, BODY | {"stream": True, "background": background}, path=PATH)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(connection.call())
        await until(lambda: b"response.queued" in connection.received)
        connection.disconnected.set()
    assert len(cancelled_in(gateway)) == (not background)
    assert gateway.gateway["feed"].streams == 0


async def cancelled(gateway: Served, id: str) -> None:
    await gateway.append(Cancelled(deliberation_id=id, ts=gateway.clock.now()))


async def test_a_cancelled_response_is_cancelled_and_stays_so(gateway: Served) -> None:
    id = await started(gateway)
    cancelling = asyncio.create_task(gateway.client.post(f"{PATH}/{id}/cancel"))
    await until(lambda: len(cancelled_in(gateway)) == 1)
    await cancelled(gateway, id.removeprefix("resp_"))
    found = (await cancelling).json()
    assert (found["status"], found["error"]) == ("cancelled", None)
    again = await gateway.client.post(f"{PATH}/{id}/cancel")
    assert again.json() == found and len(cancelled_in(gateway)) == 1
    stream = parsed(await gateway.client.get(f"{PATH}/{id}?stream=true"))
    assert [event["type"] for event in stream[-2:]] == ["error", "response.failed"]
    assert stream[-1]["response"]["status"] == "cancelled"


async def test_an_ended_response_is_deleted_and_then_gone(gateway: Served) -> None:
    id = await started(gateway)
    early = await gateway.client.delete(f"{PATH}/{id}")
    assert (early.status_code, error_of(early)["code"]) == (409, "still_live")
    await gateway.play(id.removeprefix("resp_"))
    deleted = await gateway.client.delete(f"{PATH}/{id}")
    assert deleted.json() == {"id": id, "object": "response", "deleted": True}
    assert (await gateway.client.delete(f"{PATH}/{id}")).json() == deleted.json()
    for method, path in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("GET", "/input_items")):
        response = await gateway.client.request(method, f"{PATH}/{id}{path}")
        assert (response.status_code, error_of(response)["code"]) == (410, "gone")


@pytest.mark.parametrize("operation", ["compact", "input_tokens"])
async def test_operations_that_no_council_has_are_no_ids(gateway: Served, operation: str) -> None:
    response = await gateway.client.post(f"/v1/responses/{operation}", json={"model": "council", "input": "Hello"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert "POST /v1/responses" in response.json()["error"]["message"]


async def test_input_items_are_the_messages_of_the_whole_conversation(gateway: Served) -> None:
    first = (await respond(gateway)).json()
    second = (
        await respond(gateway, input="And why?", instructions="Be brief.", previous_response_id=first["id"])
    ).json()
    assert second["previous_response_id"] == first["id"]
    path = f"{PATH}/{second['id']}/input_items"
    items = (await gateway.client.get(f"{path}?order=asc")).json()
    assert [(item["role"], item["content"][0]["text"]) for item in items["data"]] == [
        ("user", "Name a colour."),
        ("assistant", text_of(first)),
        ("user", "And why?"),
    ]
    assert [item["content"][0]["type"] for item in items["data"]] == ["input_text", "output_text", "input_text"]
    newest = (await gateway.client.get(f"{path}?limit=2")).json()
    assert newest["data"] == items["data"][:0:-1] and newest["has_more"] is True
    rest = (await gateway.client.get(f"{path}?limit=2&after={newest['last_id']}")).json()
    assert rest["data"] == items["data"][:1] and rest["has_more"] is False


REFUSED: list[tuple[str, str, Any, int, str, str | None]] = [
    ("GET", "/resp_nothing", None, 404, "not_found", None),
    ("GET", "/chatcmpl-x", None, 404, "not_found", None),
    ("GET", "/resp_NO%20ID", None, 404, "not_found", None),
    ("POST", "/resp_nothing/cancel", None, 404, "not_found", None),
    ("DELETE", "/resp_nothing", None, 404, "not_found", None),
    ("GET", "/resp_nothing/input_items", None, 404, "not_found", None),
    ("POST", "", BODY | {"model": "gpt-5"}, 404, "model_not_found", "model"),
    ("POST", "", BODY | {"messages": []}, 400, "unknown_parameter", "messages"),
    ("POST", "", BODY | {"input": "x" * 4_300_000}, 413, "body_too_large", None),
    (
        "POST",
        "",
        BODY | {"previous_response_id": "resp_x"},
        400,
        "previous_response_not_found",
        "previous_response_id",
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "code", "param"), REFUSED)
async def test_refuses_as_openai_does(
    gateway: Served, method: str, path: str, body: Any, status: int, code: str, param: str | None
) -> None:
    response = await gateway.client.request(method, PATH + path, json=body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert accepted_in(gateway) == []


@pytest.mark.parametrize("query", ["?starting_after=3", "?stream=true&starting_after=-2", "?other=1"])
async def test_refuses_parameters_that_mean_nothing(gateway: Served, query: str) -> None:
    id = await started(gateway)
    assert (await gateway.client.get(f"{PATH}/{id}{query}")).status_code == 400


async def test_a_failed_deliberation_is_an_error_and_a_failed_response(gateway: Served) -> None:
    response = await respond(gateway, failing("no_answers", "none of 3 agents answered"))
    assert (response.status_code, error_of(response)["code"]) == (502, "no_answers")
    found = (await gateway.client.get(f"{PATH}/resp_{response.headers['x-deliberation-id']}")).json()
    assert (found["status"], found["error"]["code"]) == ("failed", "no_answers")
    streamed = parsed(await respond(gateway, failing("no_answers", "none of 3 agents answered"), stream=True))
    assert streamed[-1]["type"] == "response.failed"


async def test_an_answers_schema_gives_json_that_satisfies_it(gateway: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "number", "schema": schema, "strict": True}
    response = await respond(gateway, writing({"n": 3}), model="single/DEV", text={"format": form})
    assert json.loads(text_of(response.json())) == {"n": 3}
    assert response.json()["text"] == {"format": {**form, "description": None}}


@pytest.mark.parametrize("text", [None, {}, {"format": {}}, {"format": None, "verbosity": "low"}])
async def test_a_response_says_that_it_is_a_text(gateway: Served, text: Any) -> None:
    id = await started(gateway, text=text)
    found = (await gateway.client.get(f"{PATH}/{id}")).json()
    assert found["text"]["format"] == {"type": "text"}


async def test_limits_beyond_ours_are_adjusted_and_named(gateway: Served) -> None:
    response = await respond(gateway, max_output_tokens=200_000, deliberation={"timeout_seconds": 9_999})
    assert response.headers["x-adjusted"] == "max_output_tokens=32768, deliberation.timeout_seconds=3600"


@pytest.mark.parametrize("draining", [False, True])
async def test_a_stream_that_is_interrupted_says_so_and_goes_on_elsewhere(gateway: Served, draining: bool) -> None:
    id = await started(gateway)
    reading = asyncio.create_task(gateway.client.get(f"{PATH}/{id}?stream=true"))
    await until(lambda: gateway.gateway["feed"].watched == 1)
    if draining:
        gateway.gateway["feed"].drain()
    else:
        gateway.clock.advance(400)
        gateway.gateway["feed"].drain()
    found = parsed(await reading)
    assert found[-1]["type"] == "error" and found[-1]["sequence_number"] == found[-2]["sequence_number"]
    assert cancelled_in(gateway) == []


class LateJournal(InMemoryJournal):
    lags = 3

    async def facts(self, tenant: str, deliberation_id: str) -> list[Record]:
        self.lags -= 1
        return [] if self.lags >= 0 else await super().facts(tenant, deliberation_id)


async def test_a_log_that_lags_behind_the_acceptance_interrupts_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LAG_S", 0.0)
    async with served(journal=LateJournal(replies={"control.coordinator": [COORDINATOR]})) as gateway:

        async def play_later(_: Served, id: str) -> None:
            await until(lambda: gateway.gateway["feed"].watched == 1)
            await gateway.play(id)

        found = parsed(await respond(gateway, play_later, stream=True))
    assert (found[0]["type"], found[-1]["type"]) == ("response.created", "response.completed")


async def test_streams_have_a_bound(gateway: Served) -> None:
    async with served(streams_per_client_max=1) as bounded:
        id = await started(bounded)
        reading = asyncio.create_task(bounded.client.get(f"{PATH}/{id}?stream=true"))
        await until(lambda: bounded.gateway["feed"].streams == 1)
        second = await bounded.client.get(f"{PATH}/{id}?stream=true")
        assert (second.status_code, error_of(second)["code"]) == (429, "too_many_streams")
        await bounded.play(id.removeprefix("resp_"))
        assert parsed(await reading)[-1]["type"] == "response.completed"


async def test_one_request_is_one_deliberation_over_rest_chat_and_responses(gateway: Served) -> None:
    seeded = {"num_agents": 2, "seed": 7}
    await started(gateway, deliberation=seeded)
    await gateway.client.post("/deliberations", json={"task": "Name a colour.", "role": "DEV", **seeded})
    asking = asyncio.create_task(
        gateway.client.post(
            "/v1/chat/completions",
            json={
                "model": "council/DEV",
                "messages": [{"role": "user", "content": "Name a colour."}],
                "seed": 7,
                "deliberation": {"num_agents": 2},
            },
        )
    )
    await until(lambda: len(accepted_in(gateway)) == 3)
    await gateway.play(accepted_in(gateway)[-1].deliberation_id)
    await asking
    assert len({fact.specification.model_dump_json() for fact in accepted_in(gateway)}) == 1
    assert len({fact.body_sha256 for fact in accepted_in(gateway)}) == 1


async def test_facts_of_other_doors_have_no_field_of_this_one(gateway: Served) -> None:
    await gateway.accepted()
    (record,) = [record for record in gateway.journal.records if record.subject.endswith(".accepted")]
    assert b'"asked"' not in record.data and decode(record.data)
