import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.components.facades.chatting import BODY, PATH, accepted_in, cancelled_in, complete, error_of, frames_of
from tests.components.routes.served import APP, Served, served
from tests.conditions import until


@dataclass
class Connection:
    """An ASGI client that can disconnect, which httpx's in-memory transport cannot."""

    gateway: Served
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict[str, str])
    path: str = PATH
    sent: list[Any] = field(default_factory=list[Any])
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    _requested: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self._requested:
            self._requested = True
            return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def received(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def call(self) -> None:
        named = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), *named],
            "client": ("client", 1),
            "server": ("gateway", 80),
            "state": dict(cast(Any, self.gateway.gateway)),
        }
        await APP(scope, self.receive, self.send)


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
