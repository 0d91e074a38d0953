"""The facts that stop calls, as a replica hears them: a request to stop, a closed stage, an end.

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

SUFFIXES = ("cancel", "stage.*.closed", "end")
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
class _Stopped:
    """Up to which stage the calls of a deliberation are stopped, why, and the place of the last fact that said so."""

    stage: float
    why: str
    sequence: int


class Stops:
    """Hears what stops calls, but only while anybody asks for some.

    Every stage of every deliberation closes by such a fact: an idle role should not pay for the busy ones.
    """

    def __init__(self, journal: Journal, stop: Stop) -> None:
        self._journal = journal
        self._stop = stop
        self._subscription: Subscription | None = None
        # The subscription is shared by requests that come at once, and takes a round trip to make.
        self._lock = asyncio.Lock()
        self._stopped: dict[str, _Stopped] = {}
        # Above this place in the stream nothing has been missed, None while that is not known; and of these
        # deliberations, which are older, nothing either.
        self._heard_from: int | None = None
        self._whole: set[str] = set()
        self._doubts = 0
        self._doubted = asyncio.Event()
        journal.on_reconnect(self._missed)

    def why(self, deliberation_id: str, stage: int) -> str | None:
        """Why the calls of a stage are stopped, if they are."""
        stopped = self._stopped.get(deliberation_id)
        return stopped.why if stopped is not None and stage <= stopped.stage else None

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
                self._stopped.clear()
                self._whole.clear()

    def _heard(self, record: Record) -> None:
        tokens = record.tokens
        deliberation_id, why = tokens[2], _WHY[tokens[3]]
        stage = int(tokens[4]) if tokens[3] == "stage" else math.inf
        known = self._stopped.pop(deliberation_id, None)
        # Of two that stop the same, the first is why.
        stopped = known if known is not None and known.stage >= stage else _Stopped(stage, why, 0)
        last_sequence = max(record.sequence, known.sequence if known else 0)
        self._stopped[deliberation_id] = replace(stopped, sequence=last_sequence)
        if len(self._stopped) > REMEMBERED_MAX:
            self._forget()
        self._stop(deliberation_id, stage, why)

    def _forget(self) -> None:
        """Forget the oldest; it was accepted before it was stopped, so that the log is asked when it comes again."""
        oldest = next(iter(self._stopped))
        forgotten = self._stopped.pop(oldest)
        self._whole.discard(oldest)
        if self._heard_from is not None:
            self._heard_from = max(self._heard_from, forgotten.sequence)
