"""Sends an answer in vLLM's shape, null fields included: as one body, or as events whose due times are absolute."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from serve_deployments.simulator.faults import FaultKind
from serve_deployments.simulator.script import TokenSchedule
from serve_deployments.simulator.server.completion import CompletionChoice, Generation
from serve_deployments.simulator.server.exchange import Exchange, sleep_until

_QUOTE = json.JSONEncoder(ensure_ascii=False).encode
_DONE = b"data: [DONE]\n\n"


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> str:
    """The JSON of token counts; `cached_tokens` adds those that came from the prefix cache."""
    details = (
        ""
        if cached_tokens is None
        else (
            f',"prompt_tokens_details":{{"cached_tokens":{cached_tokens},"created_cache_tokens":null,'
            '"multimodal_tokens":null},"completion_tokens_details":null'
        )
    )
    return (
        f'{{"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens + completion_tokens},'
        f'"completion_tokens":{completion_tokens}{details}}}'
    )


class ReplySender:
    """Sends one answer, each choice by its schedule; `written` counts the tokens that are due or sent.

    An answer that never ends waits until it is cancelled.
    """

    def __init__(self, exchange: Exchange, generation: Generation, answer_id: str, model: str, cached: int) -> None:
        self._exchange = exchange
        self._generation = generation
        # The fields that every part of the answer repeats.
        self._head = f'"id":{_QUOTE(answer_id)},"created":{int(time.time())},"model":{_QUOTE(model)}'
        self._usage = _usage(generation.prompt_tokens, generation.completion_tokens, cached)
        self.written = 0

    async def send(self) -> bool:
        """Answer as the request asks; False when the scripted fault broke the answer off."""
        if self._generation.fault is FaultKind.HANG:
            await asyncio.Event().wait()
        return await (self._send_stream() if self._generation.request.stream else self._send_whole())

    async def _send_whole(self) -> bool:
        generation, start_s = self._generation, time.monotonic()
        try:
            await sleep_until(start_s + max(each.total_s for each in generation.schedules))
        except asyncio.CancelledError:
            elapsed_s = time.monotonic() - start_s
            self.written = sum(schedule.tokens_due(elapsed_s) for schedule in generation.schedules)
            raise
        self.written = generation.completion_tokens
        choices = ",".join(
            f'{{"index":{choice.index},"message":{{"role":"assistant","content":{_QUOTE(choice.text)},'
            '"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
            f'"finish_reason":"{choice.finish_reason}","stop_reason":{_QUOTE(choice.stop_reason)},"token_ids":null}}'
            for choice in generation.choices
        )
        body = (
            f'{{{self._head},"object":"chat.completion","choices":[{choices}],"service_tier":null,'
            f'"system_fingerprint":null,"usage":{self._usage},"prompt_logprobs":null,"prompt_token_ids":null,'
            '"kv_transfer_params":null}'
        ).encode("utf-8", "replace")
        if generation.fault is FaultKind.STALL:
            await asyncio.Event().wait()
        if generation.fault is FaultKind.BROKEN_STREAM:
            await self._exchange.answer(200, body, cut_at=len(body) // 2)
            return False
        await self._exchange.answer(200, body)
        return True

    async def _send_stream(self) -> bool:
        generation, options = self._generation, self._generation.request.stream_options
        include_usage = bool(options and options.include_usage)
        breaks = generation.fault in (FaultKind.BROKEN_STREAM, FaultKind.STALL)
        head = f'data: {{{self._head},"object":"chat.completion.chunk","choices":['
        streams = [
            _ChoiceStream(
                choice,
                schedule,
                head,
                max(generation.request.stream_interval or 1, generation.script.chunk_tokens),
                len(choice.tokens) // 2 if breaks else len(choice.tokens),
                generation.prompt_tokens if include_usage and options and options.continuous_usage_stats else None,
            )
            for choice, schedule in zip(generation.choices, generation.schedules, strict=True)
        ]
        start_s = time.monotonic()
        await self._exchange.start_stream()
        while open_streams := [stream for stream in streams if not stream.ended]:
            await sleep_until(start_s + min(stream.next_due_s for stream in open_streams))
            elapsed_s = time.monotonic() - start_s
            events = "".join(event for stream in open_streams for event in stream.take(elapsed_s))
            self.written = sum(stream.sent for stream in streams)
            last = not breaks and all(stream.ended for stream in streams)
            if last and include_usage:
                events += f'{head}],"usage":{self._usage}}}\n\n'
            if events:
                await self._exchange.write(events.encode("utf-8", "replace") + (_DONE if last else b""), last=last)
        if generation.fault is FaultKind.STALL:
            await asyncio.Event().wait()
        return not breaks


@dataclass(slots=True)
class _ChoiceStream:
    """The events of one choice, up to `tokens_until`. Late events are merged, as an engine under load does.

    With `prompt_tokens` each event carries the usage so far.
    """

    choice: CompletionChoice
    schedule: TokenSchedule
    head: str
    chunk_tokens: int
    tokens_until: int
    prompt_tokens: int | None
    sent: int = 0
    opened: bool = False
    ended: bool = False

    def _next_sent(self) -> int:
        # As in vLLM, the first token and the last are sent at once, whatever the interval.
        return min(self.tokens_until, self.sent + (self.chunk_tokens if self.sent else 1))

    @property
    def next_due_s(self) -> float:
        """When the next event is due, in seconds after the start."""
        following = self._next_sent()
        return self.schedule.due_s(following) if following else self.schedule.total_s

    def take(self, elapsed_s: float) -> Iterator[str]:
        """The events that are due."""
        due = min(self.tokens_until, self.schedule.tokens_due(elapsed_s))
        if self._next_sent() > due:
            return
        if not self.opened:
            self.opened = True
            yield self._event('{"role":"assistant","content":""}', '"finish_reason":null', 0)
        while self.sent < due:
            yield self._piece(self._next_sent() if self.schedule.instant else due)
        if not self.choice.tokens:
            yield self._piece(0)
        self.ended = self.sent == self.tokens_until

    def _piece(self, last: int) -> str:
        choice = self.choice
        text = _QUOTE("".join(choice.tokens[self.sent : last]))
        self.sent = last
        reason = '"finish_reason":null,"token_ids":null'
        if last == len(choice.tokens):
            stop = _QUOTE(choice.stop_reason)
            reason = f'"finish_reason":"{choice.finish_reason}","stop_reason":{stop},"token_ids":null'
        return self._event(f'{{"content":{text}}}', reason, last)

    def _event(self, delta: str, reason: str, tokens: int) -> str:
        usage = "" if self.prompt_tokens is None else f',"usage":{_usage(self.prompt_tokens, tokens)}'
        return f'{self.head}{{"index":{self.choice.index},"delta":{delta},"logprobs":null,{reason}}}]{usage}}}\n\n'
