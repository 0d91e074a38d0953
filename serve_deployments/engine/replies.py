"""Reads an engine's reply as the field's own clients do, whatever form it comes in.

A stream and a whole completion are read alike: an engine may send either, whichever was asked for. Events without
choices, unknown fields, and fields that are null change nothing. A reply is complete once its choice has a finish
reason; what comes after it takes nothing away. [DONE] also completes a reply that ends with a whole object. All that is
read has a bound in bytes.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import aiohttp
import httpx
from pydantic_core import from_json

from app.control_characters import whole_characters
from app.deliberation.budget import BYTES_PER_TOKEN, tokens_of
from app.deliberation.calls import Call, Usage
from app.deliberation.errors import EngineUnavailable
from app.deliberation.json_objects import objects
from app.deliberation.readings import READ_CHARS_MAX
from app.deliberation.specification import Structured
from app.sse import EventTooLong, SseDecoder
from serve_deployments.engine.tool_calls import StreamedToolCalls, ToolCall

# How much of an engine's reply goes into an error.
DETAIL_CHARACTERS = 300
# A reply has at most REPLY_BYTES_MIN and so many bytes for each token: engines repeat much in each chunk.
REPLY_BYTES_MIN = 4 * 1024 * 1024
REPLY_BYTES_PER_TOKEN = 2 * 1024
# One event, and one completion that was not streamed, is parsed at once: each has a smaller bound.
DOCUMENT_BYTES_MIN = 1024 * 1024
DOCUMENT_BYTES_PER_TOKEN = 128
# A stream has about one event for each token. Other calls run after EVENTS_AT_ONCE of them.
EVENTS_MIN = 8_192
EVENTS_PER_TOKEN = 8
EVENTS_AT_ONCE = 256
# Each read of a stream costs a turn of the event loop. A viewer that comes meanwhile waits no longer than this time. A
# chunk of so many bytes is followed by the next at once, since a connection pauses at a full buffer.
UNWATCHED_READ_S = 0.2
UNWATCHED_READ_BYTES_MAX = 8_192
BODY_END = "deliberate.body_end"
"""The name of a response's extension with its `BodyEnd`."""
# A token has about four bytes. A text with four times as many comes from an engine that does not heed `max_tokens`.
TEXT_BYTES_PER_TOKEN = 16
TEXT_BYTES_MIN = 16 * 1024
# Chat templates add tokens to those of the messages.
TEMPLATE_TOKENS_MAX = 4_096
# After the finish reason only the usage and the end are left.
END_WITHIN_S = 5.0
_REASON_CHARACTERS = 40
_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
# Finish reasons of OpenAI, Gemini, Bedrock and others.
_FILTERED = re.compile(r"filter|safety|block|recitation|prohibited|sensitive|spii|guardrail")
_NO_REASON = ("null", "none")
_STATUS = re.compile("[45][0-9][0-9]")
_BROKEN = frozenset({"error", "abort", "aborted"})
_TOOLS = frozenset({"tool_calls", "function_call", "tool_use"})
_AFTER_THE_END = (EngineUnavailable, EventTooLong, TimeoutError, httpx.HTTPError, aiohttp.ClientError)

OnText = Callable[[str], Coroutine[Any, Any, None]]


class ErrorInBody(EngineUnavailable):
    """An error that came with status 200 before any text, and names the `status` that it should have had."""

    def __init__(self, detail: str, status: int, content: bytes) -> None:
        super().__init__(detail)
        self.status = status
        self.content = content


class Replying(Protocol):
    """The engine that replies, as errors name and quote it."""

    @property
    def label(self) -> str: ...

    def quote(self, content: bytes) -> str: ...


@dataclass(slots=True)
class EngineReply:
    """A complete reply. `reasoning` came in fields of its own. `withheld` says why the model gave no answer.

    `tool_calls` are those of tools that the request offered.

    `remark` explains an answer that is missing or cut off, in words for the user; mostly empty.
    """

    text: str
    finish_reason: str
    usage: Usage
    ttft_s: float | None
    structured: Structured | None = None
    reasoning: str = ""
    withheld: str = ""
    remark: str = ""
    lenient: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()


def _count(claimed: object, most: int) -> int | None:
    """Returns a count that an engine claims; None for one that cannot be."""
    # The bounds first: they exclude what is infinite, no number, or too large for a float.
    if isinstance(claimed, bool) or not isinstance(claimed, int | float) or not 0 <= claimed <= most:
        return None
    return int(claimed) if claimed == int(claimed) else None


@dataclass(eq=False, slots=True)
class Meter:
    """The cost of one request so far; kept when it breaks off. An engine's usage is a claim.

    A count that is missing or impossible is estimated. `sent_bytes` is the size of the request's body once it is
    written, and 0 where nothing was sent or the engine refused it.
    """

    call: Call | None = None
    sent_bytes: int = 0
    written_bytes: int = 0
    reported: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def usage(self) -> Usage:
        return self._counts()[0]

    @property
    def estimated(self) -> bool:
        return self._counts()[1]

    def _counts(self) -> tuple[Usage, bool]:
        if not self.sent_bytes or self.call is None:
            return Usage(), False
        details: dict[str, Any] = {}
        if isinstance(reported := self.reported.get("prompt_tokens_details"), dict):
            details = cast("dict[str, Any]", reported)
        prompt = _count(self.reported.get("prompt_tokens"), self.sent_bytes + TEMPLATE_TOKENS_MAX)
        completion = _count(self.reported.get("completion_tokens"), self.call.max_tokens)
        # DeepSeek and Moonshot count cached tokens beside the details.
        claimed = (details.get("cached_tokens"), *map(self.reported.get, ("prompt_cache_hit_tokens", "cached_tokens")))
        cached = None if prompt is None else _count(next(filter(None, claimed), 0), prompt)
        estimated = cached is None
        if not prompt:
            prompt, cached, estimated = sum(tokens_of(message.content) for message in self.call.messages), 0, True
        if completion is None or (completion == 0 and self.written_bytes):
            completion, estimated = self.written_bytes // BYTES_PER_TOKEN + 1, True
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached or 0), estimated


@dataclass(eq=False, slots=True)
class StreamedChoice:
    """The choice of a reply as it grows: `on_text` gets its text, and `meter` holds its cost."""

    call: Call
    trace: str
    on_text: OnText | None
    meter: Meter
    # Whether a viewer reads the text. None counts as true.
    is_watched: Callable[[], bool] | None = None
    texts: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    # The arguments of the first tool. Where no tool is offered, its arguments can only be the answer.
    arguments: list[str] = field(default_factory=list[str])
    # Tool calls, where tools are offered.
    tool_calls: StreamedToolCalls | None = None
    refusal: str = ""
    remark: str = ""
    piece: str = ""
    finish_reason: str | None = None
    ttft_s: float | None = None
    # Half of a character that an engine's chunks cut in two.
    half: str = ""
    # Whether reasoning has come since the last text.
    thinks: bool = False
    bytes_max: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes_max = max(TEXT_BYTES_MIN, TEXT_BYTES_PER_TOKEN * self.call.max_tokens)

    @property
    def is_closed(self) -> bool:
        """Whether it ends with a whole object, or with tool calls whose arguments are whole."""
        if self.tool_calls is not None and self.tool_calls.calls:
            return self.tool_calls.are_whole
        text = "".join(self.texts) or "".join(self.arguments)
        ended = objects(text[-READ_CHARS_MAX:])
        return bool(ended) and ended[-1].end > text[-READ_CHARS_MAX:].rfind("{")

    @property
    def calls(self) -> bool:
        """Whether a tool call has begun."""
        return bool(self.arguments or (self.tool_calls is not None and self.tool_calls.calls))

    def feed(self, message: Mapping[str, Any]) -> None:
        """Take a delta, or the message of a whole completion."""
        content = message.get("content")
        if isinstance(content, str):
            self.piece += content
            if len(message) == 1:
                return
        elif isinstance(content, list):
            for part in cast("list[object]", content):
                self._feed_part(part)
        elif isinstance(content, dict):
            # Some engines parse the answer, and forget to write it as a text again.
            self.piece += json.dumps(content, ensure_ascii=False)
        if self.tool_calls is not None:
            self._written(self.tool_calls.feed(message))
        elif (message.get("tool_calls") or message.get("function_call")) and (arguments := _arguments(message)):
            self.arguments.append(arguments)
            self._written(len(arguments.encode("utf-8", "replace")))
        for name in ("reasoning_content", "reasoning"):
            if isinstance(thought := message.get(name), str) and thought:
                self._think(thought)
                # Some engines send both fields with one text.
                break
        if isinstance(refusal := message.get("refusal"), str):
            self.refusal = (self.refusal + refusal)[:DETAIL_CHARACTERS]

    def _feed_part(self, part: object) -> None:
        if isinstance(part, str):
            self.piece += part
        elif isinstance(part, dict):
            named = cast("dict[str, Any]", part)
            if isinstance(text := named.get("text"), str) and named.get("type") in (None, "text", "output_text"):
                self.piece += text
            elif isinstance(refusal := named.get("refusal"), str):
                self.refusal = (self.refusal + refusal)[:DETAIL_CHARACTERS]
            elif isinstance(thought := named.get("thinking") or named.get("text"), str):
                self._think(thought)

    def _think(self, thought: str) -> None:
        self.thinks = True
        self.reasoning.append(thought)
        self._written(len(thought.encode("utf-8", "replace")))

    def _written(self, size: int) -> int:
        """Count bytes of text or reasoning; returns how many of them are beyond the bound, which ends the choice."""
        self.meter.written_bytes += size
        beyond = self.meter.written_bytes - self.bytes_max
        if beyond <= 0:
            return 0
        self.finish_reason, self.half = "length", ""
        self.remark = (
            f"the engine wrote more than max_tokens={self.call.max_tokens:,} can mean, and was cut off after "
            f"{self.bytes_max:,} bytes"
        )
        return beyond

    def pop_text(self) -> str:
        """Returns the text that has come since, within its bound; whole characters only."""
        piece, self.piece = self.piece, ""
        if self.half:
            piece, self.half = self.half + piece, ""
        try:
            size = len(piece) if piece.isascii() else len(piece.encode())
        except UnicodeEncodeError:
            if "\ud800" <= piece[-1] <= "\udbff" and self.finish_reason is None:
                piece, self.half = piece[:-1], piece[-1]
            piece = whole_characters(piece)
            size = len(piece.encode())
        if beyond := self._written(size):
            piece = piece.encode()[: max(0, size - beyond)].decode(errors="ignore")
        return piece

    def finish(self, reason: object) -> None:
        """Take a finish reason. The last one counts, but for a choice that was cut off here."""
        if not self.remark:
            self.finish_reason = _reason(reason)

    def reply(self, structured: Structured | None) -> EngineReply:
        text, reason = "".join(self.texts), self.finish_reason or "stop"
        remark, withheld, lenient = self.remark, "", ()
        if not text and self.arguments:
            text, lenient = whole_characters("".join(self.arguments)), ("wrapper",)
        if not text and (self.refusal or reason == "refusal"):
            said = f": {json.dumps(whole_characters(self.refusal), ensure_ascii=False)}" if self.refusal else ""
            withheld = f"the model refused{said}"
        elif reason == "content_filter":
            withheld = f"a content filter of the engine stopped the answer after {len(text)} characters"
        elif reason == "length" and not remark:
            remark = self._why_cut()
        elif reason in _TOOLS and self.tool_calls is None:
            remark = "the model called a tool in place of an answer"
        reasoning = whole_characters("".join(self.reasoning))
        usage = self.meter.usage
        tool_calls = () if self.tool_calls is None or withheld else self.tool_calls.calls
        return EngineReply(
            text, reason, usage, self.ttft_s, structured, reasoning, withheld, remark, lenient, tool_calls
        )

    def _why_cut(self) -> str:
        usage, most = self.meter.usage, self.call.max_tokens
        if not self.meter.estimated and 0 < usage.completion_tokens < most:
            return (
                f"the engine stopped at {usage.completion_tokens:,} of {most:,} tokens: its context is full after a "
                f"prompt of {usage.prompt_tokens:,}; ask for less, or serve the model with a longer context"
            )
        return f"the answer was cut off at its limit of {most:,} tokens; raise that limit, or ask for less"


def _reason(reason: object) -> str:
    """Returns one word for the finish reasons of different engines."""
    if not isinstance(reason, str):
        return "stop"
    word = whole_characters(reason).lower()[:_REASON_CHARACTERS]
    return "length" if word in _LENGTH else "content_filter" if _FILTERED.search(word) else word


def _arguments(message: Mapping[str, Any]) -> str:
    """Returns the arguments of the first tool that a message calls."""
    try:
        call: Any = (message.get("tool_calls") or [{"function": message.get("function_call")}])[0]
        arguments: Any = call["function"]["arguments"] or ""
        if call.get("index"):
            return ""
    except (AttributeError, LookupError, TypeError):
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _parsed(payload: str | bytes) -> Any:  # noqa: ANN401 -- a JSON value
    try:
        return from_json(payload)
    except ValueError:
        # Half of a surrogate pair, and control characters within a text; both are left to their reader.
        try:
            return json.loads(payload, strict=False)
        except RecursionError as exc:
            raise ValueError("too deep") from exc


class BodyEnd:
    """The end of a body, which may have come before all of it was read."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._has_come = False

    def come(self) -> None:
        self._has_come = True
        self._changed.set()

    async def wait(self, within_s: float) -> None:
        """Return at the end, or once the time is over."""
        if not self._has_come:
            # Without asyncio.timeout, which costs an exception.
            self._changed.clear()
            timer = asyncio.get_running_loop().call_later(within_s, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()


class StreamedReply:
    """A reply as it grows. `structured` is the way of its request."""

    def __init__(self, choice: StreamedChoice) -> None:
        self.choice = choice
        self.structured: Structured | None = None
        self.began_s = 0.0
        self._silence: asyncio.Timeout | None = None
        self._idle_s: float | None = None
        self._has_events = False
        # The engine wrote [DONE].
        self._done = False
        # The latest event that was no chunk: where the reply breaks off, it may say why.
        self._stray: str = ""
        self._beginning = b""
        self._events = 0
        tokens_max = choice.call.max_tokens
        self.bytes_max = REPLY_BYTES_MIN + REPLY_BYTES_PER_TOKEN * tokens_max
        self.document_bytes_max = DOCUMENT_BYTES_MIN + DOCUMENT_BYTES_PER_TOKEN * tokens_max
        self.events_max = EVENTS_MIN + EVENTS_PER_TOKEN * tokens_max
        choice.meter.call = choice.call

    async def read(
        self,
        engine: Replying,
        chunks: AsyncIterator[bytes],
        *,
        idle_s: float | None = None,
        end: BodyEnd | None = None,
    ) -> EngineReply:
        """Read to the end; by `end` an unwatched text is read in few pieces.

        Raises EngineUnavailable for a reply that is incomplete, unreadable or too long. Raises TimeoutError after
        `idle_s` without a text, if given, from the first text on.
        """
        decoder, size, began = SseDecoder(self.document_bytes_max), 0, False
        self._idle_s = idle_s
        try:
            async with asyncio.timeout(None) as self._silence:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self.bytes_max:
                        raise EngineUnavailable(f"{engine.label} sent more than {self.bytes_max:,} bytes")
                    if not began:
                        if not (chunk := chunk.removeprefix(b"\xef\xbb\xbf").lstrip()):
                            continue
                        if chunk[:1] in b"{[<":
                            await self._read_whole(engine, chunk, chunks)
                            return self._whole_reply(engine)
                        began, self._beginning = True, chunk[:DETAIL_CHARACTERS]
                    if await self._feed_chunk(engine, decoder, chunk):
                        return self._whole_reply(engine)
                    if end is not None and len(chunk) < UNWATCHED_READ_BYTES_MAX and self._is_unwatched:
                        try:
                            await end.wait(UNWATCHED_READ_S)
                        except asyncio.CancelledError:
                            await self._feed_what_came(engine, decoder, chunks)
                            raise
                # The last event may lack its blank line.
                await self._feed_chunk(engine, decoder, b"\n\n")
        except _AFTER_THE_END as failure:
            if self.choice.finish_reason is None:
                if isinstance(failure, EventTooLong):
                    raise EngineUnavailable(f"{engine.label} streamed nonsense: {failure}") from failure
                raise
            # Publish the text that came right before the failure.
            await self._publish()
        return self._whole_reply(engine)

    @property
    def _is_unwatched(self) -> bool:
        """Whether the next piece may wait: no viewer, first token, last event or limit of silence needs it now."""
        choice = self.choice
        may_wait = choice.ttft_s is not None and choice.finish_reason is None and self._idle_s is None
        return may_wait and choice.is_watched is not None and not choice.is_watched()

    async def _feed_what_came(self, engine: Replying, decoder: SseDecoder, chunks: AsyncIterator[bytes]) -> None:
        """Take what waits unread, so that the meter counts it; nothing more is waited for."""
        with suppress(StopAsyncIteration, *_AFTER_THE_END):
            async with asyncio.timeout(0):
                await self._feed_chunk(engine, decoder, await anext(chunks))

    async def generated(self, engine: Replying, text: str) -> EngineReply:
        """The reply of an engine that quotes a text of the wrong form within an error."""
        self.choice.piece = text
        self.choice.finish("stop")
        await self._publish()
        return self._whole_reply(engine)

    async def _read_whole(self, engine: Replying, first: bytes, chunks: AsyncIterator[bytes]) -> None:
        """Read a completion that was not streamed, an error, or a page that a proxy sent in place of either."""
        content = bytearray(first)
        async for chunk in chunks:
            content += chunk
            if len(content) > self.document_bytes_max:
                raise EngineUnavailable(f"{engine.label} sent more than {self.document_bytes_max:,} bytes at once")
        try:
            body = _parsed(bytes(content))
        except ValueError as exc:
            raise self._nonsense(engine, bytes(content), "answered nonsense") from exc
        self._read_document(engine, body)
        choice = self.choice
        if not choice.finish_reason and (choice.piece or choice.reasoning or choice.calls or choice.refusal):
            choice.finish("stop")
        if not choice.finish_reason:
            raise self._nonsense(engine, bytes(content), "answered nonsense")
        await self._publish()

    async def _feed_chunk(self, engine: Replying, decoder: SseDecoder, chunk: bytes) -> bool:
        """Take the events of a chunk; returns whether no more is to be read."""
        done = False
        if decoder.between_events:
            chunk = await self._read_whole_events(engine, chunk)
        for frame in decoder.feed(chunk) if chunk else ():
            if frame.event == "error":
                self._fail(engine, frame.fields() or frame.data)
            if frame.data:
                done |= await self._read_event(engine, frame.data)
        await self._publish()
        if done or self.choice.finish_reason is None:
            return done
        if self._silence is not None:
            self._silence.reschedule(asyncio.get_running_loop().time() + END_WITHIN_S)
        # What was cut off here may go on for ever.
        return bool(self.choice.remark)

    async def _read_whole_events(self, engine: Replying, chunk: bytes) -> bytes:
        """Take whole events of one line of JSON, as most are, without the decoder; returns the rest of the chunk."""
        at = 0
        while chunk.startswith(b"data: ", at):
            end = chunk.find(b"\n", at)
            if not chunk.startswith(b"\n\n", end):
                break
            try:
                event = from_json(chunk[at + 6 : end])
            except ValueError:
                break
            if not self._read_piece(event):
                self._read_document(engine, event)
            at = end + 2
            self._events += 1
            if self._events % EVENTS_AT_ONCE == 0:
                await self._let_others_run(engine)
        return chunk[at:]

    async def _let_others_run(self, engine: Replying) -> None:
        """Serve other calls in between; raises EngineUnavailable beyond the bound of events."""
        if self._events > self.events_max:
            raise EngineUnavailable(f"{engine.label} sent more than {self.events_max:,} events")
        await asyncio.sleep(0)

    async def _read_event(self, engine: Replying, data: str) -> bool:
        """Read the data of one event; returns whether it was the last."""
        self._events += 1
        if self._events % EVENTS_AT_ONCE == 0:
            await self._let_others_run(engine)
        payload = data.strip()
        if payload == "[DONE]":
            self._done = True
            return True
        try:
            event = _parsed(payload) if payload else None
        except ValueError as exc:
            lines = payload.split("\n")
            if len(lines) > 1:
                # Some engines leave the blank line between two events out.
                return any([await self._read_event(engine, line) for line in lines])
            if payload[:1] in "{[":
                raise self._nonsense(engine, payload.encode("utf-8", "replace"), "streamed nonsense") from exc
            self._stray = payload[:DETAIL_CHARACTERS]
            return False
        self._read_document(engine, event)
        return False

    def _read_piece(self, event: Any) -> bool:  # noqa: ANN401 -- a JSON value
        """Take an event of nothing but a piece of text and the usage, as most are; returns whether it was one."""
        try:
            first_choice = event["choices"][0]
            delta, usage = first_choice["delta"], event.get("usage")
            piece = delta["content"]
            plain = event["object"] == "chat.completion.chunk" and "error" not in event and "type" not in event
            if not plain or first_choice.get("finish_reason") or len(delta) != 1 or type(piece) is not str:
                return False
        except (AttributeError, IndexError, KeyError, TypeError):
            return False
        self.choice.piece += piece
        self._has_events = True
        if usage and type(usage) is dict:
            self.choice.meter.reported = usage
        return True

    def _read_document(self, engine: Replying, event: Any) -> None:  # noqa: ANN401 -- a JSON value
        if not isinstance(event, dict):
            if isinstance(event, str):
                self._stray = event[:DETAIL_CHARACTERS]
            return
        self._has_events = True
        document = cast("dict[str, Any]", event)
        if not document.get("choices") and (document.get("detail") or document.get("message")):
            self._stray = json.dumps(event, ensure_ascii=False)[:DETAIL_CHARACTERS]
        if (error := document.get("error")) or document.get("object") == "error" or document.get("type") == "error":
            self._fail(engine, error or document)
        choices, usage = document.get("choices"), document.get("usage")
        if usage and isinstance(usage, dict):
            self.choice.meter.reported = cast("dict[str, Any]", usage)
        # An engine may list anything.
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._read_choice(engine, cast("dict[str, Any]", choices[0]))

    def _read_choice(self, engine: Replying, listed: dict[str, Any]) -> None:
        choice, delta = self.choice, listed.get("delta")
        if isinstance(delta, dict):
            choice.feed(cast("dict[str, Any]", delta))
        elif isinstance(message := listed.get("message"), dict) and not (choice.texts or choice.piece or choice.calls):
            choice.feed(cast("dict[str, Any]", message))
        elif isinstance(text := listed.get("text"), str):
            choice.piece += text
        reason = listed.get("finish_reason")
        if not reason or reason in _NO_REASON:
            return
        if isinstance(usage := listed.get("usage"), dict):
            # Moonshot puts the usage here.
            choice.meter.reported = choice.meter.reported or cast("dict[str, Any]", usage)
        if _reason(reason) not in _BROKEN:
            choice.finish(reason)
        elif not choice.finish_reason:
            self._fail(engine, listed)

    def _fail(self, engine: Replying, error: object) -> None:
        choice = self.choice
        begun = choice.texts or choice.piece or choice.reasoning or choice.calls
        what = "failed in mid-stream" if begun else "answered an error with status 200"
        said = json.dumps(error, ensure_ascii=False).encode("utf-8", "replace")
        detail = f"{engine.label} {what}: {engine.quote(said)!r}"
        if not begun:
            # Refused, although with the status of a success.
            choice.meter.sent_bytes = 0
            code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
            if _STATUS.fullmatch(str(code)):
                raise ErrorInBody(detail, int(str(code)), said)
        raise EngineUnavailable(detail)

    def _nonsense(self, engine: Replying, content: bytes, what: str) -> EngineUnavailable:
        page = content[:1] == b"<"
        return EngineUnavailable(
            f"{engine.label} {'answered a page in place of a completion' if page else what}: {engine.quote(content)!r}"
        )

    async def _publish(self) -> None:
        """Pass on the text that has come."""
        choice = self.choice
        comes = choice.piece or (choice.half and choice.finish_reason is not None)
        piece = choice.pop_text() if comes and not choice.remark else ""
        if (piece or choice.thinks) and (choice.ttft_s is None or self._idle_s is not None):
            self._alive(choice)
        if piece:
            choice.texts.append(piece)
            if choice.on_text is not None:
                await choice.on_text(piece)

    def _alive(self, choice: StreamedChoice) -> None:
        """Record the time of the first token; each one ends a silence."""
        choice.thinks = False
        now_s = asyncio.get_running_loop().time()
        if choice.ttft_s is None and choice.on_text is not None:
            choice.ttft_s = now_s - self.began_s
        if self._silence is not None and self._idle_s is not None:
            self._silence.reschedule(now_s + self._idle_s)

    def _whole_reply(self, engine: Replying) -> EngineReply:
        if self.choice.finish_reason is None and self._done and self.choice.is_closed:
            # Some engines give no reason, null or an empty text.
            self.choice.finish("stop")
        if self.choice.finish_reason is None:
            raise self._broken_off(engine)
        return self.choice.reply(self.structured)

    def _broken_off(self, engine: Replying) -> EngineUnavailable:
        if not self._has_events:
            return self._nonsense(engine, self._beginning, "answered nonsense")
        characters = sum(len(text) for text in self.choice.texts)
        detail = f"{engine.label} broke its stream off after {characters} characters"
        said = engine.quote(self._stray.encode("utf-8", "replace"))
        return EngineUnavailable(f"{detail}, after it said {said!r}" if self._stray else detail)
