"""Reads an engine's bytes: a reply that comes whole, and a streamed one of one choice or of several.

Several choices share a request. vLLM counts the tokens of each while it streams, and the prompt once. So the first
choice that has not ended carries the prompt and whatever no other carries: the sum is the engine's count at any time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import ValidationError, from_json

from app.deliberation.budget import tokens_of
from app.deliberation.calls import Call, Usage
from app.deliberation.errors import EngineUnavailable
from app.deliberation.specification import Structured

# How much of an engine's reply goes into an error.
DETAIL_CHARACTERS = 300

OnText = Callable[[str], Coroutine[Any, Any, None]]


class Replying(Protocol):
    """The engine that replies, as errors name and quote it."""

    @property
    def label(self) -> str: ...

    def quote(self, content: bytes) -> str: ...


@dataclass(slots=True)
class EngineReply:
    text: str
    finish_reason: str
    usage: Usage
    ttft_s: float | None
    structured: Structured | None = None
    lenient: tuple[str, ...] = ()


@dataclass(slots=True)
class Meter:
    """The cost of one request so far, as the engine last reported it; kept when the request breaks off."""

    reported: dict[str, Any] | None = None
    estimated: bool = False

    @property
    def usage(self) -> Usage:
        try:
            return Usage() if self.reported is None else _usage(self.reported)
        except (KeyError, TypeError, AttributeError, ValidationError):
            return Usage()

    def estimate(self, call: Call, text: str) -> None:
        prompt = sum(tokens_of(message.content) for message in call.messages)
        self.reported = {"prompt_tokens": prompt, "completion_tokens": tokens_of(text)}
        self.estimated = True


def _usage(reported: dict[str, Any]) -> Usage:
    details: dict[str, int] = reported.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=reported["prompt_tokens"],
        completion_tokens=reported.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
    )


def parse_reply(engine: Replying, content: bytes, meter: Meter) -> EngineReply:
    try:
        body = from_json(content)
        meter.reported = body.get("usage")
        choice = body["choices"][0]
        text = choice["message"]["content"] or ""
        return EngineReply(text, choice["finish_reason"] or "stop", meter.usage, None)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
        raise EngineUnavailable(f"{engine.label} answered nonsense: {engine.quote(content)!r}") from exc


@dataclass(eq=False, slots=True)
class StreamedChoice:
    """One choice as it grows: `on_text` gets its text, `meter` holds its cost, and `on_end` gets its reply."""

    call: Call
    trace: str
    on_text: OnText
    meter: Meter
    on_end: Callable[[EngineReply], None] | None = None
    texts: list[str] = field(default_factory=list[str])
    piece: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    ttft_s: float | None = None


class StreamedReply:
    """A reply as it grows. `open` are the choices that have not ended, `structured` is the way of its request.

    `ignored_n`: the engine began fewer choices than it was asked for, or counted no tokens of one.
    """

    def __init__(self, choices: Sequence[StreamedChoice]) -> None:
        self.choices = tuple(choices)
        self.open = list(choices)
        self.structured: Structured | None = None
        self.ignored_n = False
        self.heard: Callable[[], None] | None = None
        self.began_s = 0.0
        self._usage: dict[str, Any] = {}
        self._total: dict[str, Any] | None = None
        self._charged = 0
        self._ended: EngineReply | None = None

    async def read(self, engine: Replying, chunks: AsyncIterator[bytes]) -> EngineReply:
        """Read to `[DONE]`, or until only choices that were left go on; returns the reply of the choice that ends last.

        Raises EngineUnavailable when the stream ends before or is malformed.
        """
        done, rest = False, b""
        async for chunk in chunks:
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            try:
                done = any([self._hear(engine, line) for line in lines if line.startswith(b"data:")])
            finally:
                self._charge()
            await self._publish()
            if done or self._only_left_ones_go_on():
                break
        else:
            raise self._broken_off(engine)
        return self._last(engine)

    def leave(self, choice: StreamedChoice) -> None:
        """Take a choice out: its meter stands, and the rest of its tokens go to another one."""
        if choice in self.open:
            self._charge()
            self.open.remove(choice)
            if self.open:
                choice.meter.reported = {"prompt_tokens": 0, "completion_tokens": choice.tokens}
                self._charged += choice.tokens
                self._charge()

    def _hear(self, engine: Replying, line: bytes) -> bool:
        """Read one `data:` line; whether it was the last."""
        payload = line[5:].strip()
        if payload == b"[DONE]":
            return True
        try:
            event = from_json(payload)
            if "error" in event:
                raise EngineUnavailable(f"{engine.label} failed in mid-stream: {engine.quote(payload)!r}")
            single = len(self.choices) == 1
            usage = event.get("usage")
            if usage:
                self._usage = usage
            if usage and (single or not event["choices"]):
                self._total = usage if single else {**usage, "completion_tokens": int(usage["completion_tokens"])}
            if event["choices"]:
                heard = event["choices"][0]
                choice = self.choices[0 if single else heard["index"]]
                choice.finish_reason = heard.get("finish_reason") or choice.finish_reason
                choice.piece += heard["delta"].get("content") or ""
                choice.tokens = choice.tokens if single or not usage else int(usage["completion_tokens"])
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as exc:
            raise EngineUnavailable(f"{engine.label} streamed nonsense: {engine.quote(payload)!r}") from exc
        return False

    async def _publish(self) -> None:
        """Pass on the text that has come, and end choices that are complete, but for the last one."""
        for choice in list(self.open):
            piece, choice.piece = choice.piece, ""
            if piece:
                if choice.ttft_s is None:
                    choice.ttft_s = asyncio.get_running_loop().time() - self.began_s
                choice.texts.append(piece)
                if self.heard is not None:
                    self.heard()
                await choice.on_text(piece)
            if choice.finish_reason is not None and len(self.open) > 1:
                self._end(choice, choice.finish_reason)

    def _only_left_ones_go_on(self) -> bool:
        waits = all(choice.finish_reason is not None for choice in self.open)
        return waits and any(choice.finish_reason is None for choice in self.choices)

    def _last(self, engine: Replying) -> EngineReply:
        """End the last choice. Choices that were never begun stay open: the engine knows no `n`."""
        begun = [choice for choice in self.open if choice.texts or choice.finish_reason is not None]
        for choice in begun:
            if choice.finish_reason is None:
                raise self._broken_off(engine)
            self._end(choice, choice.finish_reason)
        if self._ended is None:
            raise self._broken_off(engine)
        self.ignored_n |= bool(self.open)
        return self._ended

    def _end(self, choice: StreamedChoice, finish_reason: str) -> None:
        text = "".join(choice.texts)
        if len(self.choices) > 1 and not choice.tokens and text:
            choice.tokens, choice.meter.estimated, self.ignored_n = tokens_of(text), True, True
        self.leave(choice)
        if len(self.choices) > 1 and not self.open and not self._usage:
            choice.meter.estimate(choice.call, text)
        self._ended = EngineReply(text, finish_reason, choice.meter.usage, choice.ttft_s, self.structured)
        if choice.on_end is not None:
            choice.on_end(self._ended)

    def _charge(self) -> None:
        if not self._usage or not self.open:
            return
        first, *others = self.open
        for choice in others:
            choice.meter.reported = {"prompt_tokens": 0, "completion_tokens": choice.tokens}
        if len(self.choices) == 1:
            first.meter.reported = self._total
            return
        elsewhere = self._charged + sum(choice.tokens for choice in others)
        usage = self._total or {**self._usage, "completion_tokens": sum(choice.tokens for choice in self.choices)}
        first.meter.reported = {**usage, "completion_tokens": max(0, usage["completion_tokens"] - elsewhere)}

    def _broken_off(self, engine: Replying) -> EngineUnavailable:
        characters = sum(len(text) for choice in self.choices for text in choice.texts)
        return EngineUnavailable(f"{engine.label} broke its stream off after {characters} characters")
