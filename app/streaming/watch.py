"""A watch: what is stored from now on under some patterns, kept for a while for all who look, never for one alone.

It holds the newest frames in a bounded ring that all of its viewers read. A viewer is no more than a position: whoever
is behind the ring reads the log, whoever is level waits for the next wake-up.

What makes a replay join the live events without gap or duplicate: sequences only grow; the ring knows above which
sequence (`floor`) it is complete; and a read of the log that began after that floor was known covers everything below.
Nothing relies on sequences being dense: they count the events of all deliberations together.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Journal, Record, Subscription
from app.log.paging import Patterns, read_page
from app.streaming.frames import VIEW_TYPES, EventFrame, Ring, frame_of
from app.streaming.single_flight import KeyedSingleFlightCache


@dataclass(frozen=True, slots=True)
class RingLimits:
    """What a watch may hold, and how long it waits.

    `frames_max` and `bytes_max` bound the ring. `page_records` and `page_bytes` bound what is read of the log at once
    for viewers behind it, of which each may hold a page of its own; `pages_max` pages are shared for `page_fresh_s`.
    `linger_s` is how long a watch outlives its last viewer, `retry_s` how long it waits when the log is away. After
    `silence_s` without an event the log is asked for one.
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


class Watch:
    """What is stored from now on under some patterns; `follow` runs for as long as anyone watches.

    `ring` is there once the watch has begun; everything above `since` has been heard. `last_fact_sequence` is the place
    of the newest fact heard. `foreign` tells that the log has become another one, in which what was shown has no place.
    `observe` is given every event before any viewer is shown it, once or more often.
    """

    def __init__(
        self,
        journal: Journal,
        patterns: Patterns,
        limits: RingLimits,
        mending: asyncio.Semaphore,
        observe: Callable[[Record], None],
    ) -> None:
        self.patterns = patterns
        self.epoch = ""
        self.ring: Ring | None = None
        self.since = 0
        self.last_fact_sequence = 0
        self.foreign = False
        self.viewers = 0
        self.task: asyncio.Task[None] | None = None
        self.farewell: asyncio.TimerHandle | None = None
        self._journal = journal
        self._limits = limits
        self._mending = mending
        self._observe = observe
        self._page_records = limits.page_records
        self._pages = KeyedSingleFlightCache[tuple[Patterns, int], _Frames](
            limits.page_fresh_s, size_max=limits.pages_max
        )
        self._changed = asyncio.Event()
        self._doubted = asyncio.Event()
        self._certain = False
        self._held: list[Record] = []

    def deliver(self, record: Record) -> None:
        """Take a live event; while it is uncertain whether one was missed, hold it back until the log has been read."""
        if self._certain:
            self._store(record)
            return
        self._held.append(record)
        if len(self._held) > self._limits.frames_max:
            self._held.clear()
            self._doubted.set()

    def doubt(self) -> None:
        """Live events may have been missed: read the log again from the last one that was shown."""
        self._certain = False
        self._doubted.set()

    def wake(self) -> None:
        """Let every viewer look again, once, however many events came in one turn of the loop."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, until_s: float) -> None:
        """Wait for the next wake-up, or for the loop's time `until_s`."""
        event = self._changed
        try:
            async with asyncio.timeout_at(until_s):
                await event.wait()
        except TimeoutError:
            return

    async def follow(self) -> None:
        """Hold the subscription, and mend whatever a lost connection tears, until cancelled."""
        subscription = await self._subscribed()
        try:
            await self._mend()
            while not self.foreign:
                await self._doubt_or_silence()
                await self._mend()
        finally:
            await subscription.close()

    async def _doubt_or_silence(self) -> None:
        """Wait for a reason to read the log again: a doubt, or an event in it that should have been heard long ago."""
        while not self._doubted.is_set():
            assert self.ring is not None, "a watch is mended first"
            heard = self.ring.last
            try:
                async with asyncio.timeout(self._limits.silence_s):
                    await self._doubted.wait()
            except TimeoutError:
                if self.ring.last == heard and await self._more_stored(self.ring):
                    return

    async def _more_stored(self, ring: Ring) -> bool:
        """Whether the log has an event beyond the last one heard."""
        try:
            for pattern in self.patterns:
                async for record in self._journal.read(pattern, ring.last, limit=1):
                    if record.sequence > ring.last:
                        return True
        except JournalUnavailable:
            return False
        return False

    async def _subscribed(self) -> Subscription:
        while True:
            try:
                return await self._journal.subscribe(self.patterns, self.deliver)
            except JournalUnavailable:
                await asyncio.sleep(self._limits.retry_s)

    async def _mend(self) -> None:
        """Read what may have been missed; then, without giving way to anyone in between, take what was held back."""
        self.doubt()
        while self._doubted.is_set():
            self._doubted.clear()
            try:
                async with self._mending:
                    await self._catch_up()
            except JournalUnavailable:
                await self._patience()
        held, self._held = self._held, []
        self._certain = True
        if not self.foreign:
            for record in held:
                self._store(record)
        self.wake()

    async def _patience(self) -> None:
        """Wait for a word that the log is back, but not for ever; then doubt still."""
        try:
            async with asyncio.timeout(self._limits.retry_s):
                await self._doubted.wait()
        except TimeoutError:
            self._doubted.set()

    async def _catch_up(self) -> None:
        state = await self._journal.state()
        if self.ring is None:
            self.epoch, self.since = state.epoch, state.last_sequence
            self.ring = Ring(state.last_sequence, self._limits.frames_max, self._limits.bytes_max)
        elif state.epoch != self.epoch or state.last_sequence < self.ring.last:
            # Also a log that lost its tail counts as another one: it will give the same sequences out again.
            self.foreign = True
        else:
            position = self.ring.last
            while position < state.last_sequence:
                page = await read_page(
                    self._journal, self.patterns, position, state.last_sequence, self._limits.page_records
                )
                position = page.position
                for record in page.records:
                    self._store(record)

    def _store(self, record: Record) -> None:
        ring = self.ring
        if ring is None or self.foreign or record.sequence <= ring.last:
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
        """Stored frames above `after` under some patterns, and up to where they are complete.

        For viewers behind the ring; those who ask for the same within a moment share one read and its frames. Raises
        JournalUnavailable.
        """
        assert self.ring is not None, "a watch is begun first"
        # The floor is known before the log is read; what is above it is in the ring.
        floor = self.ring.floor

        async def ask() -> _Frames:
            read = await read_page(self._journal, patterns, after, floor, self._page_records)
            return self._bounded(self._frames(read.records), read.position)

        return await self._pages[patterns, after].get(ask)

    def _bounded(self, frames: Sequence[EventFrame], position: int) -> _Frames:
        """As many frames as `page_bytes` lets pass, one at least; where they are large, fewer are read from now on."""
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
    """A reader of a watch: everything up to `position` has been given to it, and nothing is kept for it.

    `stored` are the patterns under which it reads the log when it is behind; those of the watch, or narrower ones.
    """

    def __init__(self, watch: Watch, position: int, limits: RingLimits, stored: Patterns | None = None) -> None:
        self.position = position
        self._watch = watch
        self._limits = limits
        self._stored = stored or watch.patterns

    async def batch(self, until_s: float) -> Sequence[EventFrame]:
        """The frames above `position`, in order, as many as are at hand.

        Waits for them when there are none, but not beyond the loop's time `until_s`. Empty when there is reason to look
        at the world again: time is up, the watch woke everyone, or events passed that are not shown.
        """
        ring = self._watch.ring
        if ring is None or self._watch.foreign:
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
