"""An engine that outlives every process and records each request, and which outcomes stood in the log by then."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import httpx

from app.deliberation.calls import Call
from tests.crash.points import Process, nothing

PIECES = 2
FIRST_S = 0.4
PIECE_S = 0.2
# Agents differ in speed, so that no two answers arrive at one moment.
SPREAD_S = 1.5
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


@dataclass(eq=False)
class Asked:
    """A request of a process by its name, `<deliberation>.<call>`.

    `recorded`: the call's outcome stood in the log when it reached the engine; `ended`: the deliberation's end did.
    `prompt` is its last message.
    """

    name: str
    process: Process
    prompt: str = ""
    at_s: float = 0.0
    recorded: bool = False
    ended: bool = False
    closed_at_s: float | None = None

    def __post_init__(self) -> None:
        self.deliberation_id, self.call_id = self.name.split(".")


@dataclass
class Engine:
    """Answers every call with `answer`. `stands` says whether a deliberation has a fact.

    Replicas register their calls here, because a request alone does not identify its call.
    """

    answer: Callable[[Call], str]
    stands: Callable[[str, str], bool]
    asked: list[Asked] = field(default_factory=list[Asked])
    calls: dict[tuple[str, str], Call] = field(default_factory=dict[tuple[str, str], Call])

    def begin(self, asked: Asked) -> None:
        asked.at_s = asyncio.get_running_loop().time()
        asked.recorded = self.stands(asked.deliberation_id, f"call.{asked.call_id}.finished")
        asked.ended = self.stands(asked.deliberation_id, "end")
        self.asked.append(asked)
        asked.process.on_death(lambda: self.close(asked))

    def close(self, asked: Asked) -> None:
        if asked.closed_at_s is None:
            asked.closed_at_s = asyncio.get_running_loop().time()

    @property
    def open(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.closed_at_s is None]


@dataclass(eq=False)
class _Stream(httpx.AsyncByteStream):
    engine: Engine
    asked: Asked
    text: str

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = -(-len(self.text) // PIECES)
        for at in range(0, len(self.text), size):
            await asyncio.sleep(PIECE_S)
            line = {"choices": [{"delta": {"content": self.text[at : at + size]}, "finish_reason": None}]}
            yield await self.asked.process.step("engine piece", lambda line=line: _line(line))
        end: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        yield _line(end) + _line({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        self.engine.close(self.asked)


def _line(body: object) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


class EngineTransport(httpx.AsyncBaseTransport):
    def __init__(self, engine: Engine, process: Process) -> None:
        self._engine = engine
        self._process = process

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            await self._process.step("engine models", nothing)
            return httpx.Response(200, json={"data": [{"id": "scripted"}]})
        name = request.headers["X-Call-Id"]
        asked = Asked(name, self._process, json.loads(await request.aread())["messages"][-1]["content"])
        try:
            await self._process.step("engine request", lambda: self._engine.begin(asked))
            await asyncio.sleep(FIRST_S + SPREAD_S * (crc32(asked.call_id.encode()) % 100) / 100)
        except asyncio.CancelledError:
            self._engine.close(asked)
            raise
        call = self._engine.calls[asked.deliberation_id, asked.call_id]
        return httpx.Response(200, stream=_Stream(self._engine, asked, self._engine.answer(call)))
