"""Identical calls of a stage, which one request to an engine answers with as many choices.

Each call passes its own policies, holds its own slots and records its own outcome. A call whose engine, model or moment
differs is sent alone, and so is every later attempt (docs/decisions/0078).
"""

import asyncio
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from app.deliberation.calls import Call
from app.deliberation.errors import CallCancelled, EngineRejected
from serve_deployments.engine.client import Engines
from serve_deployments.engine.replies import EngineReply, StreamedChoice, StreamedReply
from serve_deployments.engine.request_body import BeforeSending
from serve_deployments.engine.state import EngineState, KeyRefused


@dataclass(eq=False, slots=True)
class Sample:
    engine: EngineState
    model: str
    seed: int
    choice: StreamedChoice
    salt: str
    priority: int
    before_sending: BeforeSending


@dataclass(eq=False, slots=True)
class _Waiting:
    """A sample that waits for its reply; None says that it is to be sent alone."""

    sample: Sample
    reply: asyncio.Future[EngineReply | None]
    streamed: StreamedReply | None = None
    request: asyncio.Task[EngineReply] | None = None

    def settle(self, reply: EngineReply | None) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)


@dataclass(eq=False, slots=True)
class SampleGroup:
    engines: Engines
    _coming: int = 0
    _waiting: list[_Waiting] = field(default_factory=list[_Waiting])
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _sending: asyncio.Task[None] | None = None

    @contextmanager
    def coming(self) -> Generator[None]:
        """Wraps what a call does between the choice of its engine and `reply`: the others wait for it."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            self._arrived.set()

    async def reply(self, sample: Sample) -> EngineReply | None:
        """The reply in one request with the calls that are here or coming; None when the call is to be sent alone.

        Raises as `Engines.complete` does. Cancelling gives the choice up, and with the last one the request.
        """
        if not sample.engine.takes_samples(sample.model):
            return None
        waiting = _Waiting(sample, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())
        try:
            return await waiting.reply
        finally:
            await self._leave(waiting)

    async def _leave(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        if waiting.streamed is None or waiting.request is None:
            return
        waiting.streamed.leave(waiting.sample.choice)
        if not waiting.streamed.open and not waiting.request.done():
            waiting.request.cancel()
            await asyncio.wait({waiting.request})

    async def _send(self) -> None:
        while self._coming:
            self._arrived.clear()
            await self._arrived.wait()
        self._sending = None
        waiting, self._waiting = self._waiting, []
        for each in _alike(waiting):
            if len(each) == 1:
                each[0].settle(None)
            else:
                self._request(each)

    def _request(self, together: Sequence[_Waiting]) -> None:
        first = together[0].sample
        streamed = StreamedReply([each.sample.choice for each in together])

        async def before_sending() -> None:
            for each in together:
                await each.sample.before_sending()

        request = asyncio.get_running_loop().create_task(
            self.engines.complete(
                first.engine,
                first.choice.call,
                first.model,
                seed=first.seed,
                trace=first.choice.trace,
                on_text=streamed,
                meter=first.choice.meter,
                salt=first.salt,
                priority=first.priority,
                before_sending=before_sending,
            )
        )
        for each in together:
            each.streamed, each.request = streamed, request
            each.sample.choice.on_end = each.settle
        request.add_done_callback(lambda _: _settle(together, request))


def _settle(together: Sequence[_Waiting], request: asyncio.Task[EngineReply]) -> None:
    """Give calls without a reply the request's error. Alone they learn whether a refusal is about them or about `n`."""
    error = None if request.cancelled() else request.exception()
    refused = isinstance(error, CallCancelled | EngineRejected) and not isinstance(error, KeyRefused)
    for each in together:
        if error is None or refused:
            each.settle(None)
        else:
            each.fail(error)


def _alike(waiting: Iterable[_Waiting]) -> list[list[_Waiting]]:
    ordered = sorted(waiting, key=lambda each: (each.sample.engine.address, each.sample.model, each.sample.seed))
    found = [ordered[:1]] if ordered else []
    for one, other in pairwise(ordered):
        before, after = one.sample, other.sample
        if (before.engine, before.model, before.seed + 1) == (after.engine, after.model, after.seed):
            found[-1].append(other)
        else:
            found.append([other])
    return found


def sample_groups(engines: Engines, calls: Sequence[Call]) -> Mapping[str, SampleGroup]:
    """The groups of a stage's calls, by call id; a call that no other equals has none."""
    found: dict[str, SampleGroup] = {}
    for one, other in pairwise(calls):
        if other.seed == one.seed + 1 and other.temperature > 0 and _asked(one) == _asked(other):
            found[other.call_id] = found.setdefault(one.call_id, SampleGroup(engines))
    return found


def _asked(call: Call) -> Call:
    return call.model_copy(update={"call_id": "", "agent_id": "", "seed": 0})
