"""A watch: one live subscription, and the newest of its frames in a ring that all of its viewers read.

A viewer is a position. At the ring's end it waits for the next wake-up; behind the ring it reads the log.

Replay joins live frames without gap or duplicate. The ring is complete above its floor, and a read that began after
that floor was known covers everything below. Sequences grow but are not dense: all deliberations share them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Journal, Record
from app.log.paging import Patterns, read_page
from app.log.projection import Projection
from app.streaming.frames import VIEW_TYPES, EventFrame, Ring, frame_of
from app.streaming.single_flight import KeyedSingleFlightCache


@dataclass(frozen=True, slots=True)
class RingLimits:
    """Bounds and times of a watch.

    `frames_max` and `bytes_max` bound the ring, and `frames_max` the live records buffered during a resync.
    `page_records` and `page_bytes` bound one read of the log for viewers behind the ring; each such viewer may hold a
    page. `pages_max` pages are shared for `page_fresh_s`. A watch ends `linger_s` after its last viewer left, and
    retries an unavailable log after `retry_s`. After `silence_s` without a live event it checks the log for one.
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


_Frames = tuple[Sequence[EventFrame], int]


class _LogReplaced(Exception):
    """The log has another epoch, or lost its newest events."""


class Watch:
    """The events stored from now on under some patterns; `run` maintains it.

    `ring` is None until the first sync with the log. No event above `begin` is missing; `last_fact_sequence` is the
    newest fact's. `replaced` is set when another log took this one's place; its events have no position here.
    `observe` receives every event before any viewer does, once or more often.
    """

    def __init__(
        self,
        journal: Journal,
        patterns: Patterns,
        limits: RingLimits,
        replays: asyncio.Semaphore,
        observe: Callable[[Record], None],
    ) -> None:
        self.patterns = patterns
        self.epoch = ""
        self.ring: Ring | None = None
        self.begin = 0
        self.last_fact_sequence = 0
        self.replaced = False
        self.viewers = 0
        self.task: asyncio.Task[None] | None = None
        self.closing: asyncio.TimerHandle | None = None
        self._journal = journal
        self._limits = limits
        self._replays = replays
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
        """Take a live event. While an earlier one may have been lost, buffer it until the log has been read."""
        if self._synced and not self._projection.stale.is_set():
            self._store(record)
            return
        self._buffer.append(record)
        if len(self._buffer) > self._limits.frames_max:
            self._buffer.clear()
            self.resync()

    def resync(self) -> None:
        """Read the log again from the newest frame on, because live events may have been lost."""
        self._projection.stale.set()

    def wake(self) -> None:
        """Wake every waiting viewer, once for all events that came in one turn of the event loop."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, until_s: float) -> None:
        event = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await event.wait()

    async def run(self) -> None:
        """Hold the subscription and resync it after every loss, until cancelled or until the log is replaced."""
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
        async with self._replays:
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
        self.wake()

    async def page(self, patterns: Patterns, after: int) -> _Frames:
        """Stored frames above `after` under some patterns, and the position up to which they are complete.

        Viewers behind the ring share one read and its frames for a moment. Raises JournalUnavailable.
        """
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
    """A reader of a watch that has received everything up to `position`. No frame is kept for it.

    Behind the ring it reads the log under `stored`: the watch's patterns, or narrower ones.
    """

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
