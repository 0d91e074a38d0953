"""A request's body: its JSON in the engine's dialect, and what an engine's refusals say about that dialect.

Servers word the same refusal differently, so it is read by the names of fields that it mentions. An error about a
length or a bound is no refusal of the field that it mentions.
"""

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from pydantic_core import from_json, to_json

from app.deliberation.calls import Call
from app.deliberation.conversation import chat_messages
from app.deliberation.errors import CallCancelled
from app.deliberation.outputs import json_schema
from app.deliberation.prompts.form import schema_section
from app.deliberation.specification import Structured
from serve_deployments.engine.replies import Meter
from serve_deployments.engine.tool_calls import ToolTurn

STREAM_INTERVAL_TOKENS = 4
# The statuses with which servers refuse a field; a failed chat template is a server's error to some.
REFUSING = frozenset({400, 422, 500, 501})
_READ_CHARACTERS = 4_000
_WEAKER: dict[Structured, Structured] = {"json_schema": "json_object", "json_object": "prompt"}
_OPTIONAL = ("max_tokens", "stream_options", "seed", "temperature", "top_p")
_FIELDS = {name: re.compile(rf"(?<![a-z_]){name}(?![a-z_])") for name in _OPTIONAL}
_STRUCTURED = re.compile(r"response[_ ](?:format|schema)|json[_ ](?:schema|object|mode)|structured output|grammar")
_SYSTEM = re.compile(r"system (?:role|message|prompt)")
# vLLM without a tool parser, llama.cpp's server without a template, Ollama, and others.
_TOOLS = re.compile(r"tool[_ -]choice|(?<![a-z_])tools?(?![a-z_])|tool[_ -]call|function[_ -]call")
_TOOLS_REFUSED = re.compile(
    r"requires|not supported|no support|not enabled|t support|"
    # A schema or a conversation of tools that the engine does not take.
    r"invalid schema for function|invalid_function_parameters|function\.parameters|without .{0,4}tools"
)
_REFUSED = re.compile(
    r"unsupported|not support|unknown|unrecogni|unexpected|extra (?:inputs|fields)|extra_forbidden|not permitted|"
    r"not allowed|not available|unavailable|leave it unset|input should be '|"
    r"only .{1,40} (?:is|are) (?:allowed|supported)|cannot both be|only one of"
)
_BOUND = re.compile(
    r"context (?:length|size|window)|too (?:large|long|many)|exceed|greater than|less than|at (?:most|least)"
)
# The parts of an error that say something; others may repeat what was sent.
_SAYING = ("error", "message", "detail", "msg", "type", "param")
_PARTS_MAX = 16

BeforeSending = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of requests to one model of an engine: how an answer gets its form, and the fields that it lacks.

    Without `max_tokens` an engine gets `max_completion_tokens`; without `system` the user's first message carries those
    messages. `schema` is the one beside `json_object`. Other fields that it lacks are left out.
    """

    structured: Structured = "json_schema"
    lacking: frozenset[str] = frozenset()

    def weaker(self) -> Self | None:
        weaker = _WEAKER.get(self.structured)
        return weaker and replace(self, structured=weaker)

    def without(self, refused: frozenset[str], *, fixed: bool) -> Self | None:
        """The dialect without refused fields; None when it had none of them. A `fixed` form of answers stays."""
        lacking = replace(self, lacking=self.lacking | (refused - {"response_format"}))
        weaker: Self | None = None
        if "response_format" in refused and self.structured == "json_object" and "schema" not in self.lacking:
            # Some engines take no schema there, and do not say that it is the schema which they refuse.
            weaker = replace(lacking, lacking=lacking.lacking | {"schema"})
        elif "response_format" in refused and not fixed:
            weaker = lacking.weaker()
        changed = weaker or lacking
        return None if changed == self else changed


VLLM = Dialect()
"""The dialect of vLLM, which takes every field."""


# Long by the fields of the dialects, of which each is one line.
def request_body(
    call: Call,
    model: str,
    seed: int,
    *,
    stream: bool,
    salt: str | None = None,
    priority: int | None = None,
    dialect: Dialect = VLLM,
    shows_schema: bool = False,
    turn: ToolTurn | None = None,
) -> bytes:
    """The JSON of a chat completion, from an allow-list of fields: no field of a gateway's client passes through.

    `salt` (of the tenant) and `priority` add vLLM's own fields; they are None for engines that might refuse them. With
    a `turn` the prompt goes on with what tools returned, and its tools are offered in place of the answer's form.
    """
    native = "tools" not in dialect.lacking
    body: dict[str, Any] = {"model": model, "messages": _messages(call, dialect, shows_schema=shows_schema, turn=turn)}
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
    offers = turn is not None and bool(turn.offered)
    form = turn.schema if turn is not None and offers else json_schema(call.output)
    if turn is not None and offers and native:
        body["tools"] = turn.fields
    match dialect.structured:
        case _ if offers and native:
            pass
        case "json_schema":
            schema = {"name": "tool" if offers else call.output.kind, "schema": form, "strict": not offers}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        case "json_object":
            # A grammar to llama-cpp-python and some hosted engines; others refuse or ignore it.
            shown = {} if "schema" in dialect.lacking else {"schema": form}
            body["response_format"] = {"type": "json_object", **shown}
        case "prompt":
            pass
    if salt is not None:
        # A prefix cached by another tenant's request would answer sooner, and so reveal that request.
        body["cache_salt"] = salt
    if priority is not None:
        body["priority"] = priority
    if stream:
        body["stream"] = True
        if salt is not None and "stream_options" in body:
            # With every chunk, so that a request that breaks off is charged for what it had written.
            body["stream_options"]["continuous_usage_stats"] = True
        if salt is not None:
            # The first token still comes at once; the rest comes in chunks, which saves most of the parsing.
            body["stream_interval"] = STREAM_INTERVAL_TOKENS
    return to_json(body)


def _messages(call: Call, dialect: Dialect, *, shows_schema: bool, turn: ToolTurn | None) -> list[dict[str, Any]]:
    messages = _in_turns(call)
    if turn is not None:
        messages[-1]["content"] += turn.section
    if shows_schema or dialect.structured != "json_schema":
        messages[-1]["content"] += schema_section(json_schema(call.output))
    if "system" in dialect.lacking:
        messages = _merged(("user" if told["role"] == "system" else told["role"], told["content"]) for told in messages)
    if turn is not None:
        native = "tools" not in dialect.lacking
        messages += turn.messages(native=native)
        if turn.offered and not native:
            messages[-1]["content"] += turn.listing
    if pictures := [url for message in call.messages for url in message.pictures]:
        _show(pictures, messages)
    return messages


def _in_turns(call: Call) -> list[dict[str, Any]]:
    """The messages, with those of a conversation in their order.

    Chat templates of some models demand that user and assistant take turns, so that messages of one role in a row are
    one where there is a conversation.
    """
    if all(message.turns == 1 for message in call.messages):
        return [{"role": message.role, "content": message.content} for message in call.messages]
    said, begin = list[tuple[str, str]](), 0
    for message in call.messages:
        if message.turns == 1:
            said.append((message.role, message.content))
        else:
            begin = len(said)
            said += chat_messages(message.content, message.turns)
    if begin:
        # What a conversation's system says first follows the council's rules.
        end = next((place for place in range(begin, len(said)) if said[place][0] != "system"), len(said))
        said = [said[0], *said[begin:end], *said[1:begin], *said[end:]]
    return _merged(said)


def _merged(said: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    merged = list[dict[str, Any]]()
    for role, text in said:
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] += f"\n\n{text}"
        else:
            merged.append({"role": role, "content": text})
    return merged


def _show(pictures: Iterable[str], messages: Iterable[dict[str, Any]]) -> None:
    """Put pictures before the text of the user's first message, where other prompts have the same ones."""
    first = next(message for message in messages if message["role"] == "user")
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    first["content"] = [*shown, {"type": "text", "text": first["content"]}]


@dataclass(slots=True)
class RequestBody:
    """A request's body, which `before_sending` may refuse after the connection was made, right before it is written.

    It is lost after `silence_s` without a byte. One that `yields` may wait in the engine's queue behind all others.
    """

    content: bytes
    before_sending: BeforeSending | None
    meter: Meter
    silence_s: float
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
        self.meter.sent_bytes = len(self.content)
        yield self.content


def failed_generation(content: bytes) -> str | None:
    """The text that Groq quotes within an error, because it breaks its form; None for another error."""
    try:
        text: object = from_json(content)["error"]["failed_generation"]
    except (ValueError, TypeError, LookupError):
        return None
    return text if isinstance(text, str) else None


def refused_fields(status: int, content: bytes) -> frozenset[str]:
    if status not in REFUSING:
        return frozenset()
    text = " ".join(_words(content))[:_READ_CHARACTERS].lower()
    refused: set[str] = {"response_format"} if _STRUCTURED.search(text) and (status < 500 or _refuses(text)) else set()
    if _refuses(text):
        refused |= {name for name, pattern in _FIELDS.items() if pattern.search(text)}
        # Claude takes one of the two.
        refused -= {"temperature"} if "top_p" in refused and "both" in text else set()
        refused |= {"system"} if _SYSTEM.search(text) else set()
    if _TOOLS.search(text) and (_refuses(text) or _TOOLS_REFUSED.search(text)):
        refused.add("tools")
    return frozenset(refused)


def _refuses(text: str) -> bool:
    return _REFUSED.search(text) is not None and _BOUND.search(text) is None


def _words(content: bytes) -> Iterator[str]:
    """The sentences of an error, and the names of the fields that it is about; never what was sent."""
    try:
        body: Any = from_json(content)
    except ValueError:
        yield content.decode(errors="replace")
        return
    waiting = [body]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            named = cast("dict[str, Any]", part)
            waiting += [named[name] for name in _SAYING if name in named]
            if isinstance(named.get("loc"), list):
                waiting.append(".".join(map(str, named["loc"])))
        elif isinstance(part, list):
            waiting += cast("list[Any]", part)[:_PARTS_MAX]
