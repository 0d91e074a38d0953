"""Calls that may use tools, the simulator as their engine, and the facts that they leave."""

import json
from typing import Any

import httpx

from app.deliberation.calls import Call, ChatMessage
from app.deliberation.facts import decode
from app.deliberation.outputs import Output
from app.deliberation.specification import ToolAllowance
from app.log.journal import JetStreamJournal
from serve_deployments.simulator.script import Script
from serve_deployments.simulator.server.app import Simulator
from serve_deployments.simulator.server.completion import SimulatorSettings

Use = tuple[str, dict[str, Any]]


def call(number: int = 1, uses: int = 8, kind: str = "answer") -> Call:
    return Call(
        call_id=f"s1-dev-{number:03d}",
        agent_id=f"dev-{number:03d}",
        role="DEV",
        messages=(ChatMessage(role="system", content="s"), ChatMessage(role="user", content="# Task\nFind it.")),
        output=Output(kind=kind),  # pyright: ignore[reportArgumentType] -- a kind
        temperature=0.7,
        max_tokens=2_048,
        seed=number,
        tools=ToolAllowance(names=("look_up", "write"), uses=uses, bytes=65_536) if uses else None,
    )


class Engine:
    """The simulator as the transport of an agent's engines, with the bodies that it was sent."""

    def __init__(self, *scripted: Use, **script: Any) -> None:
        calls = [{"name": name, "arguments": arguments} for name, arguments in scripted]
        settings = SimulatorSettings(script=Script(tool_calls=calls, **script))  # pyright: ignore[reportArgumentType]
        self._simulated = httpx.ASGITransport(Simulator(settings))
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.bodies.append(json.loads(await request.aread()))
        async with httpx.AsyncClient(transport=self._simulated) as client:
            answered = await client.request(
                request.method, request.url, content=request.content, headers={"Content-Type": "application/json"}
            )
        return httpx.Response(answered.status_code, stream=httpx.ByteStream(answered.content))


async def facts_of(journal: JetStreamJournal, kind: type, deliberation_id: str = "d1") -> list[Any]:
    records = await journal.facts("default", deliberation_id)
    return [fact for record in records if isinstance(fact := decode(record.data), kind)]
