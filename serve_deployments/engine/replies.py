"""Reads an engine's reply as the field's own clients do, whatever form it comes in.

A stream and a whole completion are read alike, so that one is taken where the other was asked for. Events without
choices, unknown fields, and fields that are null change nothing. A reply is complete once each choice has a finish
reason; what comes after it takes nothing away. All that is read has a bound in bytes.

Several choices share a request. vLLM counts the tokens of each while it streams, and the prompt once. So the first
choice that has not ended carries the prompt and whatever no other carries: the sum is the engine's count at any time.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import aiohttp
import httpx
from pydantic_core import from_json

from app.deliberation.budget import BYTES_PER_TOKEN, tokens_of
from app.deliberation.calls import Call, Usage
from app.deliberation.errors import EngineUnavailable
from app.deliberation.specification import Structured
from app.sse import EventTooLong, SseDecoder
from serve_deployments.engine.tool_calls import ToolCall, ToolCallsHeard

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
    choices: int = 1
    sent_bytes: int = 0
    written_bytes: int = 0
    carries_prompt: bool = True
    guessed: bool = False
    reported: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def usage(self) -> Usage:
        return self._counts()[0]

    @property
    def estimated(self) -> bool:
        return self._counts()[1]

    def carry(self, completion: int) -> None:
        """Record the tokens of one of several choices, without the prompt."""
        self.carries_prompt, self.reported = False, {"completion_tokens": completion}

    def _counts(self) -> tuple[Usage, bool]:
        if not self.sent_bytes or self.call is None:
            return Usage(), False
        details: dict[str, Any] = {}
        if isinstance(given := self.reported.get("prompt_tokens_details"), dict):
            details = cast("dict[str, Any]", given)
        prompt = 0
        if self.carries_prompt:
            prompt = _count(self.reported.get("prompt_tokens"), self.sent_bytes + TEMPLATE_TOKENS_MAX)
        completion = _count(self.reported.get("completion_tokens"), self.choices * self.call.max_tokens)
        # DeepSeek and Moonshot count cached tokens beside the details.
        claimed = (details.get("cached_tokens"), *map(self.reported.get, ("prompt_cache_hit_tokens", "cached_tokens")))
        cached = None if prompt is None else _count(next(filter(None, claimed), 0), prompt)
        estimated = self.guessed
        if not prompt and self.carries_prompt:
            prompt, cached, estimated = sum(tokens_of(message.content) for message in self.call.messages), 0, True
        if completion is None or (completion == 0 and self.written_bytes):
            completion, estimated = self.written_bytes // BYTES_PER_TOKEN + 1, True
        usage = Usage(prompt_tokens=prompt or 0, completion_tokens=completion, cached_tokens=cached or 0)
        return usage, estimated or (cached is None and self.carries_prompt)


@dataclass(eq=False, slots=True)
class StreamedChoice:
    """One choice as it grows: `on_text` gets its text, `meter` holds its cost, and `on_end` gets its reply."""

    call: Call
    trace: str
    on_text: OnText | None
    meter: Meter
    on_end: Callable[[EngineReply], None] | None = None
    texts: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    # The arguments of the first tool. Where no tool is offered, its arguments can only be the answer.
    arguments: list[str] = field(default_factory=list[str])
    # Tool calls, where tools are offered.
    tool_calls: ToolCallsHeard | None = None
    refusal: str = ""
    remark: str = ""
    piece: str = ""
    tokens: int = 0
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
    def calls(self) -> bool:
        """Whether a tool call has begun."""
        return bool(self.arguments or (self.tool_calls is not None and self.tool_calls.calls))

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take a delta, or the message of a whole completion."""
        content = message.get("content")
        if isinstance(content, str):
            self.piece += content
            if len(message) == 1:
                return
        elif isinstance(content, list):
            for part in cast("list[object]", content):
                self._hear_part(part)
        elif isinstance(content, dict):
            # Some engines parse the answer, and forget to write it as a text again.
            self.piece += json.dumps(content, ensure_ascii=False)
        if self.tool_calls is not None:
            self._written(self.tool_calls.hear(message))
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

    def _hear_part(self, part: object) -> None:
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

    def take(self) -> str:
        """Returns the text that has come since, within its bound; whole characters only."""
        piece, self.piece = self.piece, ""
        if self.half:
            piece, self.half = self.half + piece, ""
        try:
            size = len(piece) if piece.isascii() else len(piece.encode())
        except UnicodeEncodeError:
            if "\ud800" <= piece[-1] <= "\udbff" and self.finish_reason is None:
                piece, self.half = piece[:-1], piece[-1]
            piece = _whole(piece)
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
            text, lenient = _whole("".join(self.arguments)), ("wrapper",)
        if not text and (self.refusal or reason == "refusal"):
            said = f": {json.dumps(_whole(self.refusal), ensure_ascii=False)}" if self.refusal else ""
            withheld = f"the model refused{said}"
        elif reason == "content_filter":
            withheld = f"a content filter of the engine stopped the answer after {len(text)} characters"
        elif reason == "length" and not remark:
            remark = self._why_cut()
        elif reason in _TOOLS and self.tool_calls is None:
            remark = "the model called a tool in place of an answer"
        reasoning = _whole("".join(self.reasoning))
        usage = self.meter.usage
        tool_calls = () if self.tool_calls is None or withheld else self.tool_calls.calls
        return EngineReply(
            text, reason, usage, self.ttft_s, structured, reasoning, withheld, remark, lenient, tool_calls
        )

    def _why_cut(self) -> str:
        usage, most = self.meter.usage, self.call.max_tokens
        if not self.meter.estimated and 0 < usage.completion_tokens < most and self.meter.choices == 1:
            return (
                f"the engine stopped at {usage.completion_tokens:,} of {most:,} tokens: its context is full after a "
                f"prompt of {usage.prompt_tokens:,}; ask for less, or serve the model with a longer context"
            )
        return f"the answer was cut off at max_tokens={most}; raise sampling.max_tokens, or ask for less"


def _reason(given: object) -> str:
    """Returns one word for the finish reasons of different engines."""
    if not isinstance(given, str):
        return "stop"
    word = _whole(given).lower()[:_REASON_CHARACTERS]
    return "length" if word in _LENGTH else "content_filter" if _FILTERED.search(word) else word


def _arguments(message: Mapping[str, Any]) -> str:
    """Returns the arguments of the first tool that a message calls."""
    try:
        call: Any = (message.get("tool_calls") or [{"function": message.get("function_call")}])[0]
        given: Any = call["function"]["arguments"] or ""
        if call.get("index"):
            return ""
    except (AttributeError, LookupError, TypeError):
        return ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _whole(text: str) -> str:
    """Returns a text with its surrogate pairs joined; half of one, which no fact can hold, is replaced."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _parsed(payload: str | bytes) -> Any:  # noqa: ANN401 -- a JSON value
    try:
        return from_json(payload)
    except ValueError:
        # Half of a surrogate pair, and control characters within a text; both are left to their reader.
        try:
            return json.loads(payload, strict=False)
        except RecursionError as exc:
            raise ValueError("too deep") from exc


class StreamedReply:
    """A reply as it grows. `open` are the choices that have not ended, `structured` is the way of its request.

    `ignored_n`: the engine began fewer choices than it was asked for, or counted no tokens of one.
    """

    def __init__(self, choices: Sequence[StreamedChoice]) -> None:
        self.choices = tuple(choices)
        self.open = list(choices)
        self._only = choices[0] if len(choices) == 1 else None
        self.structured: Structured | None = None
        self.ignored_n = False
        self.began_s = 0.0
        self._silence: asyncio.Timeout | None = None
        self._idle_s: float | None = None
        self._usage: dict[str, Any] = {}
        self._total: dict[str, Any] | None = None
        self._charged = 0
        self._ended: EngineReply | None = None
        self._heard_events = False
        self._beginning = b""
        self._events = 0
        tokens_max = sum(choice.call.max_tokens for choice in choices)
        self.bytes_max = REPLY_BYTES_MIN + REPLY_BYTES_PER_TOKEN * tokens_max
        self.document_bytes_max = DOCUMENT_BYTES_MIN + DOCUMENT_BYTES_PER_TOKEN * tokens_max
        self.events_max = EVENTS_MIN + EVENTS_PER_TOKEN * tokens_max
        for choice in choices:
            choice.meter.call, choice.meter.choices = choice.call, len(choices)

    async def read(self, engine: Replying, chunks: AsyncIterator[bytes], *, idle_s: float | None = None) -> EngineReply:
        """Read to the end, or until only choices that were left go on; returns the reply of the choice that ends last.

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
                            return self._last(engine)
                        began, self._beginning = True, chunk[:DETAIL_CHARACTERS]
                    if await self._take(engine, decoder, chunk):
                        return self._last(engine)
                # The last event may lack its blank line.
                await self._take(engine, decoder, b"\n\n")
        except _AFTER_THE_END as failure:
            if not self._complete:
                if isinstance(failure, EventTooLong):
                    raise EngineUnavailable(f"{engine.label} streamed nonsense: {failure}") from failure
                raise
            # Publish the text that came right before the failure.
            await self._publish()
        return self._last(engine)

    async def generated(self, engine: Replying, text: str) -> EngineReply:
        """The reply of an engine that quotes a text of the wrong form within an error."""
        self.choices[0].piece = text
        self.choices[0].finish("stop")
        await self._publish()
        return self._last(engine)

    @property
    def _complete(self) -> bool:
        begun = [choice for choice in self.open if choice.texts or choice.finish_reason is not None]
        return bool(begun) and all(choice.finish_reason is not None for choice in begun)

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
        try:
            self._hear(engine, body)
        finally:
            self._charge()
        for choice in self.open:
            if not choice.finish_reason and (choice.piece or choice.reasoning or choice.calls or choice.refusal):
                choice.finish("stop")
        if not any(choice.finish_reason for choice in self.choices):
            raise self._nonsense(engine, bytes(content), "answered nonsense")
        await self._publish()

    async def _take(self, engine: Replying, decoder: SseDecoder, chunk: bytes) -> bool:
        """Take the events of a chunk; returns whether no more is to be read."""
        done = False
        try:
            if decoder.between_events:
                chunk = await self._hear_whole_events(engine, chunk)
            for frame in decoder.feed(chunk) if chunk else ():
                if frame.event == "error":
                    self._fail(engine, frame.fields() or frame.data)
                if frame.data:
                    done |= await self._hear_event(engine, frame.data)
        finally:
            self._charge()
        await self._publish()
        if done:
            return True
        if self.open and self.open[0].finish_reason is not None and self._complete:
            if any(choice.remark for choice in self.choices):
                return True
            if self._silence is not None:
                self._silence.reschedule(asyncio.get_running_loop().time() + END_WITHIN_S)
        return self._only is None and self._only_left_ones_go_on()

    def leave(self, choice: StreamedChoice) -> None:
        """Take a choice out: its meter stands, and the rest of its tokens go to another one."""
        if choice in self.open:
            self._charge()
            self.open.remove(choice)
            if self.open:
                choice.meter.carry(choice.tokens)
                self._charged += choice.tokens
                self._charge()

    async def _hear_whole_events(self, engine: Replying, chunk: bytes) -> bytes:
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
            if self._only is None or not self._hear_piece(self._only, event):
                self._hear(engine, event)
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

    async def _hear_event(self, engine: Replying, data: str) -> bool:
        """Read the data of one event; returns whether it was the last."""
        self._events += 1
        if self._events % EVENTS_AT_ONCE == 0:
            await self._let_others_run(engine)
        payload = data.strip()
        if payload == "[DONE]":
            return True
        try:
            event = _parsed(payload) if payload else None
        except ValueError as exc:
            lines = payload.split("\n")
            if len(lines) > 1:
                # Some engines leave the blank line between two events out.
                return any([await self._hear_event(engine, line) for line in lines])
            if payload[:1] in "{[":
                raise self._nonsense(engine, payload.encode("utf-8", "replace"), "streamed nonsense") from exc
            return False
        self._hear(engine, event)
        return False

    def _hear_piece(self, choice: StreamedChoice, event: Any) -> bool:  # noqa: ANN401 -- a JSON value
        """Take an event of nothing but a piece of text and the usage, as most are; returns whether it was one."""
        try:
            given = event["choices"][0]
            delta, usage = given["delta"], event.get("usage")
            piece = delta["content"]
            plain = event["object"] == "chat.completion.chunk" and "error" not in event and "type" not in event
            if not plain or given.get("finish_reason") or len(delta) != 1 or type(piece) is not str:
                return False
        except (AttributeError, IndexError, KeyError, TypeError):
            return False
        choice.piece += piece
        self._heard_events = True
        if usage and type(usage) is dict:
            self._usage = self._total = usage
        return True

    def _hear(self, engine: Replying, event: Any) -> None:  # noqa: ANN401 -- a JSON value
        if not isinstance(event, dict):
            return
        self._heard_events = True
        heard = cast("dict[str, Any]", event)
        if (error := heard.get("error")) or heard.get("object") == "error" or heard.get("type") == "error":
            self._fail(engine, error or heard)
        single, choices = self._only is not None, heard.get("choices")
        usage: Any = heard.get("usage")
        if usage and isinstance(usage, dict):
            self._usage = usage
            if single or not choices:
                self._total = self._usage
        if choices and isinstance(choices, list):
            listed = cast("list[dict[str, Any]]", choices)
            for given in listed[:1] if single else listed:
                # An engine may list anything.
                if isinstance(given, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                    self._hear_choice(engine, given, single=single)

    def _hear_choice(self, engine: Replying, heard: dict[str, Any], *, single: bool) -> None:
        index = 0 if single else heard.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < len(self.choices):
            return
        choice = self.choices[index]
        delta: Any = heard.get("delta")
        if isinstance(delta, dict):
            choice.hear(cast("dict[str, Any]", delta))
        elif isinstance(message := heard.get("message"), dict) and not (choice.texts or choice.piece or choice.calls):
            choice.hear(cast("dict[str, Any]", message))
        elif isinstance(text := heard.get("text"), str):
            choice.piece += text
        if not single and self._usage:
            choice.tokens = _count(self._usage.get("completion_tokens"), choice.call.max_tokens) or choice.tokens
        reason = heard.get("finish_reason")
        if not reason or reason in _NO_REASON:
            return
        if single and isinstance(usage := heard.get("usage"), dict):
            # Moonshot puts the usage here.
            self._total = self._total or cast("dict[str, Any]", usage)
        if _reason(reason) not in _BROKEN:
            choice.finish(reason)
        elif not choice.finish_reason:
            self._fail(engine, heard)

    def _fail(self, engine: Replying, error: object) -> None:
        begun = any(choice.texts or choice.piece or choice.reasoning or choice.calls for choice in self.choices)
        what = "failed in mid-stream" if begun else "answered an error with status 200"
        said = json.dumps(error, ensure_ascii=False).encode("utf-8", "replace")
        detail = f"{engine.label} {what}: {engine.quote(said)!r}"
        if not begun:
            # Refused, although with the status of a success.
            for choice in self.choices:
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
        """Pass on the text that has come, and end choices that are complete, but for the last one."""
        for choice in tuple(self.open):
            comes = choice.piece or (choice.half and choice.finish_reason is not None)
            piece = choice.take() if comes and not choice.remark else ""
            if (piece or choice.thinks) and (choice.ttft_s is None or self._idle_s is not None):
                self._alive(choice)
            if piece:
                choice.texts.append(piece)
                if choice.on_text is not None:
                    await choice.on_text(piece)
            if choice.finish_reason is not None and len(self.open) > 1:
                self._end(choice)

    def _alive(self, choice: StreamedChoice) -> None:
        """Record the time of the first token; each one ends a silence."""
        choice.thinks = False
        now_s = asyncio.get_running_loop().time()
        if choice.ttft_s is None and choice.on_text is not None:
            choice.ttft_s = now_s - self.began_s
        if self._silence is not None and self._idle_s is not None:
            self._silence.reschedule(now_s + self._idle_s)

    def _only_left_ones_go_on(self) -> bool:
        waits = all(choice.finish_reason is not None for choice in self.open)
        return waits and any(choice.finish_reason is None for choice in self.choices)

    def _last(self, engine: Replying) -> EngineReply:
        """End the last choice. Choices that were never begun stay open: the engine knows no `n`."""
        begun = [choice for choice in self.open if choice.texts or choice.finish_reason is not None]
        for choice in begun:
            if choice.finish_reason is None:
                raise self._broken_off(engine)
            self._end(choice)
        if self._ended is None:
            raise self._broken_off(engine)
        self.ignored_n |= bool(self.open)
        return self._ended

    def _end(self, choice: StreamedChoice) -> None:
        if len(self.choices) > 1 and not choice.tokens and choice.texts:
            choice.tokens, choice.meter.guessed, self.ignored_n = tokens_of("".join(choice.texts)), True, True
        self.leave(choice)
        self._ended = choice.reply(self.structured)
        if choice.on_end is not None:
            choice.on_end(self._ended)

    def _charge(self) -> None:
        if not self.open:
            return
        if self._only is not None:
            self._only.meter.carries_prompt = True
            if self._total:
                self._only.meter.reported = self._total
            return
        first, *others = self.open
        first.meter.carries_prompt = True
        for choice in others:
            choice.meter.carry(choice.tokens)
        if not self._usage:
            return
        most = sum(choice.call.max_tokens for choice in self.choices)
        elsewhere = self._charged + sum(choice.tokens for choice in others)
        total = _count(self._total.get("completion_tokens"), most) if self._total else None
        total = sum(choice.tokens for choice in self.choices) if total is None else total
        reported = {**(self._total or self._usage), "completion_tokens": max(0, total - elsewhere)}
        first.meter.reported = reported

    def _broken_off(self, engine: Replying) -> EngineUnavailable:
        if not self._heard_events:
            return self._nonsense(engine, self._beginning, "answered nonsense")
        characters = sum(len(text) for choice in self.choices for text in choice.texts)
        return EngineUnavailable(f"{engine.label} broke its stream off after {characters} characters")
