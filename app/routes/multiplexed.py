"""Route: the events of several deliberations in one stream, or in pages of JSON, over one cursor.

A browser has six connections to one origin, and the log counts the events of all deliberations together: so one stream
can show any number of them, and one cursor resumes it. What has no deltas is heard once for all viewers of a tenant,
whichever deliberations they name; what has them, once for all who name the same.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from app.api.cursor import Cursor
from app.api.event_schemas import DeliberationsSnapshot, StreamGap
from app.api.negotiation import Media, media_of
from app.api.schemas import Status, dump
from app.catalog.index import Catalog
from app.catalog.projection import summary
from app.deliberation.errors import Gone, InvalidToken, NotFound
from app.deliberation.ports import StreamState
from app.deliberation.specification import checked_token
from app.log.paging import Patterns, of_deliberations, of_tenant, read_page
from app.routes.dependencies import Gateway, InGateway, OfTenant
from app.routes.events import ANSWERS, EXAMINED_MAX, item, page_of
from app.streaming.event_stream import NEGOTIATED, EventStreamResponse, StreamPlan, seated, stream_events
from app.streaming.frames import DELETED, EventFrame, EventSelection, control_frame, cursor_frame, event_in, frame_of
from app.streaming.resume import EventsQuery, LastEventId, gap_at, opened_at, patiently, place_in, snapshot_of
from app.streaming.single_flight import SingleFlightCache
from app.streaming.snapshots import Snapshot

DELIBERATIONS_MAX = 64
LISTED_MAX = 200
PAGE_RECORDS = 256

router = APIRouter(tags=["events"])


class SeveralQuery(EventsQuery):
    """The query of a stream or page of several deliberations."""

    deltas: bool = Field(False, description="Whether `call.delta` events are wanted")
    deliberation: list[str] = Field(
        [], max_length=DELIBERATIONS_MAX, description="Only these deliberations, repeated; all of the tenant if none"
    )
    status: list[Status] = Field(
        [],
        max_length=7,
        description="Only events of deliberations that had one of these statuses, repeated, before the event or after",
    )


@dataclass(frozen=True, slots=True)
class SeveralRequest:
    """What a viewer asks for. `ids` is empty for all deliberations of the tenant, `statuses` for any."""

    media: Media
    selection: EventSelection
    ids: frozenset[str]
    statuses: frozenset[Status]
    cursor: Cursor | None
    limit: int


def wanted_of(
    query: Annotated[SeveralQuery, Query()],
    media: Annotated[Media, Depends(media_of)],
    last_event_id: LastEventId = None,
) -> SeveralRequest:
    """The request, checked; raises InvalidCursor, ValidationFailed, and NotFound for what can be no id."""
    cursor, selection = place_in(query.after, last_event_id), query.selection()
    try:
        ids = frozenset(checked_token(each, "id") for each in query.deliberation)
    except InvalidToken as exc:
        raise NotFound("No deliberation can have one of these ids: ids match [a-z0-9_-]{1,64}.") from exc
    return SeveralRequest(media, selection, ids, frozenset(query.status), cursor, query.limit)


@dataclass(slots=True, eq=False)
class Shown:
    """What is shown when the log ended at `log.last_sequence`: the same for all viewers who want the same.

    `looks` are those of the deliberations that are named and are there.
    """

    log: StreamState
    looks: Sequence[Snapshot]
    snapshot: SingleFlightCache[tuple[bytes, ...]] = field(
        default_factory=lambda: SingleFlightCache[tuple[bytes, ...]](inf)
    )


@dataclass(frozen=True, slots=True)
class SeveralResumePoint:
    """Where a viewer of several goes on. `cursor` is None unless the client's can be followed, and `gap` says why not.

    `remaining` are those of the named deliberations whose end the viewer has not seen.
    """

    tenant: str
    wanted: SeveralRequest
    shown: Shown
    cursor: Cursor | None
    gap: StreamGap | None
    remaining: frozenset[str]

    @property
    def over(self) -> bool:
        """Whether nothing can come any more, because every deliberation that is named has ended."""
        return bool(self.wanted.ids) and not self.remaining

    @property
    def start(self) -> int:
        """The sequence above which events are sent."""
        return self.shown.log.last_sequence if self.cursor is None else self.cursor.sequence

    @property
    def live(self) -> Patterns:
        """What is heard for it."""
        if self.wanted.ids and self.wanted.selection.deltas:
            return of_deliberations(self.tenant, self.wanted.ids)
        return of_tenant(self.tenant, deltas=self.wanted.selection.deltas)

    @property
    def stored(self) -> Patterns:
        """What is read for it where it is behind."""
        if self.wanted.ids:
            return of_deliberations(self.tenant, self.wanted.ids)
        return of_tenant(self.tenant, deltas=self.wanted.selection.deltas)


class _Filter:
    """Which events a viewer of several is shown; tombstones whatever the status, so that they are forgotten."""

    def __init__(self, tenant: str, wanted: SeveralRequest, catalog: Catalog) -> None:
        self._tenant = tenant
        self._wanted = wanted
        self._catalog = catalog

    def takes(self, frame: EventFrame) -> bool:
        """Whether this event is wanted."""
        wanted = self._wanted
        if (wanted.ids and frame.deliberation_id not in wanted.ids) or not wanted.selection.takes(frame):
            return False
        if not wanted.statuses or frame.type == DELETED:
            return True
        entry = self._catalog.find(self._tenant, frame.deliberation_id)
        if entry is None:
            return False
        return not wanted.statuses.isdisjoint((entry.status_at(frame.sequence - 1), entry.status_at(frame.sequence)))


async def _found(
    gateway: Gateway, tenant: str, ids: frozenset[str], log: StreamState
) -> list[Snapshot | NotFound | Gone]:
    """Looks at these deliberations, all at the same place of the log, or why there is none."""
    check = gateway["deliberations"].check_present

    async def found(id: str) -> Snapshot | NotFound | Gone:
        try:
            return await gateway["looks"].look_at(tenant, id, check, log)
        except (NotFound, Gone) as exc:
            return exc

    return await asyncio.gather(*map(found, sorted(ids)))


async def _shown(gateway: Gateway, tenant: str, wanted: SeveralRequest) -> Shown:
    """What there is now; raises NotFound and Gone.

    On a `first` opening nothing that is named may be unknown. Later, what has gone meanwhile is passed over as long as
    anything is left, since browsers give up a stream that is refused.
    """
    first, log = wanted.cursor is None, await gateway["journal"].state()
    while True:
        found = await _found(gateway, tenant, wanted.ids, log)
        looks = [each for each in found if isinstance(each, Snapshot)]
        faults = [each for each in found if not isinstance(each, Snapshot)]
        unknown = [each for each in faults if isinstance(each, NotFound)]
        if unknown and (first or not looks):
            raise unknown[0]
        if faults and not looks:
            raise faults[0]
        newest = max((look.log for look in looks), key=lambda bounds: bounds.last_sequence, default=log)
        if all(look.log == newest for look in looks):
            if wanted.statuses:
                await gateway["catalog"].complete(gateway["journal"], newest)
            return Shown(newest, looks)
        log = newest  # one was accepted after the first question: all are looked at again, as they are then


async def opening_of_several(
    gateway: InGateway, tenant: OfTenant, wanted: Annotated[SeveralRequest, Depends(wanted_of)]
) -> SeveralResumePoint:
    """Everything a stream or page needs to know before it opens; raises NotFound, Gone and JournalUnavailable."""
    cursor, ids = wanted.cursor, wanted.ids
    beyond = 0 if cursor is None else cursor.sequence

    async def ask() -> Shown:
        gateway["catalog"].require_caught_up()
        share = gateway["looks"].several[tenant, ids, wanted.statuses, cursor is None]
        return await share.get(partial(_shown, gateway, tenant, wanted), lambda each: each.log.last_sequence >= beyond)

    known = await patiently(gateway, wanted.media, ask)
    gap = None if cursor is None else gap_at(cursor, known.log, gateway["clock"].now(), None)
    cursor = None if gap is not None else cursor
    seen = known.log.last_sequence if cursor is None else cursor.sequence
    remaining = frozenset(
        look.deliberation_id for look in known.looks if look.end_sequence is None or look.end_sequence > seen
    )
    return SeveralResumePoint(tenant, wanted, known, cursor, gap, remaining)


async def _snapshots(opened: SeveralResumePoint, gateway: Gateway) -> tuple[bytes, ...]:
    """Frames: a snapshot of each deliberation that is named, or a list of the tenant's newest; once for a crowd."""
    wanted, log, catalog = opened.wanted, opened.shown.log, gateway["catalog"]

    async def ask() -> tuple[bytes, ...]:
        if wanted.ids:
            looks = [look for look in opened.shown.looks if not wanted.statuses or look.state.status in wanted.statuses]
            return tuple([await snapshot_of(look, gateway) for look in looks])
        await catalog.complete(gateway["journal"], log)
        entries, more = catalog.page_at(opened.tenant, wanted.statuses, log.last_sequence, limit=LISTED_MAX)
        told = DeliberationsSnapshot(
            deliberation_id=None,
            ts=gateway["clock"].now(),
            items=tuple(summary(entry) for entry in entries),
            next_cursor=catalog.cursor(entries[-1].sequence) if more else None,
        )
        return (control_frame(told.type, dump(told)),)

    return await opened.shown.snapshot.get(ask)


async def head_of_several(opened: SeveralResumePoint, gateway: Gateway) -> list[bytes]:
    """The first frames of a stream: bounds, and unless a cursor is followed, the state of all."""
    log = opened.shown.log
    parts = [opened_at(log, log.last_sequence, gateway, deliberation_id=None, retention_until=None)]
    if opened.gap is not None:
        parts.append(control_frame(opened.gap.type, dump(opened.gap)))
    if opened.cursor is None:
        parts += [*await _snapshots(opened, gateway), cursor_frame(log.epoch, opened.start)]
    return parts


async def page_of_several(opened: SeveralResumePoint, gateway: Gateway) -> bytes:
    """An EventPage as JSON. Without a cursor it begins at the beginning of what is retained."""
    log, limit = opened.shown.log, opened.wanted.limit
    wanted = _Filter(opened.tenant, opened.wanted, gateway["catalog"])
    items: list[bytes] = []
    position, remaining, examined = opened.start, set(opened.remaining), 0
    if opened.gap is not None:
        told = [dump(opened.gap), *map(event_in, await _snapshots(opened, gateway))]
        items = [item(Cursor(log.epoch, position), each) for each in told]
    elif opened.cursor is None:
        position = min((look.begin_sequence for look in opened.shown.looks), default=1) - 1
        remaining = {look.deliberation_id for look in opened.shown.looks}
    while opened.gap is None and position < log.last_sequence and len(items) < limit and examined < EXAMINED_MAX:
        page = await read_page(gateway["journal"], opened.stored, position, log.last_sequence, PAGE_RECORDS)
        position, examined = page.position, examined + len(page.records)
        for record in page.records:
            frame = frame_of(log.epoch, record)
            if frame is None:
                continue
            if frame.ends:
                remaining.discard(frame.deliberation_id)
            if wanted.takes(frame):
                items.append(item(Cursor(log.epoch, record.sequence), record.data))
                if len(items) == limit:
                    position = record.sequence
                    break
    return page_of(items, Cursor(log.epoch, position), ended=bool(opened.wanted.ids) and not remaining)


def _stream(opened: SeveralResumePoint, head: list[bytes], gateway: Gateway) -> EventStreamResponse:
    settings, remaining = gateway["settings"], set(opened.remaining)

    def ends(frame: EventFrame) -> bool:
        if not frame.ends or frame.deliberation_id not in remaining:
            return False
        remaining.discard(frame.deliberation_id)
        return not remaining

    showing = StreamPlan(
        epoch=opened.shown.log.epoch,
        start=opened.start,
        live=opened.live,
        stored=opened.stored,
        filter=_Filter(opened.tenant, opened.wanted, gateway["catalog"]),
        ends=ends,
        deliberation_id=None,
        over=opened.over,
    )
    return EventStreamResponse(
        stream_events(showing, head, gateway),
        heartbeat_s=settings.heartbeat_s,
        stalled_s=settings.stream_send_timeout_s,
        headers=NEGOTIATED,
    )


@router.get(
    "/events",
    operation_id="read_events",
    summary="Watch several deliberations in one stream, or page through their events",
    response_class=Response,
    responses=ANSWERS,
    dependencies=[Depends(seated)],
)
async def read_events(
    gateway: InGateway,
    wanted: Annotated[SeveralRequest, Depends(wanted_of)],
    opened: Annotated[SeveralResumePoint, Depends(opening_of_several)],
) -> Response:
    """Every event once, in the order of the log, over all deliberations.

    Without a cursor a stream begins with a snapshot: of each deliberation that is named, or one list of the tenant's
    newest. A stream of named deliberations ends with the last of them; one of the whole tenant never does.
    """
    if wanted.media == "application/json":
        return Response(await page_of_several(opened, gateway), media_type=wanted.media, headers=NEGOTIATED)
    if opened.over and opened.cursor is not None:
        return Response(status_code=204, headers=NEGOTIATED)
    return _stream(opened, await head_of_several(opened, gateway), gateway)
