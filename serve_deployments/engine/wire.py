"""A chat completion on the wire: the JSON of a request, and the reply, whole or streamed.

Requests are built from an allow-list of fields: no field of a gateway's client passes through. `client` sends and
receives the bytes.
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
# How much of an engine's reply goes into an error.
DETAIL_CHARACTERS = 300

OnText = Callable[[str], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class EngineReply:
    """The whole text of a reply, and what the engine reported with it."""

    text: str
    finish_reason: str
    usage: Usage
    ttft_s: float | None


@dataclass(slots=True)
class Meter:
    """What one request has cost so far, as the engine last reported it; kept when the request breaks off."""

    reported: dict[str, Any] | None = None

    @property
    def usage(self) -> Usage:
        """Tokens so far; none when the engine has reported nothing readable."""
        try:
            return Usage() if self.reported is None else _usage(self.reported)
        except (KeyError, TypeError, AttributeError, ValidationError):
            return Usage()


@dataclass
class _StreamedReply:
    """A streamed reply as it grows."""

    meter: Meter
    texts: list[str] = field(default_factory=list[str])
    finish_reason: str | None = None
    done: bool = False


def request_body(call: Call, model: str, seed: int, *, stream: bool, salt: str | None = None) -> bytes:
    """The JSON of a chat completion, from an allow-list of fields.

    `salt` (of the tenant) adds vLLM's own fields; it is None for engines that might refuse them.
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
        # A prefix cached by another tenant's request would answer sooner, and so reveal that request.
        body["cache_salt"] = salt
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if salt is not None:
            # With every chunk, so that a request that breaks off is charged for what it had written.
            body["stream_options"]["continuous_usage_stats"] = True
            # The first token still comes at once; the rest comes in chunks, which saves most of the parsing.
            body["stream_interval"] = STREAM_INTERVAL_TOKENS
    return to_json(body)


def _usage(reported: dict[str, Any]) -> Usage:
    details: dict[str, int] = reported.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=reported["prompt_tokens"],
        completion_tokens=reported.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
    )


def parse_reply(url: str, content: bytes, meter: Meter) -> EngineReply:
    """Parse an unstreamed reply; raises EngineUnavailable when it is malformed."""
    try:
        body = from_json(content)
        meter.reported = body["usage"]
        choice = body["choices"][0]
        text = choice["message"]["content"] or ""
        return EngineReply(text, choice["finish_reason"] or "stop", _usage(body["usage"]), None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise EngineUnavailable(f"{url} answered nonsense: {content[:DETAIL_CHARACTERS]!r}") from exc


async def read_stream(
    url: str, chunks: AsyncIterator[bytes], on_text: OnText, began_s: float, meter: Meter
) -> EngineReply:
    """Read a server-sent stream to its `[DONE]`; raises EngineUnavailable when it ends before or is malformed."""
    clock = asyncio.get_running_loop().time
    reply = _StreamedReply(meter)
    ttft_s: float | None = None
    rest = b""
    async for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        piece = "".join(_read_line(url, line, reply) for line in lines if line.startswith(b"data:"))
        if piece:
            ttft_s = clock() - began_s if ttft_s is None else ttft_s
            reply.texts.append(piece)
            await on_text(piece)
        if reply.done:
            break
    if not reply.done or reply.finish_reason is None or meter.reported is None:
        raise EngineUnavailable(f"{url} broke its stream off after {sum(map(len, reply.texts))} characters")
    return EngineReply("".join(reply.texts), reply.finish_reason, meter.usage, ttft_s)


def _read_line(url: str, line: bytes, reply: _StreamedReply) -> str:
    """Read one `data:` line; returns the text it adds."""
    payload = line[5:].strip()
    if payload == b"[DONE]":
        reply.done = True
        return ""
    try:
        event = from_json(payload)
        if "error" in event:
            raise EngineUnavailable(f"{url} failed in mid-stream: {payload[:DETAIL_CHARACTERS]!r}")
        if event.get("usage"):
            reply.meter.reported = event["usage"]
        if not event["choices"]:
            return ""
        choice = event["choices"][0]
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        return choice["delta"].get("content") or ""
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise EngineUnavailable(f"{url} streamed nonsense: {payload[:DETAIL_CHARACTERS]!r}") from exc
