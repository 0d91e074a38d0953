"""A call, and the pieces of the reply that an engine streams."""

import json
from collections.abc import AsyncIterator

import httpx

from app.deliberation.calls import Call, ChatMessage
from app.deliberation.outputs import Output

URL = "http://engine"
SALT = "of-a-tenant"
CHAT = f"{URL}/v1/chat/completions"
CALL = Call(
    call_id="s1-dev-001",
    agent_id="dev-001",
    role="DEV",
    messages=(ChatMessage(role="system", content="rules"), ChatMessage(role="user", content="task")),
    output=Output(kind="answer"),
    temperature=0.7,
    max_tokens=64,
    seed=7,
)
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def chunk(text: str | None = None, finish: str | None = None, usage: object = None) -> bytes:
    choices = [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]
    body = {"choices": [] if usage and text is None and finish is None else choices, "usage": usage}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


WHOLE_STREAM = [chunk("Hé"), chunk("llo"), chunk(finish="stop"), chunk(usage=USAGE), b"data: [DONE]\n\n"]


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: list[bytes], ending: Exception | None = None) -> None:
        self.pieces = pieces
        self.ending = ending
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.ending is not None:
            raise self.ending

    async def aclose(self) -> None:
        self.closed = True
