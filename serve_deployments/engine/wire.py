"""A chat completion on the wire: the JSON that is asked with, and the answer as it is read, whole or streamed.

What is sent is built here from an allow-list of fields; nothing that a client of the gateway wrote passes through.
Knows no HTTP client: `engine` sends and receives the bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import ValidationError, from_json, to_json

from app.deliberation.calls import Call, Usage
from app.deliberation.errors import EngineUnavailable
from app.deliberation.outputs import json_schema

STREAM_INTERVAL_TOKENS = 4
# How much of what an engine said goes into an error.
DETAIL_CHARACTERS = 300

OnText = Callable[[str], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class EngineReply:
    """What one request brought: the whole text and what the engine reported."""

    text: str
    finish_reason: str
    usage: Usage
    ttft_s: float | None


@dataclass(slots=True)
class Meter:
    """What one request has cost so far, as the engine last reported it: also of one that is cut or breaks off."""

    reported: dict[str, Any] | None = None

    @property
    def usage(self) -> Usage:
        """Tokens so far; none when the engine has reported nothing that can be read."""
        try:
            return Usage() if self.reported is None else _usage(self.reported)
        except (KeyError, TypeError, AttributeError, ValidationError):
            return Usage()


@dataclass
class _Gathered:
    """A streamed answer as it grows."""

    meter: Meter
    texts: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None
    done: bool = False


def request_body(call: Call, model: str, seed: int, *, stream: bool, salt: str | None = None) -> bytes:
    """The JSON of a chat completion, from an allow-list of fields.

    With `salt`, that of its tenant, the engine takes vLLM's own fields; None for others, which might refuse them.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": message.role, "content": message.content} for message in call.messages],
        "temperature": call.temperature,
        "max_tokens": call.max_tokens,
        "seed": seed,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": call.output.kind, "schema": json_schema(call.output), "strict": True},
        },
    }
    if call.top_p is not None:
        body["top_p"] = call.top_p
    if salt is not None:
        # A prefix that another tenant's request had cached would answer sooner, and so tell that it was there.
        body["cache_salt"] = salt
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if salt is not None:
            # With every chunk, so that a request which is cut or breaks off is charged for what it had written.
            body["stream_options"]["continuous_usage_stats"] = True
            # The first token still comes at once; the rest in chunks, which spares both sides most of their parsing.
            body["stream_interval"] = STREAM_INTERVAL_TOKENS
    return to_json(body)


def _usage(reported: dict[str, Any]) -> Usage:
    details: dict[str, int] = reported.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=reported["prompt_tokens"],
        completion_tokens=reported.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
    )


def whole(url: str, content: bytes, meter: Meter) -> EngineReply:
    """Read an answer that came in one piece; raises EngineUnavailable when it is none."""
    try:
        body = from_json(content)
        meter.reported = body["usage"]
        choice = body["choices"][0]
        text = choice["message"]["content"] or ""
        return EngineReply(text, choice["finish_reason"] or "stop", _usage(body["usage"]), None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise EngineUnavailable(f"{url} answered nonsense: {content[:DETAIL_CHARACTERS]!r}") from exc


async def streamed(
    url: str, chunks: AsyncIterator[bytes], on_text: OnText, began_s: float, meter: Meter
) -> EngineReply:
    """Follow a server-sent stream to its `[DONE]`; a stream that ends without it was broken off."""
    clock = asyncio.get_running_loop().time
    gathered = _Gathered(meter)
    ttft_s: float | None = None
    rest = b""
    async for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        piece = "".join(_read_line(url, line, gathered) for line in lines if line.startswith(b"data:"))
        if piece:
            ttft_s = clock() - began_s if ttft_s is None else ttft_s
            gathered.texts.append(piece)
            await on_text(piece)
        if gathered.done:
            break
    if not gathered.done or gathered.finish_reason is None or meter.reported is None:
        raise EngineUnavailable(f"{url} broke its stream off after {sum(map(len, gathered.texts))} characters")
    return EngineReply("".join(gathered.texts), gathered.finish_reason, meter.usage, ttft_s)


def _read_line(url: str, line: bytes, gathered: _Gathered) -> str:
    """Take one `data:` line in; returns the text it adds."""
    payload = line[5:].strip()
    if payload == b"[DONE]":
        gathered.done = True
        return ""
    try:
        event = from_json(payload)
        if "error" in event:
            raise EngineUnavailable(f"{url} failed in mid-stream: {payload[:DETAIL_CHARACTERS]!r}")
        if event.get("usage"):
            gathered.meter.reported = event["usage"]
        if not event["choices"]:
            return ""
        choice = event["choices"][0]
        gathered.finish_reason = choice.get("finish_reason") or gathered.finish_reason
        return choice["delta"].get("content") or ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise EngineUnavailable(f"{url} streamed nonsense: {payload[:DETAIL_CHARACTERS]!r}") from exc
