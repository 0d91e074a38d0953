"""A chat completion on the wire: the JSON of a request, and a reply that comes whole.

Requests are built from an allow-list of fields: no field of a gateway's client passes through. `client` sends and
receives the bytes.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import ValidationError, from_json, to_json

from app.deliberation.budget import tokens_of
from app.deliberation.calls import Call, Usage
from app.deliberation.errors import CallCancelled, EngineUnavailable
from app.deliberation.outputs import json_schema
from app.deliberation.prompts.form import schema_section
from app.deliberation.specification import Structured
from serve_deployments.engine.dialect import Dialect

STREAM_INTERVAL_TOKENS = 4
# How much of an engine's reply goes into an error.
DETAIL_CHARACTERS = 300
VLLM = Dialect()
"""The dialect of vLLM, which takes every field."""

OnText = Callable[[str], Coroutine[Any, Any, None]]
BeforeSending = Callable[[], Coroutine[Any, Any, None]]


class Replying(Protocol):
    """The engine that replies, as errors name and quote it."""

    @property
    def label(self) -> str:
        """Its name and address."""
        ...

    def quote(self, content: bytes) -> str:
        """The beginning of what it said, without its key."""
        ...


@dataclass(slots=True)
class RequestBody:
    """A request's body, which `before_sending` may refuse after the connection was made, right before it is written.

    One that `yields` may wait in the engine's queue behind all others.
    """

    content: bytes
    before_sending: BeforeSending | None
    yields: bool = False
    refused: CallCancelled | None = None
    written: bool = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.before_sending is not None:
            try:
                await self.before_sending()
            except CallCancelled as refused:
                # Kept, because the transport replaces it by an error of its own.
                self.refused = refused
                raise
        self.written = True
        yield self.content


@dataclass(slots=True)
class EngineReply:
    """The whole text of a reply, and what the engine reported with it."""

    text: str
    finish_reason: str
    usage: Usage
    ttft_s: float | None
    structured: Structured | None = None


@dataclass(slots=True)
class Meter:
    """What one request has cost so far, as the engine last reported it; kept when the request breaks off."""

    reported: dict[str, Any] | None = None
    estimated: bool = False

    @property
    def usage(self) -> Usage:
        """Tokens so far; none when the engine has reported nothing readable."""
        try:
            return Usage() if self.reported is None else _usage(self.reported)
        except (KeyError, TypeError, AttributeError, ValidationError):
            return Usage()

    def estimate(self, call: Call, text: str) -> None:
        """Estimate the cost of an answer for which the engine reported none."""
        prompt = sum(tokens_of(message.content) for message in call.messages)
        self.reported = {"prompt_tokens": prompt, "completion_tokens": tokens_of(text)}
        self.estimated = True


def request_body(
    call: Call,
    model: str,
    seed: int,
    *,
    stream: bool,
    salt: str | None = None,
    priority: int | None = None,
    dialect: Dialect = VLLM,
    choices: int = 1,
) -> bytes:
    """The JSON of a chat completion, from an allow-list of fields, in the engine's dialect.

    `salt` (of the tenant) and `priority` add vLLM's own fields; they are None for engines that might refuse them.
    """
    body: dict[str, Any] = {"model": model, "messages": _messages(call, dialect)}
    optional: dict[str, Any] = {
        "temperature": call.temperature,
        "max_tokens": call.max_tokens,
        "seed": seed,
        "top_p": call.top_p,
        "stream_options": {"include_usage": True} if stream else None,
    }
    body |= {name: value for name, value in optional.items() if value is not None and name not in dialect.lacking}
    if "max_tokens" in dialect.lacking:
        body["max_completion_tokens"] = call.max_tokens
    match dialect.structured:
        case "json_schema":
            schema = {"name": call.output.kind, "schema": json_schema(call.output), "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        case "json_object":
            # A grammar to llama-cpp-python and some hosted engines; others refuse or ignore it.
            shown = {} if "schema" in dialect.lacking else {"schema": json_schema(call.output)}
            body["response_format"] = {"type": "json_object", **shown}
        case "prompt":
            pass
    if salt is not None:
        # A prefix cached by another tenant's request would answer sooner, and so reveal that request.
        body["cache_salt"] = salt
    if priority is not None:
        body["priority"] = priority
    if choices > 1:
        body["n"] = choices
    if stream:
        body["stream"] = True
        if salt is not None and "stream_options" in body:
            # With every chunk, so that a request that breaks off is charged for what it had written.
            body["stream_options"]["continuous_usage_stats"] = True
        if salt is not None:
            # The first token still comes at once; the rest comes in chunks, which saves most of the parsing.
            body["stream_interval"] = STREAM_INTERVAL_TOKENS
    return to_json(body)


def _messages(call: Call, dialect: Dialect) -> list[dict[str, str]]:
    messages = [{"role": message.role, "content": message.content} for message in call.messages]
    if dialect.structured != "json_schema":
        messages[-1]["content"] += schema_section(json_schema(call.output))
    if "system" in dialect.lacking and len(messages) > 1 and messages[0]["role"] == "system":
        system, first, *rest = messages
        messages = [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]
    return messages


def _usage(reported: dict[str, Any]) -> Usage:
    details: dict[str, int] = reported.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=reported["prompt_tokens"],
        completion_tokens=reported.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
    )


def parse_reply(engine: Replying, content: bytes, meter: Meter) -> EngineReply:
    """Parse an unstreamed reply; raises EngineUnavailable when it is malformed."""
    try:
        body = from_json(content)
        meter.reported = body.get("usage")
        choice = body["choices"][0]
        text = choice["message"]["content"] or ""
        return EngineReply(text, choice["finish_reason"] or "stop", meter.usage, None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise EngineUnavailable(f"{engine.label} answered nonsense: {engine.quote(content)!r}") from exc
