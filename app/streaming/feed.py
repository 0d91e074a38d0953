"""Live fan-out: a watch for each set of patterns, shared by its viewers, and the limit on open streams.

A watch is one live subscription, and the newest of its frames in a ring that all of its viewers read. A viewer is a
position. At the ring's end it waits for the next wake-up; behind the ring it reads the log.

Replay joins live frames without gap or duplicate. The ring is complete above its floor, and a read that began after
that floor was known covers everything below. Sequences grow but are not dense: all deliberations share them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Journal, Record
from app.log.paging import Patterns, of_deliberation, read_page, tenant_of
from app.log.projection import Projection
from app.log.text_viewers import Keys, TextLeases
from app.streaming.frames import VIEW_TYPES, EventFrame, Ring, frame_of
from app.streaming.single_flight import KeyedSingleFlightCache
from app.tenant_slots import TenantSlots

READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RingLimits:
    """Bounds and times of a watch.

    `frames_max` and `bytes_max` bound the ring, and `frames_max` the live records buffered during a resync.
    `page_records` and `page_bytes` bound one read of the log for viewers behind the ring; each such viewer may hold a
    page. `pages_max` pages are shared for `page_fresh_s`. A watch ends `linger_s` after its last viewer left, and
    retries an unavailable log after `retry_s`. After `silence_s` without a live event it checks the log for one.
    Facts that follow each other within `together_s` are one change.
    """

    frames_max: int = 1_024
    bytes_max: int = 1_048_576
    page_records: int = 128
    page_bytes: int = 65_536
    pages_max: int = 8
    page_fresh_s: float = 1.0
    linger_s: float = 5.0
    retry_s: float = 1.0
    silence_s: float = 20.0
    together_s: float = 0.1


_Frames = tuple[Sequence[EventFrame], int]


class _LogReplaced(Exception):
    """The log has another epoch, or lost its newest events."""


class Watch:
    """The events stored from now on under some patterns; `run` maintains it.

    `ring` is None until the first sync with the log. No event above `begin` is missing; `last_fact_sequence` is the
    newest fact's. `ended` is set by a fact that ends a deliberation. `replaced` is set when another log took this log's
    place; events of that log have no position here. `observe` receives every event before any viewer does, once or more
    often.
    """

    def __init__(
        self,
        journal: Journal,
        patterns: Patterns,
        limits: RingLimits,
        reads: TenantSlots,
        observe: Callable[[Record], None],
    ) -> None:
        self.patterns = patterns
        self.epoch = ""
        self.ring: Ring | None = None
        self.begin = 0
        self.last_fact_sequence = 0
        self.ended = False
        self.replaced = False
        self.viewers = 0
        self.task: asyncio.Task[None] | None = None
        self.closing: asyncio.TimerHandle | None = None
        self._journal = journal
        self._limits = limits
        self._reads = reads
        self._observe = observe
        self._page_records = limits.page_records
        self._pages = KeyedSingleFlightCache[tuple[Patterns, int], _Frames](
            limits.page_fresh_s, size_max=limits.pages_max
        )
        self._changed = asyncio.Event()
        self._projection = Projection(journal, patterns, self.deliver, self._replay, self._wait, retry_s=limits.retry_s)
        self._synced = False
        self._buffer: list[Record] = []

    def deliver(self, record: Record) -> None:
        """Take a live event, or buffer it until the log has been read where an earlier event may have been lost."""
        if self._synced and not self._projection.stale.is_set():
            self._store(record)
            return
        self._buffer.append(record)
        if len(self._buffer) > self._limits.frames_max:
            self._buffer.clear()
            self.resync()

    def resync(self) -> None:
        self._projection.stale.set()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, until_s: float) -> None:
        event = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await event.wait()

    async def run(self) -> None:
        with suppress(_LogReplaced):
            await self._projection.run()

    async def _wait(self, projection: Projection) -> None:
        """Wait until a resync is due: requested, or the log holds an event that should have been delivered."""
        assert self.ring is not None, "the first replay makes the ring"
        while True:
            last = self.ring.last
            if await projection.stale_within(self._limits.silence_s):
                return
            if self.ring.last == last and await self._missed(last):
                return

    async def _missed(self, after: int) -> bool:
        with suppress(JournalUnavailable):
            for pattern in self.patterns:
                async for _ in self._journal.read(pattern, after, limit=1):
                    return True
        return False

    async def _replay(self, journal: Journal) -> None:
        """Read what may have been lost; then store the buffered events without giving way to other tasks."""
        self._synced = False
        async with self._reads.slot(tenant_of(self.patterns)):
            await self._catch_up(journal)
        if self._projection.stale.is_set():
            return
        buffered, self._buffer, self._synced = self._buffer, [], True
        for record in buffered:
            self._store(record)
        self.wake()

    async def _catch_up(self, journal: Journal) -> None:
        state = await journal.state()
        if self.ring is None:
            self.epoch, self.begin = state.epoch, state.last_sequence
            self.ring = Ring(state.last_sequence, self._limits.frames_max, self._limits.bytes_max)
        elif state.epoch != self.epoch or state.last_sequence < self.ring.last:
            # A log that lost its newest events gives their sequences out again.
            self.replaced = True
            self.wake()
            raise _LogReplaced
        position = self.ring.last
        while position < state.last_sequence:
            page = await read_page(journal, self.patterns, position, state.last_sequence, self._limits.page_records)
            position = page.position
            for record in page.records:
                self._store(record)

    def _store(self, record: Record) -> None:
        ring = self.ring
        if ring is None or record.sequence <= ring.last:
            return
        frame = frame_of(self.epoch, record)
        if frame is None:
            ring.last = record.sequence
            return
        self._observe(record)
        ring.push(frame)
        if frame.type not in VIEW_TYPES:
            self.last_fact_sequence = frame.sequence
            self.ended = self.ended or frame.ends
        self.wake()

    async def page(self, patterns: Patterns, after: int) -> _Frames:
        """Stored frames above `after`, and the position up to which they are complete, read once for viewers."""
        assert self.ring is not None, "the first replay makes the ring"
        # The floor is taken before the log is read, so that the ring holds everything above it.
        floor = self.ring.floor

        async def load() -> _Frames:
            read = await read_page(self._journal, patterns, after, floor, self._page_records)
            return self._bounded(self._frames(read.records), read.position)

        return await self._pages[patterns, after].get(load)

    def _bounded(self, frames: Sequence[EventFrame], position: int) -> _Frames:
        """At least one frame, and no more than fit in `page_bytes`; later reads are sized by what fitted."""
        limits, size = self._limits, 0
        for count, frame in enumerate(frames):
            size += len(frame.data)
            if count and size > limits.page_bytes:
                self._page_records = max(1, self._page_records // 2)
                return frames[:count], frames[count - 1].sequence
        if size < limits.page_bytes // 4:
            self._page_records = min(limits.page_records, self._page_records * 2)
        return frames, position

    def _frames(self, records: Sequence[Record]) -> Sequence[EventFrame]:
        frames: list[EventFrame] = []
        for record in records:
            frame = frame_of(self.epoch, record)
            if frame is not None:
                self._observe(record)
                frames.append(frame)
        return frames


class Viewer:
    """A reader of a watch up to `position`. Behind the ring it reads the log under `stored`."""

    def __init__(self, watch: Watch, position: int, limits: RingLimits, stored: Patterns | None = None) -> None:
        self.position = position
        self._watch = watch
        self._limits = limits
        self._stored = stored or watch.patterns

    async def batch(self, until_s: float) -> Sequence[EventFrame]:
        """All available frames above `position`, in order.

        Waits for some, until the loop's time `until_s` at most. Empty after a time-out, after a wake-up without a
        frame, and when a page of the log holds none.
        """
        ring = self._watch.ring
        if ring is None or self._watch.replaced:
            await self._watch.changed(until_s)
            return ()
        if self.position < ring.floor:
            return await self._page(until_s)
        frames = ring.after(self.position)
        if not frames:
            await self._watch.changed(until_s)
            frames = ring.after(self.position) if self.position >= ring.floor else ()
        if frames:
            self.position = frames[-1].sequence
        return frames

    async def _page(self, until_s: float) -> Sequence[EventFrame]:
        try:
            frames, self.position = await self._watch.page(self._stored, self.position)
        except JournalUnavailable:
            await self._watch.changed(min(until_s, asyncio.get_running_loop().time() + self._limits.retry_s))
            return ()
        return frames


class Feed:
    """All watches of this process, and the bounds on open streams. `observe` gets every event before a viewer does."""

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
        self._reads = TenantSlots(READS_AT_ONCE)
        self._group = asyncio.TaskGroup()
        self._watches: dict[Patterns, Watch] = {}
        self._streams_of: Counter[str] = Counter()
        self.texts = TextLeases(journal)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(coroutine) for coroutine in (self._drain_on_event(), self.texts.renew())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drain()
        for task in self._tasks:
            task.cancel()
        for watch in list(self._watches.values()):
            self._close(watch)
        # The group does not get the context's error: only a watch that crashed makes an exception group.
        await self._group.__aexit__(None, None, None)

    @property
    def watched(self) -> int:
        return len(self._watches)

    @property
    def streams(self) -> int:
        return self._streams_of.total()

    def drain(self) -> None:
        self.draining.set()
        for watch in self._watches.values():
            watch.wake()

    async def _drain_on_event(self) -> None:
        await self.draining.wait()
        self.drain()

    def acquire_slot(self, client: str) -> bool:
        if self.streams >= self._streams_max or self._streams_of[client] >= self._streams_per_client_max:
            return False
        self._streams_of[client] += 1
        return True

    def release_slot(self, client: str) -> None:
        self._streams_of[client] -= 1
        if not self._streams_of[client]:
            del self._streams_of[client]

    @asynccontextmanager
    async def watch(self, patterns: Patterns, texts: Keys = frozenset()) -> AsyncGenerator[Watch, None]:
        """The watch under these patterns, shared with others; it closes some seconds after the last viewer left.

        `texts` are the deliberations whose texts are wanted as they grow.
        """
        watch = self._watches.get(patterns)
        if watch is None or watch.replaced:
            watch = self._watches[patterns] = Watch(self._journal, patterns, self._limits, self._reads, self._observe)
            watch.task = self._group.create_task(watch.run())
        if watch.closing is not None:
            watch.closing.cancel()
        watch.viewers += 1
        try:
            with self.texts.held(texts):
                await self.texts.announce(texts)
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
        """Whether a fact above `after_sequence` is stored by `timeout_s` from now; False while draining.

        Returns `together_s` after the first such fact, or with the end. Three calls that finish together wake a client
        once.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        async with self.watch(of_deliberation(tenant, deliberation_id)) as watch:
            facts_read = False
            while not self.draining.is_set():
                if watch.replaced or watch.last_fact_sequence > after_sequence:
                    await self._settle(watch, min(until_s, loop.time() + self._limits.together_s))
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

    async def _settle(self, watch: Watch, until_s: float) -> None:
        while not (watch.ended or watch.replaced or self.draining.is_set()):
            if asyncio.get_running_loop().time() >= until_s:
                return
            await watch.changed(until_s)
