import asyncio

import pytest

from tests.components.facades.chatting import BODY, accepted_in, cancelled_in, complete, error_of, frames_of
from tests.components.facades.leaving_client import Connection
from tests.components.routes.served import Served, served
from tests.conditions import until


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("key", "stopped"), [({}, True), ({"Idempotency-Key": "k"}, False)])
async def test_a_disconnect_cancels_a_deliberation_without_a_key(
    gateway: Served, streamed: bool, key: dict[str, str], stopped: bool
) -> None:
    connection = Connection(gateway, BODY | {"stream": streamed}, key)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(connection.call())
        await until(lambda: len(accepted_in(gateway)) == 1 and (not streamed or bool(connection.received)))
        assert cancelled_in(gateway) == []
        connection.disconnected.set()
    assert cancelled_in(gateway) == (["the client left"] if stopped else [])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_disconnect_after_the_end_cancels_nothing(gateway: Served, streamed: bool) -> None:
    connection = Connection(gateway, BODY | {"stream": streamed})
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        call = group.create_task(connection.call())
        await until(lambda: len(accepted_in(gateway)) == 1)
        await gateway.play(accepted_in(gateway)[0].deliberation_id)
        await until(call.done)
        connection.disconnected.set()
    assert connection.sent[0]["status"] == 200 and cancelled_in(gateway) == []


async def test_a_disconnect_while_the_log_is_unavailable_raises_nothing(gateway: Served) -> None:
    connection = Connection(gateway, BODY)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(connection.call())
        await until(lambda: len(accepted_in(gateway)) == 1)
        gateway.journal.available = False
        connection.disconnected.set()
    assert connection.sent[0]["status"] == 499


async def test_a_stream_sends_heartbeats_until_the_answer() -> None:
    async with served(heartbeat_s=0.01) as gateway:
        connection = Connection(gateway, BODY | {"stream": True})
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            call = group.create_task(connection.call())
            await until(lambda: connection.received.count(b'"delta":{"content":""}') >= 3)
            early = connection.received
            await gateway.play(accepted_in(gateway)[0].deliberation_id)
            await until(call.done)
        assert b'"role":"assistant"' in early and b"draft" not in early and b"[DONE]" not in early
        assert connection.received.endswith(b"data: [DONE]\n\n")


async def test_a_stream_tells_each_stage_as_reasoning_while_the_council_works(gateway: Served) -> None:
    connection = Connection(gateway, BODY | {"stream": True})
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        call = group.create_task(connection.call())
        await until(lambda: len(accepted_in(gateway)) == 1)
        await gateway.play(accepted_in(gateway)[0].deliberation_id, until_stage=2)
        await until(lambda: b"critique" in connection.received)
        early = connection.received
        await gateway.play(accepted_in(gateway)[0].deliberation_id)
        await until(call.done)
    deltas = [chunk["choices"][0]["delta"] for chunk in frames_of(connection.received.decode())]
    assert deltas[:4] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "**propose**\n\nAsked: dev-001, dev-002, dev-003.\n\n"},
        {"reasoning_content": "3 of 3 outcomes counted (closed: all).\n\n"},
        {"reasoning_content": "**critique, round 1**\n\nAsked: dev-001, dev-002, dev-003.\n\n"},
    ]
    assert b"draft" not in early and early.count(b"reasoning_content") == 3
    names = [name for delta in deltas[1:] for name in delta]
    told = names.count("reasoning_content")
    assert told == 8 and set(names[:told]) == {"reasoning_content"} and set(names[told:]) == {"content"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_draining_gateway_ends_waiting_completions(gateway: Served, streamed: bool) -> None:
    async def drain(_: Served, __: str) -> None:
        gateway.gateway["feed"].drain()
        gateway.gateway["catalog"].dismiss_waiters()

    response = await complete(gateway, drain, stream=streamed)
    if streamed:
        assert frames_of(response.text)[-1]["error"]["code"] == "not_ready"
    else:
        assert (response.status_code, error_of(response)["code"]) == (503, "not_ready")
        assert response.headers["retry-after"]
    assert cancelled_in(gateway) == ["the client left"]
