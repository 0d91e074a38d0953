"""Sends an answer in vLLM's shape, null fields included: as one body, or as events with absolute due times."""

import asyncio
import json
import time
from bisect import bisect_right
from collections.abc import Iterator

from serve_deployments.simulator.lacks import Lack
from serve_deployments.simulator.script import FaultKind
from serve_deployments.simulator.server.completion import CompletionChoice, Generation
from serve_deployments.simulator.server.exchange import Exchange, sleep_until

_QUOTE = json.JSONEncoder(ensure_ascii=False).encode
_OPENING = -1


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> str:
    counts = f'"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens + completion_tokens},'
    counts += f'"completion_tokens":{completion_tokens}'
    if cached_tokens is not None:
        counts += f',"prompt_tokens_details":{{"cached_tokens":{cached_tokens},"created_cache_tokens":null,'
        counts += '"multimodal_tokens":null},"completion_tokens_details":null'
    return f"{{{counts}}}"


def _pieces(
    choice: CompletionChoice, due_times_s: list[float], chunk_tokens: int, *, half: bool
) -> Iterator[tuple[float, int, int, int]]:
    """The events of one choice, or of its first half: due time, index, first token and last one, exclusive."""
    size = len(choice.tokens)
    until = size // 2 if half else size
    yield due_times_s[0], choice.index, _OPENING, 0
    # As in vLLM, the first token and the last are sent at once, whatever the interval.
    sent = min(1, until)
    if sent or not size:
        yield due_times_s[0], choice.index, 0, sent
    while sent < until:
        last = min(until, sent + chunk_tokens)
        yield due_times_s[last - 1], choice.index, sent, last
        sent = last


class ReplySender:
    """Sends one answer; `written` counts the tokens that are due or sent."""

    def __init__(self, exchange: Exchange, generation: Generation, answer_id: str, model: str, cached: int) -> None:
        self._exchange = exchange
        self._generation = generation
        # The fields that every part of the answer repeats.
        self._head = f'"id":{_QUOTE(answer_id)},"created":{int(time.time())},"model":{_QUOTE(model)}'
        self._prompt_tokens = generation.prompt.tokens
        self._completion_tokens = sum(len(choice.tokens) for choice in generation.choices)
        self._usage = _usage(self._prompt_tokens, self._completion_tokens, cached)
        options = generation.request.stream_options
        reports = Lack.USAGE not in generation.script.lacks
        self._usage = self._usage if reports else "null"
        self._include_usage = bool(reports and options and options.include_usage)
        self._continuous_usage = bool(self._include_usage and options and options.continuous_usage_stats)
        self.written = 0

    async def send(self) -> bool:
        if self._generation.fault is FaultKind.HANG:
            await asyncio.Event().wait()
        return await (self._send_stream() if self._generation.request.stream else self._send_whole())

    async def _send_whole(self) -> bool:
        generation, start_s = self._generation, time.monotonic()
        try:
            await sleep_until(start_s + max(due_s[-1] for due_s in generation.due_times_s))
        except asyncio.CancelledError:
            elapsed_s = time.monotonic() - start_s
            self.written = sum(bisect_right(due_s, elapsed_s) for due_s in generation.due_times_s)
            raise
        self.written = self._completion_tokens
        choices = ",".join(
            f'{{"index":{choice.index},"message":{{"role":"assistant","content":{self._content(choice)},'
            '"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
            f'"finish_reason":"{choice.finish_reason}","stop_reason":null,"token_ids":null}}'
            for choice in generation.choices
        )
        body = (
            f'{{{self._head},"object":"chat.completion","choices":[{choices}],"service_tier":null,'
            f'"system_fingerprint":null,"usage":{self._usage},"prompt_logprobs":null,"prompt_token_ids":null,'
            '"kv_transfer_params":null}'
        ).encode("utf-8", "replace")
        if generation.fault is FaultKind.STALL:
            await asyncio.Event().wait()
        breaks = generation.fault is FaultKind.BROKEN_STREAM
        await self._exchange.answer(200, body, cut_at=len(body) // 2 if breaks else None)
        return not breaks

    async def _send_stream(self) -> bool:
        generation, start_s = self._generation, time.monotonic()
        chunk_tokens = max(generation.request.stream_interval or 1, generation.script.chunk_tokens)
        breaks = generation.fault in (FaultKind.BROKEN_STREAM, FaultKind.STALL)
        pieces = sorted(
            piece
            for choice, due_s in zip(generation.choices, generation.due_times_s, strict=True)
            for piece in _pieces(choice, due_s, chunk_tokens, half=breaks)
        )
        await self._exchange.start_stream()
        sent = 0
        while sent < len(pieces):
            await sleep_until(start_s + pieces[sent][0])
            elapsed_s = time.monotonic() - start_s
            due = max(sent + 1, bisect_right(pieces, elapsed_s, key=lambda piece: piece[0]))
            events = "".join(self._event(*piece[1:]) for piece in pieces[sent:due])
            self.written += sum(last - max(0, first) for _, _, first, last in pieces[sent:due])
            sent = due
            complete = sent == len(pieces) and not breaks
            if complete:
                events += self._chunk("", f',"usage":{self._usage}') if self._include_usage else ""
                events += "data: [DONE]\n\n"
            await self._exchange.write(events.encode("utf-8", "replace"), last=complete)
        if generation.fault is FaultKind.STALL:
            await asyncio.Event().wait()
        return not breaks

    def _content(self, choice: CompletionChoice) -> str:
        if choice.tool is None:
            return _QUOTE(choice.text)
        return f'null,"tool_calls":[{self._tool_call(choice, choice.text)}]'

    def _tool_call(self, choice: CompletionChoice, arguments: str, *, begins: bool = True) -> str:
        name = f'"name":{_QUOTE(choice.tool)},' if begins else ""
        head = f'"id":"chatcmpl-tool-{choice.index}-{self._prompt_tokens}","type":"function",' if begins else ""
        return f'{{"index":0,{head}"function":{{{name}"arguments":{_QUOTE(arguments)}}}}}'

    def _event(self, index: int, first: int, last: int) -> str:
        choice = self._generation.choices[index]
        delta, ended = '{"role":"assistant","content":""}', '"finish_reason":null'
        if first != _OPENING:
            text = "".join(choice.tokens[first:last])
            delta = f'{{"content":{_QUOTE(text)}}}'
            if choice.tool is not None:
                delta = f'{{"tool_calls":[{self._tool_call(choice, text, begins=first == 0)}]}}'
            ended = '"finish_reason":null,"token_ids":null'
            if last == len(choice.tokens):
                ended = f'"finish_reason":"{choice.finish_reason}","stop_reason":null,"token_ids":null'
        usage = f',"usage":{_usage(self._prompt_tokens, last)}' if self._continuous_usage else ""
        return self._chunk(f'{{"index":{index},"delta":{delta},"logprobs":null,{ended}}}', usage)

    def _chunk(self, choice: str, usage: str) -> str:
        return f'data: {{{self._head},"object":"chat.completion.chunk","choices":[{choice}]{usage}}}\n\n'
