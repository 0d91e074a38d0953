"""The facts that stop calls, as a replica hears them: a request to stop, a closed stage, an end; and takeovers.

A coordinator that hung and wakes up asks for what its successor has had answered long ago, and knows nothing of it. A
replica that has heard of the takeover looks into the log first.

A stop may be stored before the calls that it stops have reached the replica, and then it comes never again. So what was
heard is remembered, and the log is asked for what cannot have been heard: what stood before the replica listened, or
came while it had no connection.
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

_WHY = {
    "cancel": "stopped on request",
    "stage": "stopped: its stage had closed",
    "end": "stopped: the deliberation had ended",
}

Stop = Callable[[str, float, str], None]
"""Stop the calls of a deliberation up to a stage (all of them: infinity), and why."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """Of a deliberation: up to which stage its calls are stopped (0: none), why, and whether it was taken over.

    `sequence` is the place of the last fact that said so.
    """

    stage: float = 0
    why: str = ""
    taken_over: bool = False
    sequence: int = 0


class CancellationListener:
    """Hears what stops calls or makes requests outdated, but only while anybody asks for some.

    Every stage of every deliberation closes by such a fact: an idle role should not pay for the busy ones.
    """

    def __init__(self, journal: Journal, stop: Stop) -> None:
        self._journal = journal
        self._stop = stop
        self._subscription: Subscription | None = None
        # The subscription is shared by requests that come at once, and takes a round trip to make.
        self._lock = asyncio.Lock()
        self._known: dict[str, _Heard] = {}
        # Above this place in the stream nothing has been missed, None while that is not known; and of these
        # deliberations, which are older, nothing either.
        self._heard_from: int | None = None
        self._whole: set[str] = set()
        self._doubts = 0
        self._doubted = asyncio.Event()
        journal.on_reconnect(self._missed)

    def why(self, deliberation_id: str, stage: int) -> str | None:
        """Why the calls of a stage are stopped, if they are."""
        known = self._known.get(deliberation_id)
        return known.why if known is not None and stage <= known.stage else None

    def taken_over(self, deliberation_id: str) -> bool:
        """Whether more than one coordinator has had the deliberation in hand."""
        known = self._known.get(deliberation_id)
        return known is not None and known.taken_over

    async def hear(self, tenant: str, deliberation_id: str, accepted_sequence: int) -> None:
        """Hear what stops the calls of a deliberation, which was accepted at this place in the stream, from then on.

        Raises JournalUnavailable when the log cannot be asked.
        """
        await self._listen()
        if self._heard_from is None or (accepted_sequence < self._heard_from and deliberation_id not in self._whole):
            await self._read(tenant, deliberation_id)

    async def keep(self, running: Callable[[], Collection[tuple[str, str]]], idle: Callable[[], bool]) -> None:
        """After a lost connection read what was missed for what runs, (tenant, deliberation) each; rest while idle.

        Runs until cancelled.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_AFTER_S):
                    await self._doubted.wait()
            if self._doubted.is_set():
                await self._mend(running)
            elif idle():
                await self._rest(idle)

    def _missed(self) -> None:
        self._heard_from = None
        self._whole.clear()
        self._doubts += 1
        self._doubted.set()

    async def _listen(self) -> None:
        async with self._lock:
            if self._subscription is None:
                self._subscription = await self._journal.subscribe(
                    [f"deliberations.*.*.{suffix}" for suffix in SUFFIXES], self._heard
                )
            while self._heard_from is None:
                doubts = self._doubts
                last_sequence = (await self._journal.state()).last_sequence
                if doubts == self._doubts:
                    self._heard_from = last_sequence

    async def _read(self, tenant: str, deliberation_id: str) -> None:
        subject, doubts = prefix(tenant, deliberation_id), self._doubts
        for record in await self._journal.last([f"{subject}.{suffix}" for suffix in SUFFIXES]):
            self._heard(record)
        if len(self._whole) >= REMEMBERED_MAX:
            self._whole.clear()
        if doubts == self._doubts:
            self._whole.add(deliberation_id)

    async def _mend(self, running: Callable[[], Collection[tuple[str, str]]]) -> None:
        self._doubted.clear()
        try:
            for tenant, deliberation_id in running():
                await self._read(tenant, deliberation_id)
        except JournalUnavailable:
            self._doubted.set()
            await asyncio.sleep(RETRY_S)

    async def _rest(self, idle: Callable[[], bool]) -> None:
        async with self._lock:
            if self._subscription is not None and idle():
                await self._subscription.close()
                self._subscription = self._heard_from = None
                self._known.clear()
                self._whole.clear()

    def _heard(self, record: Record) -> None:
        _, _, deliberation_id, kind, *rest = record.tokens
        known = self._known.pop(deliberation_id, _Heard())
        known = replace(known, sequence=max(known.sequence, record.sequence))
        if kind == "takeover":
            self._known[deliberation_id] = replace(known, taken_over=True)
        else:
            stage, why = float(rest[0]) if kind == "stage" else math.inf, _WHY[kind]
            # Of two that stop the same, the first is why.
            self._known[deliberation_id] = replace(known, stage=stage, why=why) if stage > known.stage else known
            self._stop(deliberation_id, stage, why)
        if len(self._known) > REMEMBERED_MAX:
            self._forget()

    def _forget(self) -> None:
        """Forget the oldest; it was accepted before that was heard, so that the log is asked when it comes again."""
        oldest = next(iter(self._known))
        forgotten = self._known.pop(oldest)
        self._whole.discard(oldest)
        if self._heard_from is not None:
            self._heard_from = max(self._heard_from, forgotten.sequence)
