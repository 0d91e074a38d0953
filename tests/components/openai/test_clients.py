"""Clients of the OpenAI façade that wait, fall asleep, hang up, or meet a gateway that stops."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.components.openai.chatting import BODY, PATH, accepted_in, asked, cancelled_in, error_of, frames_of
from tests.components.routes.served import APP, Served, served
from tests.conditions import until


@pytest.fixture
async def gateway() -> AsyncGenerator[Served, None]:
    async with served() as running:
        yield running


@dataclass
class Line:
    """A client on a line of its own, which it can hang up: what httpx's transport in memory cannot."""

    gateway: Served
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict[str, str])
    sent: list[Any] = field(default_factory=list[Any])
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: bool = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, said: Any) -> None:
        self.sent.append(said)

    @property
    def received(self) -> bytes:
        return b"".join(said.get("body", b"") for said in self.sent)

    async def call(self) -> None:
        named = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), *named],
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
    line = Line(gateway, BODY | {"stream": streamed}, key)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(line.call())
        await until(lambda: len(accepted_in(gateway)) == 1 and (not streamed or bool(line.received)))
        assert cancelled_in(gateway) == []
        line.hung_up.set()
    assert cancelled_in(gateway) == (["the client of /v1 left"] if stopped else [])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_disconnect_after_the_end_cancels_nothing(gateway: Served, streamed: bool) -> None:
    line = Line(gateway, BODY | {"stream": streamed})
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        call = group.create_task(line.call())
        await until(lambda: len(accepted_in(gateway)) == 1)
        await gateway.play(accepted_in(gateway)[0].deliberation_id)
        await until(call.done)
        line.hung_up.set()
    assert line.sent[0]["status"] == 200 and cancelled_in(gateway) == []


async def test_a_disconnect_while_the_log_is_unavailable_raises_nothing(gateway: Served) -> None:
    line = Line(gateway, BODY)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(line.call())
        await until(lambda: len(accepted_in(gateway)) == 1)
        gateway.journal.available = False
        line.hung_up.set()
    assert line.sent[0]["status"] == 499


async def test_a_stream_sends_heartbeats_until_the_answer() -> None:
    async with served(heartbeat_s=0.01) as gateway:
        line = Line(gateway, BODY | {"stream": True})
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            call = group.create_task(line.call())
            await until(lambda: line.received.count(b": \n\n") >= 3)
            spoken = line.received
            await gateway.play(accepted_in(gateway)[0].deliberation_id)
            await until(call.done)
        assert b'"role":"assistant"' in spoken and b"draft" not in spoken and b"[DONE]" not in spoken
        assert line.received.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_draining_gateway_ends_waiting_completions(gateway: Served, streamed: bool) -> None:
    async def stops(_: Served, __: str) -> None:
        gateway.gateway["feed"].drain()
        gateway.gateway["catalog"].dismiss_waiters()

    response = await asked(gateway, stops, stream=streamed)
    if streamed:
        assert frames_of(response.text)[-1]["error"]["code"] == "not_ready"
    else:
        assert (response.status_code, error_of(response)["code"]) == (503, "not_ready")
        assert response.headers["retry-after"]
    assert cancelled_in(gateway) == ["the client of /v1 left"]
