"""Tracks the calls that facts stopped (a cancel, a closed stage, an end), and deliberations that were taken over.

A coordinator that hung may ask again for calls of its successor: after a takeover a replica looks into the log first.
A stop may be stored before its calls reach the replica: the listener remembers what it received, and reads older facts.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import prefix
from app.deliberation.ports import Journal, Record, Subscription

SUFFIXES = ("cancel", "stage.*.closed", "end", "takeover.*")
IDLE_AFTER_S = 10.0
RETRY_S = 1.0
REMEMBERED_MAX = 10_000

_REASONS = {
    "cancel": "stopped on request",
    "stage": "stopped: its stage had closed",
    "end": "stopped: the deliberation had ended",
}

StopCalls = Callable[[str, float, str], None]
"""Stops the calls of a deliberation up to a stage (infinity: all of them) for a reason."""


@dataclass(frozen=True, slots=True)
class _Cancellation:
    """The stage up to which calls are stopped (0: none) and why; `sequence` is the last fact's that decided this."""

    stage: float = 0
    why: str = ""
    taken_over: bool = False
    sequence: int = 0


class CancellationListener:
    """Receives the facts that stop calls, while requests or calls run: idle roles do not pay for busy ones."""

    def __init__(self, journal: Journal, stop: StopCalls) -> None:
        self._journal = journal
        self._stop = stop
        self._subscription: Subscription | None = None
        # Concurrent requests share the subscription, which takes a round trip to make.
        self._lock = asyncio.Lock()
        self._known: dict[str, _Cancellation] = {}
        # No fact above this sequence is missing; None while that is unknown. Of older deliberations, those in
        # `_complete` were read. `_gaps` counts lost connections, so that a read across one proves nothing.
        self._complete_above: int | None = None
        self._complete: set[str] = set()
        self._gaps = 0
        self._resync_needed = asyncio.Event()
        journal.on_reconnect(self._on_gap)

    def why(self, deliberation_id: str, stage: int) -> str | None:
        known = self._known.get(deliberation_id)
        return known.why if known is not None and stage <= known.stage else None

    def taken_over(self, deliberation_id: str) -> bool:
        known = self._known.get(deliberation_id)
        return known is not None and known.taken_over

    async def watch(self, tenant: str, deliberation_id: str, accepted_sequence: int) -> None:
        """Miss no stop of a deliberation from now on; `accepted_sequence` is its place. Raises JournalUnavailable."""
        await self._subscribe()
        known_from = self._complete_above
        if known_from is None or (accepted_sequence < known_from and deliberation_id not in self._complete):
            await self._read(tenant, deliberation_id)

    async def keep(self, running: Callable[[], Collection[tuple[str, str]]], idle: Callable[[], bool]) -> None:
        """Read the stops of active calls, (tenant, deliberation) each, after a lost connection; unsubscribe while idle.

        Four idle roles would cost 1 ms of CPU per deliberation of a busy one. Runs until cancelled.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_AFTER_S):
                    await self._resync_needed.wait()
            if self._resync_needed.is_set():
                await self._resync(running)
            elif idle():
                await self._unsubscribe(idle)

    def _on_gap(self) -> None:
        self._complete_above = None
        self._complete.clear()
        self._gaps += 1
        self._resync_needed.set()

    async def _subscribe(self) -> None:
        async with self._lock:
            if self._subscription is None:
                self._subscription = await self._journal.subscribe(
                    [f"deliberations.*.*.{suffix}" for suffix in SUFFIXES], self._on_fact
                )
            while self._complete_above is None:
                gaps = self._gaps
                last_sequence = (await self._journal.state()).last_sequence
                if gaps == self._gaps:
                    self._complete_above = last_sequence

    async def _read(self, tenant: str, deliberation_id: str) -> None:
        subject, gaps = prefix(tenant, deliberation_id), self._gaps
        for record in await self._journal.last([f"{subject}.{suffix}" for suffix in SUFFIXES]):
            self._on_fact(record)
        if len(self._complete) >= REMEMBERED_MAX:
            self._complete.clear()
        if gaps == self._gaps:
            self._complete.add(deliberation_id)

    async def _resync(self, running: Callable[[], Collection[tuple[str, str]]]) -> None:
        self._resync_needed.clear()
        try:
            for tenant, deliberation_id in running():
                await self._read(tenant, deliberation_id)
        except JournalUnavailable:
            self._resync_needed.set()
            await asyncio.sleep(RETRY_S)

    async def _unsubscribe(self, idle: Callable[[], bool]) -> None:
        async with self._lock:
            if self._subscription is not None and idle():
                await self._subscription.close()
                self._subscription = self._complete_above = None
                self._known.clear()
                self._complete.clear()

    def _on_fact(self, record: Record) -> None:
        _, _, deliberation_id, kind, *rest = record.tokens
        known = self._known.pop(deliberation_id, _Cancellation())
        known = replace(known, sequence=max(known.sequence, record.sequence))
        if kind == "takeover":
            self._known[deliberation_id] = replace(known, taken_over=True)
        else:
            stage, why = float(rest[0]) if kind == "stage" else math.inf, _REASONS[kind]
            # Of two facts that stop the same calls, the first is the reason.
            self._known[deliberation_id] = replace(known, stage=stage, why=why) if stage > known.stage else known
            self._stop(deliberation_id, stage, why)
        if len(self._known) > REMEMBERED_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget a deliberation; its acceptance is older than the raised bound, so `watch` reads it again."""
        oldest = next(iter(self._known))
        forgotten = self._known.pop(oldest)
        self._complete.discard(oldest)
        if self._complete_above is not None:
            self._complete_above = max(self._complete_above, forgotten.sequence)
