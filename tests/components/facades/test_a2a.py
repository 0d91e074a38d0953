"""A2A at `/a2a`, call by call. The official package's types read each answer, and refuse what A2A 1.0 does not have."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from a2a.types import (
    AgentCard,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskPushNotificationConfig,
)
from google.protobuf.json_format import ParseDict

from app.api.request_body import BODY_BYTES_MAX
from app.api.webhook_payloads import TASK_CONTEXT
from app.deliberation.facts import Cancelled
from app.deliberation.strategies import STRATEGIES
from app.facades.a2a import CANCELLED
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.facades.chatting import End as Ending
from tests.components.facades.chatting import accepted_in, cancelled_in, play
from tests.components.facades.endings import failing, writing
from tests.components.facades.leaving_client import Connection
from tests.components.inputs.files import picture
from tests.components.routes.served import Served, served
from tests.conditions import until

ASKED: dict[str, Any] = {"num_agents": 2, "seed": 7}
VERSION = {"A2A-Version": "1.0"}
# The types of the results that are no tasks.
TYPES: dict[str, Any] = {
    "SendMessage": SendMessageResponse,
    "ListTasks": ListTasksResponse,
    "GetTaskPushNotificationConfig": TaskPushNotificationConfig,
    "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsResponse,
    "GetExtendedAgentCard": AgentCard,
}


def message(text: str = "Name a colour.", **more: Any) -> dict[str, Any]:
    return {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}], **more}


def sending(metadata: Any = ASKED, configuration: Any = None, **more: Any) -> dict[str, Any]:
    return {"message": message(**more), "metadata": metadata, "configuration": configuration or {}}


def called(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def post(gateway: Served, method: str, params: dict[str, Any], **headers: str) -> httpx.Response:
    return await gateway.client.post("/a2a", json=called(method, params), headers=VERSION | headers)


async def rpc(gateway: Served, method: str, **params: Any) -> dict[str, Any]:
    response = await post(gateway, method, params)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json"), response.text
    answered = response.json()
    assert (answered["jsonrpc"], answered["id"]) == ("2.0", 1)
    if "result" in answered:
        ParseDict(answered["result"], TYPES.get(method, Task)())
    return answered


async def result(gateway: Served, method: str, **params: Any) -> dict[str, Any]:
    answered = await rpc(gateway, method, **params)
    assert "error" not in answered, answered
    return answered["result"]


async def error(gateway: Served, method: str, **params: Any) -> tuple[int, str]:
    answered = (await rpc(gateway, method, **params))["error"]
    (info,) = answered["data"]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo" and info["reason"]
    return answered["code"], answered["message"]


async def played(gateway: Served, end: Ending, method: str, params: dict[str, Any]) -> httpx.Response:
    before = len(accepted_in(gateway))
    waiting = asyncio.create_task(post(gateway, method, params))
    await until(lambda: len(accepted_in(gateway)) > before or waiting.done())
    if not waiting.done():
        await end(gateway, accepted_in(gateway)[-1].deliberation_id)
    return await waiting


async def sent(gateway: Served, end: Ending = play, **more: Any) -> dict[str, Any]:
    answered = (await played(gateway, end, "SendMessage", sending(**more))).json()
    ParseDict(answered["result"], SendMessageResponse())
    return answered["result"]["task"]


async def begun(gateway: Served, **more: Any) -> str:
    found = await result(gateway, "SendMessage", **sending(**more, configuration={"returnImmediately": True}))
    return found["task"]["id"]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    answers = [json.loads(line[6:]) for line in response.text.split("\n") if line.startswith("data: ")]
    for each in answers:
        ParseDict(each.get("result", {}), StreamResponse())
    return answers


def states(answers: list[dict[str, Any]]) -> list[str]:
    found = [each["result"].get("task") or each["result"].get("statusUpdate") for each in answers]
    return [each["status"]["state"].removeprefix("TASK_STATE_") for each in found if each]


def text_of(task: dict[str, Any]) -> str:
    ((part,),) = [each["parts"] for each in task["artifacts"]]
    return part["text"]


@pytest.fixture
async def gateway() -> AsyncGenerator[Served, None]:
    async with served(lists=True, webhooks=True) as made:
        yield made


async def test_a_message_is_answered_by_the_ended_task(gateway: Served) -> None:
    task = await sent(gateway, contextId="c-1")
    rest = (await gateway.client.get(f"/deliberations/{task['id']}")).json()
    assert text_of(task) == rest["verdict"]["content"] and task["artifacts"][0]["parts"][0]["mediaType"] == "text/plain"
    assert (task["contextId"], task["status"]["state"]) == ("c-1", "TASK_STATE_COMPLETED")
    assert task["status"]["timestamp"] == rest["ended_at"]
    (history,) = task["history"]
    assert (history["messageId"], history["role"], history["parts"]) == ("m-1", "ROLE_USER", [{"text": rest["task"]}])
    assert task["metadata"]["usage"] == rest["usage"]
    assert task["metadata"]["deliberation"]["winner"] == rest["verdict"]["winner"]
    assert rest["metadata"] == {TASK_CONTEXT: "c-1"} and rest["seed"] == 7
    assert await result(gateway, "GetTask", id=task["id"]) == task
    assert (await result(gateway, "GetTask", id=task["id"], historyLength=0))["history"] == []


async def test_one_request_is_one_deliberation_over_rest_and_a2a(gateway: Served) -> None:
    await gateway.client.post("/deliberations", json={"task": "Name a colour.", **ASKED})
    await begun(gateway)
    first, second = accepted_in(gateway)
    assert first.specification == second.specification and first.body_sha256 == second.body_sha256


async def test_dissent_and_degradation_are_told_in_the_status(gateway: Served) -> None:
    task = await sent(gateway, metadata={"num_agents": 3, "seed": 7})
    rest = (await gateway.client.get(f"/deliberations/{task['id']}")).json()
    assert rest["verdict"]["dissent"]
    told = [part["text"] for part in task["status"]["message"]["parts"]]
    assert len(told) == len(rest["verdict"]["dissent"]) and all(each.startswith("Dissent: ") for each in told)


async def test_a_failed_deliberation_is_a_failed_task_with_its_cause(gateway: Served) -> None:
    task = await sent(gateway, failing("no_answers", "none of 3 agents answered"))
    assert (task["status"]["state"], task["artifacts"]) == ("TASK_STATE_FAILED", [])
    assert task["status"]["message"]["parts"] == [{"text": "none of 3 agents answered"}]


async def test_an_answers_schema_gives_an_artifact_of_json(gateway: Served) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    asked = {"strategy": "single", "constraints": {"answer_schema": schema | {"additionalProperties": False}}}
    task = await sent(gateway, writing({"n": 3}), metadata=asked)
    assert json.loads(text_of(task)) == {"n": 3}
    assert task["artifacts"][0]["parts"][0]["mediaType"] == "application/json"


async def test_numbers_of_a_struct_are_doubles(gateway: Served) -> None:
    await begun(gateway, metadata={"num_agents": 2.0, "seed": 7.0, "rounds": 1.0})
    (fact,) = accepted_in(gateway)
    assert (len(fact.specification.agents), fact.specification.seed) == (2, 7)


async def test_a_reference_to_an_ended_task_becomes_evidence(gateway: Served) -> None:
    first = await sent(gateway)
    await begun(gateway, text="And why?", referenceTaskIds=[first["id"]])
    (evidence,) = accepted_in(gateway)[-1].specification.evidence
    assert evidence.id == first["id"] and text_of(first) in (evidence.text or "")


async def test_a_stream_begins_with_the_task_and_ends_with_the_verdict(gateway: Served) -> None:
    live = events(await played(gateway, play, "SendStreamingMessage", sending(contextId="c-1")))
    (fact,) = accepted_in(gateway)
    assert live[0]["result"]["task"]["id"] == fact.deliberation_id
    found = states(live)
    assert found[0] == "SUBMITTED" and found[-1] == "COMPLETED" and {*found[1:-1]} == {"WORKING"}
    stages = [each["result"]["statusUpdate"]["status"]["message"]["parts"][0]["text"] for each in live[1:-2]]
    assert stages[:2] == ["Stage 1, propose, round 0: 2 calls", "Stage 1, propose, round 0: 2 of 2 calls"]
    task = await result(gateway, "GetTask", id=fact.deliberation_id)
    artifact, last = live[-2]["result"]["artifactUpdate"], live[-1]["result"]["statusUpdate"]
    assert artifact["artifact"] == task["artifacts"][0] and artifact["lastChunk"] is True
    assert (last["status"], last["metadata"], last["contextId"]) == (task["status"], task["metadata"], "c-1")


async def test_a_subscription_begins_with_the_task_as_it_is_and_goes_on_live(gateway: Served) -> None:
    id = await begun(gateway)
    await gateway.play(id, until_stage=2)
    reading = asyncio.create_task(post(gateway, "SubscribeToTask", {"id": id}))
    await until(lambda: gateway.gateway["feed"].watched == 1)
    assert gateway.gateway["feed"].streams == 1
    current = await result(gateway, "GetTask", id=id)
    await gateway.play(id)
    found = events(await reading)
    assert found[0]["result"]["task"] == current and states(found)[-1] == "COMPLETED"
    texts = [each["result"]["statusUpdate"]["status"]["message"]["parts"][0]["text"] for each in found[1:-2]]
    assert texts[0].startswith("Stage 2, ") and texts[0].endswith(" of 2 calls"), "what the task told is not repeated"
    assert gateway.gateway["feed"].streams == 0
    assert (await error(gateway, "SubscribeToTask", id=id))[0] == -32004


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_leaving_cancels_nothing(gateway: Served, method: str) -> None:
    connection = Connection(gateway, called(method, sending()), path="/a2a", headers=VERSION)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(connection.call())
        await until(lambda: len(accepted_in(gateway)) == 1)
        connection.disconnected.set()
    (fact,) = accepted_in(gateway)
    assert cancelled_in(gateway) == []
    await gateway.play(fact.deliberation_id)
    assert text_of(await result(gateway, "GetTask", id=fact.deliberation_id))


async def test_an_interrupted_stream_ends_with_an_error_and_the_task_goes_on(gateway: Served) -> None:
    id = await begun(gateway)
    reading = asyncio.create_task(post(gateway, "SubscribeToTask", {"id": id}))
    await until(lambda: gateway.gateway["feed"].watched == 1)
    gateway.gateway["feed"].drain()
    last = events(await reading)[-1]
    assert last["error"]["code"] == -32000 and last["error"]["data"][0]["reason"] == "NOT_READY"
    assert cancelled_in(gateway) == []


async def test_a_gateway_that_stops_answers_with_the_unfinished_task(gateway: Served) -> None:
    async def drain(gateway: Served, _: str) -> None:
        gateway.gateway["feed"].drain()
        gateway.gateway["catalog"].dismiss_waiters()

    task = await sent(gateway, drain)
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED" and cancelled_in(gateway) == []


async def test_a_defect_is_an_internal_error_without_its_cause(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await begun(gateway)
    monkeypatch.setattr("app.facades.a2a.task_of", None)
    response = await post(gateway, "GetTask", {"id": id})
    assert (response.status_code, response.json()["error"]["code"]) == (500, -32603)
    assert "NoneType" not in response.text


async def test_a_task_is_cancelled_once(gateway: Served) -> None:
    id = await begun(gateway)
    cancelling = asyncio.create_task(rpc(gateway, "CancelTask", id=id))
    await until(lambda: cancelled_in(gateway) == [CANCELLED])
    await gateway.append(Cancelled(deliberation_id=id, ts=gateway.clock.now()))
    task = (await cancelling)["result"]
    assert task["status"]["state"] == "TASK_STATE_CANCELED" and task["artifacts"] == []
    assert task["status"]["message"]["parts"] == [{"text": CANCELLED}]
    assert (await error(gateway, "CancelTask", id=id))[0] == -32002


async def test_tasks_are_listed_by_context_and_state_in_pages(gateway: Served) -> None:
    first = (await sent(gateway, contextId="c-1"))["id"]
    second, third = await begun(gateway, contextId="c-1"), await begun(gateway)
    await gateway.copied()

    async def listed(**asked: Any) -> tuple[list[str], dict[str, Any]]:
        page = await result(gateway, "ListTasks", **asked)
        return [each["id"] for each in page["tasks"]], page

    assert (await listed())[0] == [third, second, first]
    assert (await listed(contextId="c-1"))[0] == [second, first]
    assert (await listed(contextId="c-1", status="TASK_STATE_COMPLETED"))[0] == [first]
    ids, page = await listed(pageSize=2)
    assert (ids, page["pageSize"], page["totalSize"]) == ([third, second], 2, 3)
    ids, page = await listed(pageSize=2, pageToken=page["nextPageToken"])
    assert (ids, page["nextPageToken"]) == ([first], "")
    whole = await result(gateway, "GetTask", id=first)
    (task,) = page["tasks"]
    assert (task["contextId"], task["status"]["state"]) == ("c-1", "TASK_STATE_COMPLETED") and "artifacts" not in task
    assert task["status"]["timestamp"] == whole["status"]["timestamp"]


async def test_a_list_shows_artifacts_and_history_where_they_are_asked_for(gateway: Served) -> None:
    id = (await sent(gateway, contextId="c-1"))["id"]
    await gateway.copied()
    whole = await result(gateway, "GetTask", id=id)

    async def shown(**asked: Any) -> dict[str, Any]:
        (task,) = (await result(gateway, "ListTasks", **asked))["tasks"]
        return task

    assert await shown(includeArtifacts=True) == {**whole, "history": []}
    assert await shown(includeArtifacts=True, historyLength=1) == whole
    assert await shown(historyLength=1) == {name: whole[name] for name in whole if name != "artifacts"}
    assert (await shown(includeArtifacts=False)).keys() == {"id", "contextId", "status"}


async def test_a_list_takes_every_state_and_a_time(gateway: Served) -> None:
    ended, running = (await sent(gateway))["id"], await begun(gateway)
    await gateway.copied()

    async def listed(**asked: Any) -> list[str]:
        return [task["id"] for task in (await result(gateway, "ListTasks", **asked))["tasks"]]

    for state in ("INPUT_REQUIRED", "AUTH_REQUIRED", "REJECTED"):
        assert await listed(status=f"TASK_STATE_{state}") == []
    assert await listed(status="TASK_STATE_UNSPECIFIED") == await listed() == [running, ended]
    changed_at = (await result(gateway, "GetTask", id=running))["status"]["timestamp"]
    assert running in await listed(statusTimestampAfter=changed_at)
    assert await listed(statusTimestampAfter="2999-01-01T00:00:00Z") == []
    assert (await error(gateway, "ListTasks", statusTimestampAfter="yesterday"))[0] == -32602


async def test_a_push_configuration_is_the_webhook_of_its_task(gateway: Served) -> None:
    configured = {"taskPushNotificationConfig": {"url": "https://hooks.example.com/a2a", "id": "mine"}}
    told = await result(
        gateway, "SendMessage", **sending(configuration={**configured, "returnImmediately": True}, contextId="c-1")
    )
    id = told["task"]["id"]
    webhook = accepted_in(gateway)[0].specification.webhook
    assert webhook is not None and (webhook.format, webhook.metadata[TASK_CONTEXT]) == ("a2a", "c-1")
    config = {"id": "mine", "taskId": id, "url": "https://hooks.example.com/a2a"}
    page = {"configs": [config], "nextPageToken": ""}
    assert await result(gateway, "ListTaskPushNotificationConfigs", taskId=id, pageSize=10, pageToken="") == page
    assert await result(gateway, "GetTaskPushNotificationConfig", taskId=id, id="mine") == config
    assert (await error(gateway, "GetTaskPushNotificationConfig", taskId=id, id="other"))[0] == -32001
    for method in ("CreateTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
        code, said = await error(gateway, method, taskId=id, id="mine")
        assert code == -32004 and "taskPushNotificationConfig" in said
    other = await begun(gateway)
    empty: dict[str, Any] = {"configs": [], "nextPageToken": ""}
    assert await result(gateway, "ListTaskPushNotificationConfigs", taskId=other) == empty


REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "misspelt": ("SendMessage", sending({"num_agent": 2}), -32602, "metadata.num_agent: "),
    "of the strategy": ("SendMessage", sending({"strategy": "councl"}), -32602, "metadata.strategy: "),
    "too many": ("SendMessage", sending({"quorum": 9}), -32602, "metadata.quorum: "),
    "twice": ("SendMessage", sending({"task": "x"}), -32602, "message.parts: The metadata has it too"),
    "blank": ("SendMessage", sending(text=" "), -32602, "message.parts: The task is blank"),
    "too long": ("SendMessage", sending(text="x" * 2_000_001), -32602, "message.parts: "),
    "no text": ("SendMessage", sending() | {"message": message(parts=[{"data": {}}])}, -32005, "message.parts[0]"),
    "a program": (
        "SendMessage",
        sending() | {"message": message(parts=[{"raw": "f0VMRgIBAQAAAA=="}])},
        -32005,
        "message.parts[0]: The file is",
    ),
    "a file elsewhere": (
        "SendMessage",
        sending() | {"message": message(parts=[{"url": "https://a.example/a.pdf"}])},
        -32005,
        "message.parts[0]: The part is a URL",
    ),
    "no base64": ("SendMessage", sending() | {"message": message(parts=[{"raw": "§"}])}, -32602, "message.parts[0]: "),
    "nothing": ("SendMessage", sending() | {"message": message(parts=[{"text": ""}])}, -32602, "message.parts[0].text"),
    "a picture": (
        "SendMessage",
        sending() | {"message": message(parts=[{"text": "x", "mediaType": "image/png"}])},
        -32005,
        "message.parts[0]: Agents do not read image/png",
    ),
    "of an agent": ("SendMessage", sending(role="ROLE_AGENT"), -32602, "message.role"),
    "no message": ("SendStreamingMessage", {}, -32602, "message: It is missing"),
    "another message": ("SendMessage", sending(taskId="nothing"), -32001, "nothing"),
    "reference": ("SendMessage", sending(referenceTaskIds=["nothing"]), -32602, "message.referenceTaskIds"),
    "a credential": (
        "SendMessage",
        sending(configuration={"taskPushNotificationConfig": {"url": "https://a.example", "token": "t"}}),
        -32602,
        "configuration.taskPushNotificationConfig.token: No credential is stored",
    ),
    "a private receiver": (
        "SendMessage",
        sending(configuration={"taskPushNotificationConfig": {"url": "https://127.0.0.1/"}}),
        -32602,
        "configuration.taskPushNotificationConfig.url",
    ),
    "no task": ("GetTask", {"id": "nothing"}, -32001, "nothing"),
    "no id": ("CancelTask", {"id": "NO ID"}, -32001, ""),
    "no state": ("ListTasks", {"status": "TASK_STATE_RUNNING"}, -32602, "status"),
    "no page": ("ListTasks", {"pageToken": "x"}, -32602, "pageToken: "),
    "large page": ("ListTasks", {"pageSize": 101}, -32602, "pageSize"),
    "no flag": ("ListTasks", {"includeArtifacts": "yes"}, -32602, "includeArtifacts"),
    "method": ("tasks/get", {"id": "x"}, -32601, "'tasks/get'"),
}


async def test_fields_that_change_nothing_are_ignored_and_default_values_are_absent(gateway: Served) -> None:
    part = {"text": "Name a colour.", "mediaType": "", "filename": "x.txt", "metadata": {"a": 1}, "later": True}
    more = {"contextId": "", "taskId": "", "extensions": ["x"], "metadata": {"a": 1}, "referenceTaskIds": []}
    configuration = {"taskPushNotificationConfig": None, "acceptedOutputModes": [], "returnImmediately": True}
    params = {"message": message(parts=[part], **more), "configuration": configuration, "tenant": "", "later": {}}
    task = (await result(gateway, "SendMessage", **params))["task"]
    assert (task["contextId"], accepted_in(gateway)[0].specification.task) == (task["id"], "Name a colour.")
    assert (await result(gateway, "GetTask", id=task["id"], tenant="x"))["id"] == task["id"]
    listed = await result(gateway, "ListTaskPushNotificationConfigs", taskId=task["id"], tenant="", pageToken="")
    assert listed["configs"] == []


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refusal_names_the_field_and_a_remedy(gateway: Served, case: str) -> None:
    method, params, code, named = REFUSED[case]
    await gateway.copied()
    answered, said = await error(gateway, method, **params)
    assert answered == code and named in said and ".." not in said, said
    assert accepted_in(gateway) == []


async def test_a_task_takes_no_second_message(gateway: Served) -> None:
    id = await begun(gateway)
    code, said = await error(gateway, "SendMessage", **sending(taskId=id))
    assert code == -32004 and "taskId" in said and len(accepted_in(gateway)) == 1


@pytest.mark.parametrize(
    ("given", "served_by"), [("1.0", True), ("1.0.1", True), ("", False), ("0.3", False), ("1.1", False)]
)
async def test_only_version_1_0_is_spoken(gateway: Served, given: str, served_by: bool) -> None:
    for headers, query in ((({"A2A-Version": given} if given else {}), ""), ({}, f"?A2A-Version={given}")):
        sent = called("ListTaskPushNotificationConfigs", {"taskId": "x"})
        response = await gateway.client.post(f"/a2a{query}", json=sent, headers=headers)
        assert response.status_code == 200
        assert response.json()["error"]["code"] == (-32001 if served_by else -32009)


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b'{"jsonrpc": "2.0",', 200, -32700),
        (b"[]", 200, -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}', 200, -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "GetTask"}', 200, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}', 200, -32600),
        (b" " * (BODY_BYTES_MAX + 1), 413, -32000),
    ],
)
async def test_what_is_no_call_is_refused_as_such(gateway: Served, content: bytes, status: int, code: int) -> None:
    headers = VERSION | {"Content-Type": "application/json"}
    response = await gateway.client.post("/a2a", content=content, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["id"] == (1 if b'"id": 1' in content else None)


async def test_a_body_of_another_media_type_is_refused_with_the_protocol_s_code(gateway: Served) -> None:
    headers = VERSION | {"Content-Type": "text/plain"}
    response = await gateway.client.post("/a2a", content=b"{}", headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (415, -32005)
    assert error["data"][0]["reason"] == "CONTENT_TYPE_NOT_SUPPORTED"


async def test_the_public_card_has_strategies_and_the_extended_one_roles(gateway: Served) -> None:
    response = await gateway.client.get("/.well-known/agent-card.json")
    card = response.json()
    ParseDict(card, AgentCard())
    assert response.headers["cache-control"] == "max-age=300"
    unchanged = {"If-None-Match": f'W/{response.headers["etag"]}, "other"'}
    assert (await gateway.client.get("/.well-known/agent-card.json", headers=unchanged)).status_code == 304
    assert [each["id"] for each in card["skills"]] == list(STRATEGIES)
    assert card["supportedInterfaces"][0]["url"] == "http://localhost/a2a" and "securitySchemes" not in card
    assert card["capabilities"] == {"streaming": True, "pushNotifications": True, "extendedAgentCard": True}
    extended = await result(gateway, "GetExtendedAgentCard")
    roles = [each["id"] for each in extended["skills"] if "role" in each["tags"]]
    assert roles == [f"council/{name}" for name in gateway.gateway["roles"]]
    async with served() as without:
        card = (await without.client.get("/.well-known/agent-card.json")).json()
        assert card["capabilities"]["pushNotifications"] is False


@pytest.fixture
async def keyed() -> AsyncGenerator[Served, None]:
    async with served(key_pepper=PEPPER, lists=True) as made:
        yield made


async def test_the_card_alone_needs_no_key(keyed: Served) -> None:
    card = (await keyed.client.get("/.well-known/agent-card.json")).json()
    assert card["securitySchemes"] == {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
    assert ParseDict(card, AgentCard()).security_requirements
    response = await post(keyed, "ListTasks", {})
    assert (response.status_code, response.json()["error"]["code"]) == (401, -32000)
    assert response.headers["www-authenticate"].startswith("Bearer ")


async def test_another_tenants_task_is_not_found_as_an_unknown_one(keyed: Served) -> None:
    own, other = await make_key(keyed.journal, "acme"), await make_key(keyed.journal, "umbrella")
    params = sending(configuration={"returnImmediately": True}, contextId="c-1")
    id = (await post(keyed, "SendMessage", params, **bearer(own))).json()["result"]["task"]["id"]
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        foreign, unknown = [
            (await post(keyed, method, {"id": each}, **bearer(other))).text.replace(each, "") for each in (id, "z" * 26)
        ]
        assert foreign == unknown and json.loads(foreign)["error"]["code"] == -32001
    for method, params in (
        ("GetTaskPushNotificationConfig", {"taskId": id, "id": id}),
        ("SendMessage", sending(taskId=id)),
    ):
        assert (await post(keyed, method, params, **bearer(other))).json()["error"]["code"] == -32001
    follow = await post(keyed, "SendMessage", sending(referenceTaskIds=[id]), **bearer(other))
    assert follow.json()["error"]["code"] == -32602
    await keyed.copied()
    assert (await post(keyed, "ListTasks", {"contextId": "c-1"}, **bearer(other))).json()["result"]["tasks"] == []
    assert len((await post(keyed, "ListTasks", {"contextId": "c-1"}, **bearer(own))).json()["result"]["tasks"]) == 1
    assert cancelled_in(keyed) == []


async def test_a_method_needs_its_scopes(keyed: Served) -> None:
    reads = await make_key(keyed.journal, "acme", scopes=["read"])
    submits = await make_key(keyed.journal, "acme", scopes=["submit"])
    changes = ("SendMessage", "SendStreamingMessage", "CancelTask", "CreateTaskPushNotificationConfig")
    for method in (*changes, "GetTask", "ListTasks", "SubscribeToTask", "GetExtendedAgentCard", *TYPES):
        for key, may in ((reads, method not in changes), (submits, False)):
            response = await post(keyed, method, {"id": "x"}, **bearer(key))
            assert (response.status_code != 403) == may, method
    assert accepted_in(keyed) == []


async def test_a_message_takes_files_in_their_places(gateway: Served) -> None:
    png = picture("PNG")
    parts: list[Any] = [
        {"text": "Compare"},
        {"raw": base64.urlsafe_b64encode(png).decode().rstrip("="), "mediaType": "image/png", "filename": "a/b.png"},
        {"url": "data:text/plain;base64,bm90ZXM=", "filename": "notes.txt"},
    ]
    evidence = {"id": "adr-7", "title": "A decision", "text": "So it is."}
    asked = sending({**ASKED, "evidence": [evidence]}, {"returnImmediately": True}) | {"message": message(parts=parts)}
    await result(gateway, "SendMessage", **asked)
    specified = accepted_in(gateway)[-1].specification
    assert [(known.title, known.file and known.file.kind) for known in specified.evidence] == [
        ("A decision", None), ("b.png", "picture"), ("notes.txt", "text"),
    ]  # fmt: skip
    _, shown, notes = (known.id for known in specified.evidence)
    assert specified.task == f"Compare\n[evidence {shown}]\n[evidence {notes}]"
    assert specified.evidence[1].file is not None
    assert specified.evidence[1].file.sha256 == hashlib.sha256(png).hexdigest()


async def test_the_card_names_what_is_read(gateway: Served) -> None:
    card = (await gateway.client.get("/.well-known/agent-card.json")).json()
    assert {"text/plain", "application/pdf", "image/png"} <= {*card["defaultInputModes"]}
