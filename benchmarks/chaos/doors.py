"""The load over all doors: each task is asked by the next protocol, and asked again as that protocol says."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import httpx

from app.api.webhook_payloads import TERMINAL_EVENTS
from app.sse import SseDecoder
from benchmarks.chaos.load import PAUSE_S, STRATEGIES, Load

Json = dict[str, Any]
# The gateway is away, or full, or stops: the same question may be asked again.
AGAIN = frozenset({429, 502, 503, 504})
_TASKS = "io.modelcontextprotocol/tasks"
_META = "io.modelcontextprotocol"
_MCP_VERSION = "2026-07-28"


class Broken(Exception):
    """The answer broke off, or the gateway asks to come again."""


@dataclass
class Asked:
    """A task at its door: `body` as over REST, `id` once the client knows it, `cursor` after what it has read."""

    http: httpx.AsyncClient
    body: Json
    key: str
    id: str | None = None
    cursor: str = "0"

    @property
    def keyed(self) -> Mapping[str, str]:
        return {"Idempotency-Key": self.key}

    @property
    def options(self) -> Json:
        return {name: self.body[name] for name in ("num_agents", "rounds") if name in self.body}

    @property
    def model(self) -> str:
        return f"{self.body['strategy']}/{self.body['role']}"

    async def json(self, method: str, path: str, **sent: Any) -> tuple[int, Json]:  # noqa: ANN401 -- httpx's arguments
        response = await self.http.request(method, path, **sent)
        _check(response.status_code, response.text)
        return response.status_code, response.json()

    async def events(self, method: str, path: str, **sent: Any) -> AsyncGenerator[tuple[str, Json]]:  # noqa: ANN401
        """Each event's id and data; raises Broken when the stream ends."""
        async with self.http.stream(method, path, **sent) as response:
            if response.status_code != 200:
                _check(response.status_code, (await response.aread()).decode())
            self.id = response.headers.get("X-Deliberation-Id", self.id)
            if "json" in response.headers["Content-Type"]:
                yield "", json.loads(await response.aread())
            decoder = SseDecoder()
            async for chunk in response.aiter_bytes():
                for frame in decoder.feed(chunk):
                    if fields := frame.fields():
                        yield frame.id or "", fields
        raise Broken


def _check(status: int, text: str) -> None:
    if status in AGAIN:
        raise Broken
    if status not in (200, 202):
        raise AssertionError(f"{status} {text}")


async def rest(asked: Asked) -> str:
    """`POST /deliberations` under a key, then its events after the last one that was read."""
    if asked.id is None:
        _, made = await asked.json("POST", "/deliberations", json=asked.body, headers=asked.keyed)
        asked.id = made["id"]
    sent = {"Last-Event-ID": asked.cursor, "Accept": "text/event-stream"}
    async with aclosing(asked.events("GET", f"/deliberations/{asked.id}/events", headers=sent)) as events:
        async for cursor, event in events:
            asked.cursor = cursor or asked.cursor
            if event.get("type") in TERMINAL_EVENTS:
                return event["type"].removeprefix("deliberation.")
    raise Broken


async def chat(asked: Asked) -> str:
    """A stream of chunks; the same request under the same key waits for the same deliberation."""
    messages = [{"role": "user", "content": asked.body["task"]}]
    body = {"model": asked.model, "messages": messages, "seed": asked.body["seed"], "deliberation": asked.options}
    sent: Json = {"json": {**body, "stream": True}, "headers": asked.keyed}
    async with aclosing(asked.events("POST", "/v1/chat/completions", **sent)) as chunks:
        async for _, chunk in chunks:
            if "error" in chunk:
                raise Broken
            if chunk["choices"] and chunk["choices"][0]["finish_reason"] == "stop":
                return "completed"
    raise Broken


async def responses(asked: Asked) -> str:
    """A stream in the background, read on by `starting_after`; its numbers have no gap."""
    if asked.id is None:
        options = {**asked.options, "seed": asked.body["seed"]}
        body = {"model": asked.model, "input": asked.body["task"], "background": True, "deliberation": options}
        stream = asked.events("POST", "/v1/responses", json={**body, "stream": True}, headers=asked.keyed)
        asked.cursor = "-1"
    else:
        after: Json = {"stream": "true"} | ({} if asked.cursor == "-1" else {"starting_after": asked.cursor})
        stream = asked.events("GET", f"/v1/responses/resp_{asked.id}", params=after)
    async with aclosing(stream) as events:
        async for _, event in events:
            if event["type"] == "error":
                raise Broken
            if event["sequence_number"] != int(asked.cursor) + 1:
                raise AssertionError(f"event {event['sequence_number']} after {asked.cursor}")
            asked.cursor = str(event["sequence_number"])
            if event["type"] in ("response.completed", "response.failed"):
                return event["response"]["status"]
    raise Broken


async def _mcp(asked: Asked, method: str, named: str, params: Json) -> Json:
    capabilities: Json = {"extensions": {_TASKS: {}}}
    meta: Json = {f"{_META}/protocolVersion": _MCP_VERSION, f"{_META}/clientCapabilities": capabilities}
    message: Json = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    sent = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": _MCP_VERSION}
    _, answer = await asked.json(
        "POST", "/mcp", json=message, headers={**sent, "Mcp-Method": method, "Mcp-Name": named}
    )
    result: Json = answer.get("result", answer)
    if result.get("isError") or "error" in result:
        problem = json.loads(result["content"][0]["text"]) if "content" in result else result
        _check(problem.get("status", 500), str(problem))
    return result


async def mcp(asked: Asked) -> str:
    """A task of the tool `deliberate`, polled by `tasks/get`; the call has an `idempotency_key`."""
    if asked.id is None:
        call = {"name": "deliberate", "arguments": {**asked.body, "idempotency_key": asked.key}}
        asked.id = (await _mcp(asked, "tools/call", "deliberate", call))["taskId"]
    while True:
        task = await _mcp(asked, "tasks/get", str(asked.id), {"taskId": asked.id})
        if task["status"] != "working":
            return task["result"]["structuredContent"]["status"]
        await asyncio.sleep(task["pollIntervalMs"] / 1_000)


async def ag_ui(asked: Asked) -> str:
    """A run in the background, joined by `/ag-ui/connect`; one that was never accepted is run again."""
    said = [{"id": "m1", "role": "user", "content": asked.body["task"]}]
    options = {name: value for name, value in asked.body.items() if name != "task"}
    props = {"background": True, "deliberation": options}
    body: Json = {"threadId": asked.key, "runId": asked.key, "messages": said, "forwardedProps": props}
    body |= {"tools": [], "context": [], "state": {}}
    path = "/ag-ui" if asked.id is None else "/ag-ui/connect"
    async with aclosing(asked.events("POST", path, json=body)) as events:
        async for _, event in events:
            if event["type"] == "RUN_FINISHED":
                return str(event["outcome"]["type"]).replace("success", "completed")
            if event["type"] == "RUN_ERROR":
                raise Broken
    raise Broken


def _a2a(method: str, params: Json) -> Json:
    return {"json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}}


async def a2a(asked: Asked) -> str:
    """A streamed message under a key, then `SubscribeToTask`, and `GetTask` of a task that has ended."""
    version = {"A2A-Version": "1.0"}
    if asked.id is None:
        message = {"messageId": asked.key, "role": "ROLE_USER", "parts": [{"text": asked.body["task"]}]}
        metadata = {name: value for name, value in asked.body.items() if name != "task"}
        sent = _a2a("SendStreamingMessage", {"message": message, "metadata": metadata})
    else:
        sent = _a2a("SubscribeToTask", {"id": asked.id})
    async with aclosing(asked.events("POST", "/a2a", **sent, headers={**version, **asked.keyed})) as events:
        async for _, event in events:
            if "error" in event:
                break
            told: Json = event["result"].get("task") or event["result"].get("statusUpdate") or {}
            asked.id = told.get("id", asked.id)
            if told.get("status", {}).get("state") not in (None, "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"):
                break
    _, read = await asked.json("POST", "/a2a", **_a2a("GetTask", {"id": asked.id}), headers=version)
    return read["result"]["status"]["state"].removeprefix("TASK_STATE_").lower()


DOORS: Mapping[str, Callable[[Asked], Awaitable[str]]] = {
    each.__name__: each for each in (rest, chat, responses, mcp, ag_ui, a2a)
}


@dataclass
class DoorLoad(Load):
    """`tasks` over all doors in turn: the ids that each door promised, and how often it was asked again."""

    tasks: int = 0
    ids: dict[str, set[str]] = field(default_factory=lambda: {name: set[str]() for name in DOORS})
    again: Counter[str] = field(default_factory=Counter[str])
    _turns: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.pending = {self._key(turn) for turn in range(self.tasks)}

    def _key(self, turn: int) -> str:
        return f"doors-{self.seed}-{turn}"

    async def _client(self, client: httpx.AsyncClient, number: int) -> None:
        names = [*DOORS]
        while (turn := next(self._turns)) < self.tasks:
            body = {"task": f"Task {turn}.", "seed": turn, "role": "DEV", **STRATEGIES[turn // len(names) % 2]}
            # Rotated by one each round, so that no door always comes first.
            await self._to_the_end(
                names[(turn + turn // len(names)) % len(names)], Asked(client, body, self._key(turn))
            )

    async def _to_the_end(self, door: str, asked: Asked) -> None:
        ended = None
        while ended is None:
            try:
                ended = await DOORS[door](asked)
            except (Broken, httpx.TransportError, aiohttp.ClientError):
                self.again[door] += 1
                await asyncio.sleep(PAUSE_S)
            if asked.id is not None:
                self.promised.add(asked.id)
                self.ids[door].add(asked.id)
        if ended != "completed":
            raise AssertionError(f"{door}: {asked.id} {ended}")
        self.pending.discard(asked.key)
