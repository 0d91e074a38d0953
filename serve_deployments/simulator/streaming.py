"""Sends completions in time: as one body, or as events whose due times are absolute."""

import time
from dataclasses import dataclass, field

from serve_deployments.simulator.completion import Completion
from serve_deployments.simulator.exchange import ClientGone, Exchange
from serve_deployments.simulator.faults import FaultKind
from serve_deployments.simulator.pacing import Schedule
from serve_deployments.simulator.wire import DONE, ChunkWriter, Envelope, Usage


@dataclass(slots=True)
class Delivery:
    """Completions on their way to one client, each with its schedule; `written` counts tokens that are due or sent."""

    exchange: Exchange
    envelope: Envelope
    usage: Usage
    completions: list[Completion]
    schedules: list[Schedule]
    fault: FaultKind | None
    written: int = 0

    async def send_whole(self) -> bool:
        """Answer in one piece when the last token is due; False when the script broke the answer off."""
        start_s = time.monotonic()
        total_s = max(schedule.total_s for schedule in self.schedules)
        try:
            await self.exchange.sleep_until(start_s + total_s)
        except ClientGone:
            elapsed_s = time.monotonic() - start_s
            self.written = sum(schedule.tokens_due(elapsed_s) for schedule in self.schedules)
            raise
        self.written = self.usage.completion_tokens
        body = self.envelope.whole(self.completions, self.usage)
        if self.fault is FaultKind.STALL:
            await self.exchange.until_gone()
        if self.fault is FaultKind.BROKEN_STREAM:
            await self.exchange.answer_half(body)
            return False
        await self.exchange.answer(200, body)
        return True

    async def send_stream(self, chunk_tokens: int, *, include_usage: bool, continuous_usage: bool) -> bool:
        """Answer in events of at least `chunk_tokens` tokens; False when the script broke the stream off."""
        breaks = self.fault in (FaultKind.BROKEN_STREAM, FaultKind.STALL)
        shown = self.usage if continuous_usage else None
        flows = [
            _Flow(completion, schedule, ChunkWriter(self.envelope, completion, shown), chunk_tokens, breaks=breaks)
            for completion, schedule in zip(self.completions, self.schedules, strict=True)
        ]
        start_s = time.monotonic()
        await self.exchange.start_stream()
        while waiting := [flow for flow in flows if not flow.ended]:
            await self.exchange.sleep_until(start_s + min(flow.next_due_s for flow in waiting))
            elapsed_s = time.monotonic() - start_s
            pieces = [piece for flow in waiting for piece in flow.take(elapsed_s)]
            self.written = sum(flow.sent for flow in flows)
            last = not breaks and all(flow.ended for flow in flows)
            if last:
                pieces += [self.envelope.usage_chunk(self.usage), DONE] if include_usage else [DONE]
            if pieces:
                await self.exchange.write(b"".join(pieces), last=last)
        if self.fault is FaultKind.STALL:
            await self.exchange.until_gone()
        return not breaks


@dataclass(slots=True)
class _Flow:
    """One choice of a stream. When events are late they are merged, as an engine under load does."""

    completion: Completion
    schedule: Schedule
    writer: ChunkWriter
    chunk_tokens: int
    breaks: bool
    sent: int = 0
    opened: bool = False
    ended: bool = False
    _until: int = field(init=False)

    def __post_init__(self) -> None:
        size = len(self.completion.tokens)
        self._until = size // 2 if self.breaks else size

    def _next_sent(self) -> int:
        # As in vLLM, the first token and the last are sent at once, whatever the interval.
        step = self.chunk_tokens if self.sent else 1
        return min(self._until, self.sent + step)

    @property
    def next_due_s(self) -> float:
        """When the next event is due, in seconds after the start."""
        following = self._next_sent()
        return self.schedule.due_s(following) if following else self.schedule.total_s

    def take(self, elapsed_s: float) -> list[bytes]:
        """The events that are due."""
        due = min(self._until, self.schedule.tokens_due(elapsed_s))
        pieces: list[bytes] = []
        following = self._next_sent()
        if following <= due and not self.opened:
            self.opened = True
            pieces.append(self.writer.opening())
        if self.schedule.instant:
            while self.sent < self._until:
                following = self._next_sent()
                pieces.append(self.writer.piece(self.sent, following))
                self.sent = following
        elif following <= due and (due > self.sent or due == self._until):
            pieces.append(self.writer.piece(self.sent, due))
            self.sent = due
        if not self.completion.tokens and self.opened:
            pieces.append(self.writer.piece(0, 0))
        self.ended = self.opened and self.sent == self._until
        return pieces
