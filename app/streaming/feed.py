"""Live fan-out: one watch for each set of patterns, shared by all of its viewers, and the limit on open streams."""

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

_REPLAYS_AT_ONCE = 16


class Feed:
    """All watches of this process. An async context manager: leaving it ends them.

    `streams_max` and `streams_per_client_max` bound the open streams. `observe` receives every event before a viewer
    does.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        limits: RingLimits | None = None,
        streams_max: int = 5_000,
        streams_per_client_max: int = 1_000,
        observe: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.draining = anyio.Event()
        self._journal = journal
        self._limits = limits or RingLimits()
        self._streams_max = streams_max
        self._streams_per_client_max = streams_per_client_max
        self._observe = observe
        self._replays = asyncio.Semaphore(_REPLAYS_AT_ONCE)
        self._group = asyncio.TaskGroup()
        self._watches: dict[Patterns, Watch] = {}
        self._streams_of: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._drain_task = self._group.create_task(self._drain_on_event())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()
        self._drain_task.cancel()
        for watch in list(self._watches.values()):
            self._close(watch)
        # Without the error that ended the context: only a watch that crashed makes an exception group.
        await self._group.__aexit__(None, None, None)

    @property
    def watched(self) -> int:
        return len(self._watches)

    @property
    def streams(self) -> int:
        return self._streams_of.total()

    def drain(self) -> None:
        """End every stream with `stream.reconnect`, now and from now on. Idempotent."""
        self.draining.set()
        for watch in self._watches.values():
            watch.wake()

    async def _drain_on_event(self) -> None:
        await self.draining.wait()
        self.drain()

    def acquire_slot(self, client: str) -> bool:
        """Count one more stream of `client`; False at a limit. Each acquired slot must be released."""
        if self.streams >= self._streams_max or self._streams_of[client] >= self._streams_per_client_max:
            return False
        self._streams_of[client] += 1
        return True

    def release_slot(self, client: str) -> None:
        self._streams_of[client] -= 1
        if not self._streams_of[client]:
            del self._streams_of[client]

    @asynccontextmanager
    async def watch(self, patterns: Patterns) -> AsyncGenerator[Watch, None]:
        """The watch under these patterns, shared with others; it closes some seconds after the last viewer left."""
        watch = self._watches.get(patterns)
        if watch is None or watch.replaced:
            watch = self._watches[patterns] = Watch(self._journal, patterns, self._limits, self._replays, self._observe)
            watch.task = self._group.create_task(watch.run())
        if watch.closing is not None:
            watch.closing.cancel()
        watch.viewers += 1
        try:
            yield watch
        finally:
            watch.viewers -= 1
            if not watch.viewers:
                watch.closing = asyncio.get_running_loop().call_later(self._limits.linger_s, self._close, watch)

    def _close(self, watch: Watch) -> None:
        if watch.closing is not None:
            watch.closing.cancel()
        if watch.task is not None:
            watch.task.cancel()
        if self._watches.get(watch.patterns) is watch:
            del self._watches[watch.patterns]

    def viewer(self, watch: Watch, position: int, stored: Patterns | None = None) -> Viewer:
        return Viewer(watch, position, self._limits, stored)

    async def changed(self, tenant: str, deliberation_id: str, after_sequence: int, timeout_s: float) -> bool:
        """Whether a fact (not a view) above `after_sequence` is stored, before the call or within `timeout_s`.

        False at once when the process drains. Raises JournalUnavailable when the log cannot be read.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        async with self.watch(of_deliberation(tenant, deliberation_id)) as watch:
            facts_read = False
            while not self.draining.is_set():
                if watch.replaced or watch.last_fact_sequence > after_sequence:
                    return True
                if watch.ring is not None and after_sequence < watch.begin and not facts_read:
                    # Only the log holds what was stored before the watch began.
                    facts_read = True
                    facts = await self._journal.facts(tenant, deliberation_id)
                    if facts and facts[-1].sequence > after_sequence:
                        return True
                    continue
                if loop.time() >= until_s:
                    return False
                await watch.changed(until_s)
        return False
