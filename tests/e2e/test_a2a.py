import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict, ParseDict

from app.api.request_body import BODY_BYTES_MAX
from tests.components.webhooks.receiving import receiving
from tests.e2e.conftest import FAST, SLOW, TASK, Stack, printed_by
from tests.e2e.deliveries import all_delivered, secret_of

pytestmark = pytest.mark.e2e

ASKED: dict[str, Any] = {"num_agents": 2, "seed": 7}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=70) as made:
        yield made


async def connected(stack: Stack, http: httpx.AsyncClient, **config: Any) -> Client:
    return await ClientFactory(ClientConfig(httpx_client=http, **config)).create_from_url(stack.url)


def sending(metadata: Any = ASKED, configuration: Any = None, **more: Any) -> SendMessageRequest:
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": TASK}], **more}
    return ParseDict(
        {"message": message, "metadata": metadata, "configuration": configuration or {}}, SendMessageRequest()
    )


async def only(events: AsyncIterator[StreamResponse]) -> Task:
    (event,) = [event async for event in events]
    return event.task


def text_of(task: Task) -> str:
    ((part,),) = [artifact.parts for artifact in task.artifacts]
    return part.text


async def test_one_seed_gives_the_verdict_of_rest_byte_for_byte_and_one_bill(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    rest = (
        await stack.client.post("/deliberations", json={"task": TASK, **ASKED}, headers={"Prefer": "wait=60"})
    ).json()
    blocking = await only((await connected(stack, http, streaming=False)).send_message(sending()))
    streamed = [event async for event in (await connected(stack, http)).send_message(sending())]
    artifact, last = streamed[-2].artifact_update.artifact, streamed[-1].status_update
    assert rest["verdict"]["content"] == text_of(blocking) == artifact.parts[0].text
    assert blocking.id not in (rest["id"], last.task_id)
    for told in (blocking, last):
        assert told.status.state == TaskState.TASK_STATE_COMPLETED
        usage = MessageToDict(told.metadata)["usage"]
        # An engine's cache is warmer at the second time.
        billed = ("calls", "prompt_tokens", "completion_tokens")
        assert [usage[name] for name in billed] == [rest["usage"][name] for name in billed]


async def test_a_stream_tells_the_stages_and_ends_with_the_verdict(stack: Stack, http: httpx.AsyncClient) -> None:
    client = await connected(stack, http)
    events = [event async for event in client.send_message(sending(contextId="c-stream"))]
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds[0] == "task" and kinds[-2:] == ["artifact_update", "status_update"]
    assert {*kinds[1:-2]} == {"status_update"} and len(kinds) >= 8, kinds
    task = await client.get_task(GetTaskRequest(id=events[0].task.id))
    assert (task.artifacts[0], task.status) == (events[-2].artifact_update.artifact, events[-1].status_update.status)
    assert {event.status_update.context_id for event in events[1:-2]} == {"c-stream"}


async def test_tasks_are_listed_read_and_cancelled(stack: Stack, http: httpx.AsyncClient) -> None:
    await stack.script(**{**SLOW, "duration_ms": 60_000})
    client = await connected(stack, http, streaming=False, polling=True)
    begun = await only(client.send_message(sending(contextId="c-list")))
    assert begun.status.state == TaskState.TASK_STATE_SUBMITTED
    listed = await client.list_tasks(ListTasksRequest(context_id="c-list"))
    assert [task.id for task in listed.tasks] == [begun.id]
    stopped = await client.cancel_task(CancelTaskRequest(id=begun.id))
    assert stopped.status.state == TaskState.TASK_STATE_CANCELED
    assert (await client.get_task(GetTaskRequest(id=begun.id))) == stopped
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=begun.id))
    ended = ListTasksRequest(context_id="c-list", status=TaskState.TASK_STATE_CANCELED)
    assert [task.id for task in (await client.list_tasks(ended)).tasks] == [begun.id]


async def test_a_subscription_goes_on_after_the_gateways_sigkill(stack: Stack, http: httpx.AsyncClient) -> None:
    await stack.script(**{**SLOW, "duration_ms": 8_000})
    client = await connected(stack, http)
    seen: list[StreamResponse] = []
    pid = stack.child("gateway")["pid"]
    with suppress(A2AClientError):
        async for event in client.send_message(sending()):
            seen.append(event)
            if len(seen) == 2:
                os.kill(pid, signal.SIGKILL)
    assert len(seen) == 2 and seen[-1].status_update.status.state == TaskState.TASK_STATE_WORKING
    await stack.until_ready()
    await stack.script(**FAST)
    id = seen[0].task.id
    rest = [event async for event in client.subscribe(SubscribeToTaskRequest(id=id))]
    assert rest[0].task.id == id and rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    task = await client.get_task(GetTaskRequest(id=id))
    assert rest[-2].artifact_update.artifact == task.artifacts[0] and task.status == rest[-1].status_update.status
    ends = [record for record in await stack.journal.facts("default", id) if record.tokens[-1] == "end"]
    assert len(ends) == 1


async def test_push_notifications_are_updates_of_the_task_and_signed(stack: Stack, http: httpx.AsyncClient) -> None:
    client = await connected(stack, http, streaming=False)
    async with receiving() as receiver:
        push = {"taskPushNotificationConfig": {"url": receiver.url("/a2a", host="localhost")}}
        task = await only(client.send_message(sending(configuration=push, contextId="c-push")))
        await all_delivered(stack, task.id, 60)
        bodies = [request.checked(secret_of(stack)) for request in receiver.received]
    updates = [ParseDict(body, StreamResponse()).status_update for body in bodies]
    assert {(each.task_id, each.context_id) for each in updates} == {(task.id, "c-push")}
    states = [each.status.state for each in updates]
    assert states[-1] == TaskState.TASK_STATE_COMPLETED and {*states[:-1]} == {TaskState.TASK_STATE_WORKING}
    assert updates[-1].status.timestamp == task.status.timestamp


async def test_refusals_raise_the_clients_own_errors(stack: Stack, http: httpx.AsyncClient) -> None:
    client = await connected(stack, http, streaming=False)
    with pytest.raises(TaskNotFoundError):
        await client.get_task(GetTaskRequest(id="nothing"))
    with pytest.raises(InvalidParamsError, match=r"metadata\.num_agent: .*num_agents"):
        await only(client.send_message(sending({"num_agent": 2})))
    with pytest.raises(A2AClientError, match="413"):
        await only(client.send_message(sending(parts=[{"text": "x" * BODY_BYTES_MAX}])))
    card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert {"council", "council/DEV"} <= {skill.id for skill in card.skills}


async def test_the_documented_program_prints_the_verdict(stack: Stack, tmp_path: Path) -> None:
    lines = (await printed_by("docs/a2a.md", stack, tmp_path)).splitlines()
    assert lines[0] == "TASK_STATE_SUBMITTED" and lines[-1] == "TASK_STATE_COMPLETED"
    assert "".join(line for line in lines if not line.startswith("TASK_STATE")), "the verdict"
