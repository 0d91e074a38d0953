"""Live fan-out: one subscription per watched deliberation, each frame encoded once, and no backlog per viewer.

A `Watch` holds the newest frames of one deliberation in a bounded ring that all of its viewers read. A viewer is no
more than a position: whoever is behind the ring reads the log, whoever is level waits for the next wake-up.

What makes a replay join the live events without gap or duplicate: sequences only grow; the ring knows above which
sequence (`floor`) it is complete; and a read of the log that began after that floor was known covers everything below.
Nothing relies on sequences being dense: they count the events of all deliberations together.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import prefix
from app.deliberation.ports import Journal, Record, Subscription
from app.frames import VIEW_TYPES, Frame, Ring, frame_of

_MENDS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What a watch may hold, and how long it waits.

    `frames_max` and `bytes_max` bound the ring; `page_records` bounds one read of the log for one viewer; `linger_s`
    is how long a watch outlives its last viewer; `retry_s` how long it waits when the log is away.
    """

    frames_max: int = 1_024
    bytes_max: int = 1_048_576
    page_records: int = 128
    linger_s: float = 5.0
    retry_s: float = 1.0


class Watch:
    """One deliberation as it is stored from now on; `follow` runs for as long as anyone watches.

    `ring` is there once the watch has begun; everything above `since` has been heard. `last_fact_sequence` is the place
    of the newest fact heard. `foreign` tells that the log has become another one, in which what was shown has no place.
    """

    def __init__(self, journal: Journal, subject: str, limits: Limits, mending: asyncio.Semaphore) -> None:
        self.pattern = f"{subject}.>"
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
                await self._doubted.wait()
                await self._mend()
        finally:
            await subscription.close()

    async def _subscribed(self) -> Subscription:
        while True:
            try:
                return await self._journal.subscribe([self.pattern], self.deliver)
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
            async for record in self._journal.read(self.pattern, self.ring.last):
                self._store(record)

    def _store(self, record: Record) -> None:
        ring = self.ring
        if ring is None or self.foreign or record.sequence <= ring.last:
            return
        frame = frame_of(self.epoch, record)
        if frame is None:
            ring.last = record.sequence
            return
        ring.push(frame)
        if frame.type not in VIEW_TYPES:
            self.last_fact_sequence = frame.sequence
        self.wake()


class Viewer:
    """A reader of a watch: everything up to `position` has been given to it, and nothing is kept for it."""

    def __init__(self, journal: Journal, watch: Watch, position: int, limits: Limits) -> None:
        self.position = position
        self._journal = journal
        self._watch = watch
        self._limits = limits

    async def batch(self, until_s: float) -> Sequence[Frame]:
        """The frames above `position`, in order, as many as are at hand.

        Waits for them when there are none, but not beyond the loop's time `until_s`. Empty when there is reason to look
        at the world again: time is up, the watch woke everyone, or events passed that are not shown.
        """
        ring = self._watch.ring
        if ring is None or self._watch.foreign:
            await self._watch.changed(until_s)
            return ()
        if self.position < ring.floor:
            return await self._page(ring.floor, until_s)
        frames = ring.after(self.position)
        if not frames:
            await self._watch.changed(until_s)
            frames = ring.after(self.position) if self.position >= ring.floor else ()
        if frames:
            self.position = frames[-1].sequence
        return frames

    async def _page(self, floor: int, until_s: float) -> Sequence[Frame]:
        size = self._limits.page_records
        try:
            records = [record async for record in self._journal.read(self._watch.pattern, self.position, limit=size)]
        except JournalUnavailable:
            await self._watch.changed(min(until_s, asyncio.get_running_loop().time() + self._limits.retry_s))
            return ()
        if records:
            self.position = records[-1].sequence
        if len(records) < size:
            # The log has no more; it was read after `floor` was known, so that nothing up to there is missing.
            self.position = max(self.position, floor)
        frames = [frame_of(self._watch.epoch, record) for record in records]
        return [frame for frame in frames if frame is not None]


class Feed:
    """All watches of this process. An async context manager: leaving it ends them.

    `streams_max` and `streams_per_client_max` bound the seats that viewers take.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        limits: Limits | None = None,
        streams_max: int = 5_000,
        streams_per_client_max: int = 1_000,
    ) -> None:
        self.draining = anyio.Event()
        self._journal = journal
        self._limits = limits or Limits()
        self._streams_max = streams_max
        self._streams_per_client_max = streams_per_client_max
        self._mending = asyncio.Semaphore(_MENDS_AT_ONCE)
        self._group = asyncio.TaskGroup()
        self._watches: dict[str, Watch] = {}
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
        for subject, watch in list(self._watches.items()):
            self._close(subject, watch)
        # What ended the context goes on as it is: only a watch that crashed makes an exception group.
        await self._group.__aexit__(None, None, None)

    @property
    def watched(self) -> int:
        """Deliberations that are subscribed to."""
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
    async def watch(self, tenant: str, deliberation_id: str) -> AsyncGenerator[Watch, None]:
        """Watch a deliberation: shared with everyone who does, and closed some moments after the last one has left."""
        subject = prefix(tenant, deliberation_id)
        watch = self._watches.get(subject)
        if watch is None or watch.foreign:
            watch = self._watches[subject] = Watch(self._journal, subject, self._limits, self._mending)
            watch.task = self._group.create_task(watch.follow())
        if watch.farewell is not None:
            watch.farewell.cancel()
        watch.viewers += 1
        try:
            yield watch
        finally:
            watch.viewers -= 1
            if not watch.viewers:
                loop = asyncio.get_running_loop()
                watch.farewell = loop.call_later(self._limits.linger_s, self._close, subject, watch)

    def _close(self, subject: str, watch: Watch) -> None:
        if watch.farewell is not None:
            watch.farewell.cancel()
        if watch.task is not None:
            watch.task.cancel()
        if self._watches.get(subject) is watch:
            del self._watches[subject]

    def viewer(self, watch: Watch, position: int) -> Viewer:
        """A reader of `watch` that has seen everything up to `position`."""
        return Viewer(self._journal, watch, position, self._limits)

    async def changed(self, tenant: str, deliberation_id: str, after_sequence: int, timeout_s: float) -> bool:
        """Whether a fact (not a view) with a sequence above `after_sequence` is stored before `timeout_s` is over.

        Also one that was stored before the call. False at once when the process drains. Raises JournalUnavailable when
        the log cannot be asked.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        async with self.watch(tenant, deliberation_id) as watch:
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
