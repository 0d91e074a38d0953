"""Live fan-out: one subscription per watched deliberation or tenant, each frame encoded once, and seats for viewers."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import anyio

from app.deliberation.ports import Journal, Record
from app.log.paging import Patterns, of_deliberation
from app.streaming.watch import RingLimits, Viewer, Watch

_MENDS_AT_ONCE = 16


def _ignored(record: Record) -> None:
    """Nobody observes."""


class Feed:
    """All watches of this process. An async context manager: leaving it ends them.

    `streams_max` and `streams_per_client_max` bound the seats that viewers take. `observe` is given every event that
    viewers are shown, before they are.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        limits: RingLimits | None = None,
        streams_max: int = 5_000,
        streams_per_client_max: int = 1_000,
        observe: Callable[[Record], None] = _ignored,
    ) -> None:
        self.draining = anyio.Event()
        self._journal = journal
        self._limits = limits or RingLimits()
        self._streams_max = streams_max
        self._streams_per_client_max = streams_per_client_max
        self._observe = observe
        self._mending = asyncio.Semaphore(_MENDS_AT_ONCE)
        self._group = asyncio.TaskGroup()
        self._watches: dict[Patterns, Watch] = {}
        self._seats: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._announcer = self._group.create_task(self._announce_drain())
        self._unhook = self._journal.on_reconnect(self._doubt)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unhook()
        self.drain()
        self._announcer.cancel()
        for watch in list(self._watches.values()):
            self._close(watch)
        # What ended the context goes on as it is: only a watch that crashed makes an exception group.
        await self._group.__aexit__(None, None, None)

    @property
    def watched(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    @property
    def streams(self) -> int:
        """Streams that are open."""
        return self._seats.total()

    def drain(self) -> None:
        """Tell every viewer to reconnect elsewhere, now and from now on. Idempotent."""
        self.draining.set()
        for watch in self._watches.values():
            watch.wake()

    async def _announce_drain(self) -> None:
        """The event may also be set by someone who does not know the watches."""
        await self.draining.wait()
        self.drain()

    def _doubt(self) -> None:
        for watch in self._watches.values():
            watch.doubt()

    def admit(self, client: str) -> bool:
        """Give `client` a seat for one more stream, if one is left; whoever got one must `dismiss` it."""
        if self.streams >= self._streams_max or self._seats[client] >= self._streams_per_client_max:
            return False
        self._seats[client] += 1
        return True

    def dismiss(self, client: str) -> None:
        """Give a seat back."""
        self._seats[client] -= 1
        if not self._seats[client]:
            del self._seats[client]

    @asynccontextmanager
    async def watch(self, patterns: Patterns) -> AsyncGenerator[Watch, None]:
        """Watch what is stored: shared with everyone who does, and closed some moments after the last one has left."""
        watch = self._watches.get(patterns)
        if watch is None or watch.foreign:
            watch = self._watches[patterns] = Watch(self._journal, patterns, self._limits, self._mending, self._observe)
            watch.task = self._group.create_task(watch.follow())
        if watch.farewell is not None:
            watch.farewell.cancel()
        watch.viewers += 1
        try:
            yield watch
        finally:
            watch.viewers -= 1
            if not watch.viewers:
                watch.farewell = asyncio.get_running_loop().call_later(self._limits.linger_s, self._close, watch)

    def _close(self, watch: Watch) -> None:
        if watch.farewell is not None:
            watch.farewell.cancel()
        if watch.task is not None:
            watch.task.cancel()
        if self._watches.get(watch.patterns) is watch:
            del self._watches[watch.patterns]

    def viewer(self, watch: Watch, position: int, stored: Patterns | None = None) -> Viewer:
        """A reader of `watch` that has seen everything up to `position`."""
        return Viewer(watch, position, self._limits, stored)

    async def changed(self, tenant: str, deliberation_id: str, after_sequence: int, timeout_s: float) -> bool:
        """Whether a fact (not a view) with a sequence above `after_sequence` is stored before `timeout_s` is over.

        Also one that was stored before the call. False at once when the process drains. Raises JournalUnavailable when
        the log cannot be asked.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        async with self.watch(of_deliberation(tenant, deliberation_id)) as watch:
            asked = False
            while not self.draining.is_set():
                if watch.foreign or watch.last_fact_sequence > after_sequence:
                    return True
                if watch.ring is not None and after_sequence < watch.since and not asked:
                    # Whatever was stored before the watch began is in the log alone.
                    asked = True
                    facts = await self._journal.facts(tenant, deliberation_id)
                    if facts and facts[-1].sequence > after_sequence:
                        return True
                    continue
                if loop.time() >= until_s:
                    return False
                await watch.changed(until_s)
        return False
