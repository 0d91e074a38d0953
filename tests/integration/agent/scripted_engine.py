"""An engine whose replies a test scripts, as the transport of a replica's client."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx

ANSWER = json.dumps({"reasoning": "r", "answer": "forty-two", "confidence": 80})

USAGE = {"prompt_tokens": 10, "completion_tokens": 5}

Script = Callable[[dict[str, Any], int], httpx.Response]


def streamed(text: str, finish: str = "stop", pieces: int = 4) -> httpx.Response:
    size = max(1, len(text) // pieces)
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    lines = [{"choices": [{"delta": {"content": part}, "finish_reason": None}]} for part in chunks]
    lines.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    lines.append({"choices": [], "usage": USAGE})
    body = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
    return httpx.Response(200, stream=httpx.ByteStream(body.encode()))


class ScriptedEngine:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.hosts: list[str] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "scripted"}]})
        body = json.loads(request.content)
        self.bodies.append(body)
        self.hosts.append(request.url.host)
        number = len(self.bodies)
        if self.hold is not None:
            await self.hold.wait()
        return self.script(body, number)
