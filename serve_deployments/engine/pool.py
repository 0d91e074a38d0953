"""The engines of a role without their HTTP: the choice of an engine, and the one queue of calls before them.

A hash puts a role's engines into an order of each deliberation's own (rendezvous hashing, Thaler and Ravishankar 1998).
So its calls meet their prefix. An engine that comes or goes moves only the deliberations that have it first. The
bound on the load is that of consistent hashing with bounded loads (arXiv:1608.01350).

Replicas choose without a message: the same hash gives all of them the same order. Each knows only its own requests, and
places a call within 1.25 times their mean or `TOGETHER`. So together they exceed the bound on one engine by at most
`TOGETHER` for each replica, whatever the number of requests (docs/decisions/0073).
"""

import asyncio
import hashlib
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple, Protocol, TypeVar

from app.deliberation.calls import BATCH_AFTER
from app.deliberation.roles import CONCURRENCY, EngineSpec
from serve_deployments.engine.reachability import Outage
from serve_deployments.engine.state import EngineFull, EngineState

BOUND = 1.25
"""An engine's requests over the mean of all engines, from which on it is full."""

TOGETHER = 9
"""An engine with fewer requests of this replica is never full: three stages of three calls cost each other little."""


class LoadedEngine(Protocol):
    """An engine with the number of this replica's requests that it works on. Its address is the same everywhere."""

    @property
    def address(self) -> str: ...

    @property
    def in_flight(self) -> int: ...


_Engine = TypeVar("_Engine", bound=LoadedEngine)


def engine_for(deliberation: str, engines: Sequence[_Engine]) -> _Engine | None:
    """The first engine in the deliberation's order, or the least loaded one when that is full; None without engines."""
    ordered = sorted(engines, key=lambda engine: _rank(deliberation, engine.address))
    if not ordered:
        return None
    bound = max(TOGETHER, ceil(BOUND * (sum(engine.in_flight for engine in engines) + 1) / len(engines)))
    # Of equally loaded engines the earlier one in the order, so that a stage's other calls find its prefix there.
    return ordered[0] if ordered[0].in_flight < bound else min(ordered, key=lambda engine: engine.in_flight)


def _rank(deliberation: str, address: str) -> bytes:
    return hashlib.sha256(f"{deliberation} {address}".encode()).digest()


class _Queue(NamedTuple):
    """The key of a queue. An engine that can take its first call can take each of its calls."""

    tenant: str
    is_batch: bool
    avoid: frozenset[EngineState]


@dataclass(eq=False, slots=True)
class _WaitingCall:
    order: int
    turn: asyncio.Event = field(default_factory=asyncio.Event)


def _order(call: _WaitingCall) -> int:
    return call.order


class EnginePool:
    """The engines of one role: the first choice, and those that stand in for it.

    Calls wait here while `concurrency` of them are at engines, or each engine works on as many as it may.
    """

    def __init__(
        self, engines: Sequence[EngineSpec], fallback: Sequence[EngineSpec] = (), concurrency: int = CONCURRENCY
    ) -> None:
        self.concurrency = concurrency
        # The model that the role names: with one, an engine's list of models is advice.
        self.model: str | None = None
        self.engines = [*map(EngineState, engines), *(EngineState(spec, fallback=True) for spec in fallback)]
        # Each queue is sorted and none is empty, so that `_next` reads their first calls alone.
        self._waiting: dict[_Queue, list[_WaitingCall]] = {}
        # Each tenant's requests at the engines.
        self._at_engines = Counter[str]()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def choose(self, deliberation: str, avoid: Sequence[EngineState]) -> EngineState | None:
        """The engine for a request, of the candidates with room; None when no circuit admits one, or all are full."""
        room = self._with_room(avoid)
        return engine_for(deliberation, [engine for engine in room if engine.healthy] or room)

    def _with_room(self, avoid: Collection[EngineState]) -> Sequence[EngineState]:
        return [engine for engine in self._candidates(avoid) if not engine.full]

    def _candidates(self, avoid: Collection[EngineState]) -> Sequence[EngineState]:
        """The engines whose circuits admit a request; preferably not of `avoid`, no refusers of keys, no stand-ins."""
        now_s = time.monotonic()
        admitting = [engine for engine in self.engines if engine.admits(now_s)]
        admitting = [engine for engine in admitting if engine not in avoid] or admitting
        admitting = [engine for engine in admitting if not engine.refused_lately(now_s)] or admitting
        return [engine for engine in admitting if not engine.fallback] or admitting

    @contextmanager
    def requesting(self, engine: EngineState, tenant: str = "") -> Generator[None]:
        """Wraps a tenant's request to `engine`, for its slot and its circuit; raises EngineFull."""
        if engine.full:
            raise EngineFull(f"{engine.label} works on {engine.in_flight} requests")
        engine.circuit.begin()
        engine.in_flight += 1
        self._at_engines[tenant] += 1
        try:
            yield
        finally:
            engine.circuit.ended()
            engine.in_flight -= 1
            self._at_engines[tenant] -= 1
            if not self._at_engines[tenant]:
                del self._at_engines[tenant]
            self._wake()

    async def wait_for_engine(
        self, deliberation: str, avoid: Sequence[EngineState], order: int, tenant: str = ""
    ) -> EngineState:
        """The engine that `choose` gives; waits, without a limit of its own, until a circuit admits a request.

        Of the calls that an engine can take, one of the tenant with the fewest at engines is next, interactive ones
        before batch, and of these the one with the lowest `order`: its `priority_number`.
        """
        queue, call = _Queue(tenant, order >= BATCH_AFTER, frozenset(avoid)), _WaitingCall(order)
        insort(self._waiting.setdefault(queue, []), call, key=_order)
        try:
            while (first := self._next()) is not call or (chosen := self.choose(deliberation, avoid)) is None:
                call.turn.clear()
                if first is not None:
                    # The waiting call's timer may be that of another engine.
                    first.turn.set()
                now_s = time.monotonic()
                opens_s = [engine.opens_s(now_s) for engine in self.engines]
                with suppress(TimeoutError):
                    # While requests probe or fill the engines, only their results can change anything.
                    async with asyncio.timeout(
                        min((moment_s - now_s for moment_s in opens_s if moment_s > now_s), default=None)
                    ):
                        await call.turn.wait()
            return chosen
        finally:
            self._leave(queue, call)
            # Once the caller has begun its request, or has given up: there may be room for the next call.
            asyncio.get_running_loop().call_soon(self._wake)

    def _next(self) -> _WaitingCall | None:
        now_s = time.monotonic()
        if sum(engine.in_flight for engine in self.engines) >= self.concurrency:
            return None
        # Where all engines are full or away, as in most waits, no call is looked at.
        if not any(engine.admits(now_s) and not engine.full for engine in self.engines):
            return None
        # Most queues avoid no engine: ask once for each set.
        with_room = {avoid for avoid in {queue.avoid for queue in self._waiting} if self._with_room(avoid)}
        able = [queue for queue in self._waiting if queue.avoid in with_room]
        return self._waiting[min(able, key=self._turn)][0] if able else None

    def _turn(self, queue: _Queue) -> tuple[bool, int, int]:
        """The sort key of a queue: its class, its tenant's requests at engines, and the order of its first call."""
        return queue.is_batch, self._at_engines.get(queue.tenant, 0), self._waiting[queue][0].order

    def _leave(self, queue: _Queue, call: _WaitingCall) -> None:
        calls = self._waiting[queue]
        # Only calls of one deliberation have the same order, so that the scan is short.
        del calls[calls.index(call, bisect_left(calls, call.order, key=_order))]
        if not calls:
            del self._waiting[queue]

    def _wake(self) -> None:
        """Let the next of the waiting calls go on; to be called whenever an engine may take another request."""
        if (call := self._next()) is not None:
            call.turn.set()

    def told_to_wait_s(self) -> float:
        """Returns the seconds for which all engines have told their callers to wait; 0 while an engine has not."""
        now_s = time.monotonic()
        return max(0.0, min((engine.told_to_wait_until_s - now_s for engine in self.engines), default=0.0))

    def outages(self) -> Sequence[tuple[EngineState, Outage]]:
        """Each engine with its outage, if none can be connected to; empty while an engine can."""
        away = [(engine, engine.outage) for engine in self.engines if engine.outage is not None]
        return away if len(away) == len(self.engines) else ()
