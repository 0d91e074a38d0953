"""Event streams and pages: resumed at a cursor or begun with snapshots, then followed live."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar

from app.api.cursor import Cursor
from app.api.event_schemas import (
    DeliberationSnapshot,
    DeliberationsSnapshot,
    StreamEnvelope,
    StreamOpened,
    StreamReconnect,
)
from app.api.resource import resource
from app.api.schemas import dump
from app.archive.database.store import Archived
from app.catalog.entries import ListFilter, summary
from app.catalog.index import Catalog
from app.deliberation.errors import DeliberationDeleted, Gone, JournalUnavailable, NotFound
from app.deliberation.ports import Clock, Journal, StreamState
from app.lifecycle.lists import Lists
from app.log.paging import Page, read_page
from app.streaming.answers import AnswerFrames, unfinished_answer
from app.streaming.event_stream import EventStreamResponse
from app.streaming.feed import Feed
from app.streaming.frames import (
    DELETED,
    EventFrame,
    FrameBatcher,
    chunked,
    control_frame,
    cursor_frame,
    event_in,
    frame_of,
)
from app.streaming.resume import EventsRequest, ResumePoint, resume_at
from app.streaming.snapshots import Snapshot, SnapshotCache, SnapshotSet, snapshot_at

RETRY_MS = 2_000
# A gateway that starts listens before it has read a long log, which a stream may have to wait for.
LOG_TIMEOUT_S = 10.0
_RETRY_S = 0.1
# Skipped events update a viewer's cursor no more often than this.
CURSOR_UPDATE_S = 0.5
LISTED_MAX = 200
PAGE_RECORDS = 256
PAGE_BYTES = 2_000_000
EXAMINED_MAX = 10_000


_Read = TypeVar("_Read")

ReadArchive = Callable[[str, str], Awaitable[Archived | None]]


def _item(epoch: str, sequence: int, event: bytes) -> bytes:
    return f'{{"id":"{Cursor(epoch, sequence)}",'.encode() + event[1:]


def _framed(event: StreamEnvelope | DeliberationSnapshot, retry_ms: int | None = None) -> bytes:
    retry = b"" if retry_ms is None else f"retry: {retry_ms}\n".encode()
    return retry + control_frame(event.type, dump(event))


def _up_to_last_end(frames: Sequence[EventFrame], unended: set[str]) -> int | None:
    """The number of frames up to the last terminal event that `unended` waits for; None while it waits for more."""
    for count, frame in enumerate(frames, start=1):
        if frame.deliberation_id in unended and frame.ends:
            unended.remove(frame.deliberation_id)
            if not unended:
                return count
    return None


@dataclass(frozen=True, slots=True)
class Streams:
    """Answers requests for events with streams and pages.

    Streams send a comment after `heartbeat_s` of silence, and end after `age_max_s` or `send_timeout_s` without a byte
    taken. `kept_s` returns for how long a tenant's deliberations can be read.
    """

    journal: Journal
    catalog: Catalog
    lists: Lists
    feed: Feed
    clock: Clock
    snapshots: SnapshotCache
    answers: AnswerFrames
    archived: ReadArchive
    kept_s: Callable[[str], int]
    heartbeat_s: float
    age_max_s: float
    send_timeout_s: float

    async def resume(self, request: EventsRequest, *, patient: bool = False) -> ResumePoint:
        """The point at which the request resumes; raises NotFound, Gone and JournalUnavailable.

        With `patient` it waits for the log: a browser gives up a stream that any status refuses.
        """

        async def known() -> ResumePoint:
            return resume_at(request, await self._known(request), self.clock.now())

        try:
            return await self._patiently(known, LOG_TIMEOUT_S if patient else 0.0)
        except DeliberationDeleted:
            raise
        except (NotFound, Gone):
            point = await self._in_archive(request)
            if point is None:
                raise
            return point

    async def _patiently(self, read: Callable[[], Awaitable[_Read]], timeout_s: float) -> _Read:
        """The result of `read`, repeated for `timeout_s` while it raises JournalUnavailable, but not while draining."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while True:
            try:
                return await read()
            except JournalUnavailable:
                if loop.time() >= until_s or self.feed.draining.is_set():
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _in_archive(self, request: EventsRequest) -> ResumePoint | None:
        if request.deliberation_id is None:
            return None
        archived = await self.archived(request.tenant, request.deliberation_id)
        if archived is None:
            return None
        # Nothing follows its last event, so a cursor of the same log is never beyond the end.
        last_sequence = archived.records[-1].sequence
        end = max(last_sequence, 0 if request.cursor is None else request.cursor.sequence)
        known = SnapshotSet(StreamState(archived.epoch, 1, end), [snapshot_at(archived.records, last_sequence)])
        return replace(resume_at(request, known, self.clock.now()), archived=archived.records)

    async def _known(self, request: EventsRequest) -> SnapshotSet:
        if not request.single:
            self.catalog.require_caught_up()
        # Another gateway may have sent events that are newer than this gateway's last snapshot.
        at_least = 0 if request.cursor is None else request.cursor.sequence
        known = await self.snapshots.get(request.snapshot_key, at_least)
        if request.statuses:
            await self.catalog.complete(self.journal, known.log)
        return known

    async def _snapshot_frames(self, point: ResumePoint) -> tuple[bytes, ...]:
        request, known, loop = point.request, point.known, asyncio.get_running_loop()

        async def encode() -> tuple[bytes, ...]:
            began_s = loop.time()
            if request.ids:
                chosen = [s for s in known.snapshots if not request.statuses or s.state.status in request.statuses]
                frames = tuple([_framed(await self._snapshot(request, snapshot, known)) for snapshot in chosen])
            else:
                frames = (_framed(await self._listed(request, known)),)
            self.snapshots.charge(request.snapshot_key, loop.time() - began_s)
            return frames

        return await known.frames.get(encode)

    async def _snapshot(self, request: EventsRequest, snapshot: Snapshot, known: SnapshotSet) -> DeliberationSnapshot:
        unfinished = await self.snapshots.unfinished(request.tenant, snapshot, known.log.last_sequence)
        if request.answers:
            unfinished = tuple(map(unfinished_answer, unfinished))
        return DeliberationSnapshot(
            deliberation_id=snapshot.deliberation_id,
            ts=self.clock.now(),
            deliberation=resource(snapshot.state, epoch=known.log.epoch, retention_s=self.kept_s(request.tenant)),
            unfinished=unfinished,
        )

    async def _listed(self, request: EventsRequest, known: SnapshotSet) -> DeliberationsSnapshot:
        asked = ListFilter(statuses=request.statuses)
        listed, known.listed_to = await self.lists.newest(request.tenant, asked, known.log, limit=LISTED_MAX)
        return DeliberationsSnapshot(
            deliberation_id=None,
            ts=self.clock.now(),
            items=tuple(map(summary, listed.entries)),
            next_cursor=listed.next_cursor,
        )

    def _opened(self, point: ResumePoint) -> StreamOpened:
        log, last_sequence, retention_until = point.known.log, point.known.log.last_sequence, None
        if point.request.single:
            state = point.known.snapshots[0].state
            last_sequence = state.last_sequence
            retention_until = state.accepted.ts + timedelta(seconds=self.kept_s(point.request.tenant))
        return StreamOpened(
            deliberation_id=point.request.deliberation_id,
            ts=self.clock.now(),
            first=str(Cursor(log.epoch, max(0, log.first_sequence - 1))),
            last=str(Cursor(log.epoch, last_sequence)),
            heartbeat_s=self.heartbeat_s,
            retention_until=retention_until,
        )

    async def head(self, point: ResumePoint) -> list[bytes]:
        frames = [_framed(self._opened(point), RETRY_MS)]
        if point.gap is not None:
            frames.append(_framed(point.gap))
        if point.cursor is None:
            frames += [*await self._snapshot_frames(point), cursor_frame(point.epoch, point.start)]
        return frames

    async def page(self, point: ResumePoint, limit: int) -> bytes:
        """An EventPage as JSON, from the first retained event on when the viewer has no cursor.

        Events are copied as they are stored, unless answers are asked for. A page may hold fewer than `limit` although
        more follow: at most about `EXAMINED_MAX` are examined, and `PAGE_BYTES` bound it once an event exceeds them.
        """
        request, epoch = point.request, point.epoch
        controls = [] if point.gap is None else [dump(point.gap), *map(event_in, await self._snapshot_frames(point))]
        position = point.begin if point.cursor is None and point.gap is None else point.start
        unended = point.unended_after(position)
        if not request.ids or any(snapshot.end_sequence is None for snapshot in point.known.snapshots):
            # A client that comes again for the next page gets texts from now on.
            await self.feed.texts.announce(request.texts)
        items = [_item(epoch, position, event) for event in controls]
        # A page of one deliberation reads as far as the log goes, and ends at the terminal event.
        up_to = None if request.single else point.known.log.last_sequence
        takes, examined, size, complete = self._filter(request), 0, 0, point.gap is not None
        while not complete and (unended or not request.single) and len(items) < limit and examined < EXAMINED_MAX:
            if point.archived is None:
                read = await read_page(self.journal, request.stored, position, up_to, PAGE_RECORDS)
            else:
                left = [record for record in point.archived if record.sequence > position]
                read = Page(left, position, complete=True)
            position, complete, examined = read.position, read.complete, examined + len(read.records)
            for record in read.records:
                frame = frame_of(epoch, record)
                if frame is None:
                    continue
                if frame.ends:
                    unended.discard(frame.deliberation_id)
                (frame,) = await self._shown(request, [frame])
                if takes(frame):
                    items.append(_item(epoch, record.sequence, event_in(frame.data)))
                    size += len(items[-1])
                if len(items) == limit or size > PAGE_BYTES or (request.single and not unended):
                    position, complete = record.sequence, True
                    break
        ended = "true" if request.ids and not unended else "false"
        end = f'],"next":"{Cursor(epoch, position)}","ended":{ended}}}'
        return b'{"items":[' + b",".join(items) + end.encode()

    async def _shown(self, request: EventsRequest, frames: Sequence[EventFrame]) -> Sequence[EventFrame]:
        """The frames as the request asks for them; raises JournalUnavailable. Then `_takes` knows their statuses."""
        if request.statuses:
            await self.catalog.recall(self.journal, request.tenant, {frame.deliberation_id for frame in frames})
        if not request.answers:
            return frames
        return await self.answers.of(request.tenant, frames, request.selection.takes)

    async def _shown_patiently(self, request: EventsRequest, frames: Sequence[EventFrame]) -> Sequence[EventFrame]:
        """The same, once the log can be read; nothing while draining, because the viewer comes back for them."""
        while not self.feed.draining.is_set():
            try:
                return await self._shown(request, frames)
            except JournalUnavailable:
                await asyncio.sleep(_RETRY_S)
        return ()

    def _filter(self, request: EventsRequest) -> Callable[[EventFrame], bool]:
        if request.live == request.stored and not request.statuses:
            return request.selection.takes
        return partial(self._takes, request)

    def _takes(self, request: EventsRequest, frame: EventFrame) -> bool:
        """Select by id, type and status. Tombstones pass with any status, so that viewers drop the deliberation."""
        if (request.ids and frame.deliberation_id not in request.ids) or not request.selection.takes(frame):
            return False
        if not request.statuses or frame.type == DELETED:
            return True
        entry = self.catalog.find(request.tenant, frame.deliberation_id)
        if entry is None:
            return False
        return not request.statuses.isdisjoint((entry.status_at(frame.sequence - 1), entry.status_at(frame.sequence)))

    async def response(self, point: ResumePoint, headers: Mapping[str, str]) -> EventStreamResponse:
        head = await self._patiently(lambda: self.head(point), LOG_TIMEOUT_S)
        unended = point.unended_after(point.start)
        if point.archived is None:
            chunks = self._chunks(point.request, point.epoch, point.start, unended, head)
        else:
            chunks = self._archived_chunks(point, head)
        return EventStreamResponse(chunks, heartbeat_s=self.heartbeat_s, stalled_s=self.send_timeout_s, headers=headers)

    async def _archived_chunks(self, point: ResumePoint, head: list[bytes]) -> AsyncGenerator[bytes, None]:
        left = [record for record in point.archived or () if record.sequence > point.start]
        stored = [frame for record in left if (frame := frame_of(point.epoch, record)) is not None]
        frames = await self._shown_patiently(point.request, stored)
        count = _up_to_last_end(frames, point.unended_after(point.start))
        batcher = FrameBatcher(self._filter(point.request), point.epoch)
        for chunk in [*chunked(head), *batcher.chunks(frames[:count]), batcher.cursor_update()]:
            yield chunk

    def _reconnect(self, request: EventsRequest, reason: Literal["draining", "max_age", "slow_consumer"]) -> bytes:
        event = StreamReconnect(deliberation_id=request.deliberation_id, ts=self.clock.now(), reason=reason)
        return _framed(event, RETRY_MS // 2 + random.randrange(RETRY_MS))

    async def _chunks(
        self, request: EventsRequest, epoch: str, start: int, unended: set[str], head: list[bytes]
    ) -> AsyncGenerator[bytes, None]:
        """The stream's whole frames: the head, then events above `start`, stored and live, up to the last of `unended`.

        The head is emptied, so that no viewer keeps a snapshot in memory.
        """
        feed, loop = self.feed, asyncio.get_running_loop()
        ends_at_s = loop.time() + self.age_max_s * random.uniform(0.9, 1.0)
        batcher, update_at_s = FrameBatcher(self._filter(request), epoch), 0.0
        for chunk in chunked(head):
            yield chunk
        head.clear()
        chunk = b""
        if request.ids and not unended:
            return
        async with feed.watch(request.live, request.texts) as watch:
            viewer = feed.viewer(watch, start, request.stored)
            while not watch.replaced:
                if watch.epoch not in ("", epoch):
                    watch.resync()  # the log was replaced before the watch or this stream noticed
                    break
                if feed.draining.is_set() or loop.time() >= ends_at_s:
                    reason = "draining" if feed.draining.is_set() else "max_age"
                    yield batcher.cursor_update() + self._reconnect(request, reason)
                    return
                frames = await viewer.batch(ends_at_s if batcher.skipped is None else min(ends_at_s, update_at_s))
                frames = await self._shown_patiently(request, frames)
                count = _up_to_last_end(frames, unended)
                for chunk in batcher.chunks(frames if count is None else frames[:count]):
                    began_s = loop.time()
                    yield chunk
                    if loop.time() - began_s > self.send_timeout_s / 2:
                        yield self._reconnect(request, "slow_consumer")
                        return
                if count is not None:
                    yield batcher.cursor_update()
                    return
                if batcher.skipped is not None and loop.time() >= update_at_s:
                    yield batcher.cursor_update()
                    update_at_s = loop.time() + CURSOR_UPDATE_S
            self.snapshots.clear()
