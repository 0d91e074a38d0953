"""What a viewer asks for, and where in the log it is answered from: all that is settled before a stream opens."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Header, Query
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from app.api.cursor import BEGINNING, CURSOR_PATTERN, Cursor, parse_cursor
from app.api.event_schemas import DeliberationSnapshot, StreamGap, StreamOpened, UnfinishedCall
from app.api.negotiation import Media, media_of
from app.api.problems import ValidationFailed
from app.api.schemas import FieldProblem, dump
from app.catalog.projection import resource
from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import StreamState
from app.routes.dependencies import DeliberationId, Gateway, InGateway, OfTenant
from app.streaming.frames import EVENT_TYPES, EventSelection, control_frame, cursor_frame
from app.streaming.snapshots import Snapshot

RETRY_MS = 2_000
# A gateway listens before it has read a long log, which streams of several need.
PATIENCE_S = 10.0
_ASK_AGAIN_S = 0.1

_Found = TypeVar("_Found")

LastEventId = Annotated[
    str | SkipJsonSchema[None],
    Header(
        alias="Last-Event-ID",
        description="Cursor to continue after; beats `after`, because a reconnect repeats the old URL",
        json_schema_extra={"pattern": f"^$|{CURSOR_PATTERN}"},
    ),
]


class EventsQuery(BaseModel):
    """The query of a stream or page. Being in the URL, it holds for reconnects too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | SkipJsonSchema[None] = Field(
        None,
        description="Cursor to continue after; 0 reads from the beginning",
        json_schema_extra={"pattern": CURSOR_PATTERN},
    )
    deltas: bool = Field(True, description="Whether `call.delta` events are wanted")
    types: list[Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(EVENT_TYPES)})]] = Field(
        [], max_length=32, description="Only logged events of these types, separated by commas or repeated"
    )
    limit: int = Field(200, ge=1, le=1_000, description="Events on a JSON page; streams have no limit")

    def selection(self) -> EventSelection:
        """The filter; raises ValidationFailed when it names a type that the log does not have."""
        if not self.types:
            return EventSelection(self.deltas)
        named = frozenset(kind.strip() for entry in self.types for kind in entry.split(","))
        unknown = sorted(named - EVENT_TYPES)
        if unknown:
            detail = f"No logged event has the type {', '.join(map(repr, unknown))}"[:500]
            remedy = f"Give some of {', '.join(sorted(EVENT_TYPES))}."
            fault = FieldProblem(location="query", pointer="types", code="unknown_type", detail=detail, remedy=remedy)
            raise ValidationFailed([fault])
        return EventSelection(self.deltas, named)


@dataclass(frozen=True, slots=True)
class EventsRequest:
    """What a viewer asks for. `cursor` is None when it names none; `limit` is for pages."""

    media: Media
    selection: EventSelection
    cursor: Cursor | None
    limit: int


def events_request(
    query: Annotated[EventsQuery, Query()],
    media: Annotated[Media, Depends(media_of)],
    last_event_id: LastEventId = None,
) -> EventsRequest:
    """The request, checked; raises InvalidCursor and ValidationFailed."""
    return EventsRequest(media, query.selection(), place_in(query.after, last_event_id), query.limit)


def place_in(after: str | None, last_event_id: str | None) -> Cursor | None:
    """The cursor that a viewer names, if any: Last-Event-ID beats the query. Raises InvalidCursor."""
    cursor = None if after is None else parse_cursor(after, "after")
    return parse_cursor(last_event_id, "Last-Event-ID") if last_event_id else cursor


def gap_reason(cursor: Cursor, log: StreamState) -> Literal["retention", "epoch"] | None:
    """Why events after `cursor` cannot be replayed without a gap; None when they can."""
    if cursor == BEGINNING:
        return None
    if cursor.epoch != log.epoch or cursor.sequence > log.last_sequence:
        return "epoch"
    return "retention" if 0 < cursor.sequence < log.first_sequence - 1 else None


def gap_at(cursor: Cursor, log: StreamState, now: datetime, deliberation_id: str | None) -> StreamGap | None:
    """What is told of a cursor that cannot be followed at these bounds of the log."""
    reason = gap_reason(cursor, log)
    if reason is None:
        return None
    to = str(Cursor(log.epoch, log.last_sequence))
    said = {"deliberation_id": deliberation_id, "ts": now, "reason": reason}
    return StreamGap.model_validate({**said, "from": str(cursor), "to": to})


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A deliberation as `look` has it, and where its viewer goes on.

    `cursor` is None unless the client's can be followed; then events after it are replayed, and otherwise a snapshot
    is due, after `gap` where there is one.
    """

    look: Snapshot
    cursor: Cursor | None
    gap: StreamGap | None

    @property
    def epoch(self) -> str:
        """The log's incarnation."""
        return self.look.log.epoch

    @property
    def over(self) -> bool:
        """Whether the client has seen the terminal event."""
        end = self.look.end_sequence
        return self.cursor is not None and end is not None and self.cursor.sequence >= end

    @property
    def start(self) -> int:
        """The sequence above which events are sent; after a snapshot the terminal one is, as it ends the stream."""
        if self.cursor is not None:
            return max(self.cursor.sequence, self.look.begin_sequence - 1)
        end = self.look.end_sequence
        return self.look.log.last_sequence if end is None else end - 1


async def patiently(gateway: Gateway, media: Media, ask: Callable[[], Awaitable[_Found]]) -> _Found:
    """What `ask` finds. For a stream a log that is away is waited for, `PATIENCE_S` at most; then JournalUnavailable.

    A browser gives up a stream that is refused, whatever the refusal says, and the log is back in a moment.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + (PATIENCE_S if media == "text/event-stream" else 0.0)
    while True:
        try:
            return await ask()
        except JournalUnavailable:
            if loop.time() >= until_s or gateway["feed"].draining.is_set():
                raise
        await asyncio.sleep(_ASK_AGAIN_S)


async def resume_point(
    gateway: InGateway,
    tenant: OfTenant,
    deliberation_id: DeliberationId,
    wanted: Annotated[EventsRequest, Depends(events_request)],
) -> ResumePoint:
    """Everything a stream or page needs to know before it opens; raises NotFound, Gone and JournalUnavailable."""
    cursor, looks = wanted.cursor, gateway["looks"]
    # Another gateway may have shown what was stored after the last look of this one.
    beyond = 0 if cursor is None else cursor.sequence
    ask = partial(looks.look, tenant, deliberation_id, gateway["deliberations"].check_present, beyond)
    look = await patiently(gateway, wanted.media, ask)
    gap = None if cursor is None else gap_at(cursor, look.log, gateway["clock"].now(), deliberation_id)
    return ResumePoint(look, None if gap is not None else cursor, gap)


async def snapshot_of(look: Snapshot, gateway: Gateway) -> bytes:
    """The frame of a DeliberationSnapshot: the state, with the texts of calls under way. Viewers share its bytes."""

    def tell(look: Snapshot, unfinished: Sequence[UnfinishedCall]) -> bytes:
        retention_s = gateway["settings"].retention_s
        snapshot = DeliberationSnapshot(
            deliberation_id=look.deliberation_id,
            ts=gateway["clock"].now(),
            deliberation=resource(look.state, epoch=look.log.epoch, retention_s=retention_s),
            unfinished=tuple(unfinished),
        )
        return control_frame(snapshot.type, dump(snapshot))

    return await gateway["looks"].told(look, tell)


def opened_at(log: StreamState, last: int, gateway: Gateway, **about: Any) -> bytes:  # noqa: ANN401 -- fields
    """The first frame of a stream: how long to wait before reconnecting, and the bounds of what can be replayed."""
    opened = StreamOpened(
        ts=gateway["clock"].now(),
        first=str(Cursor(log.epoch, max(0, log.first_sequence - 1))),
        last=str(Cursor(log.epoch, last)),
        heartbeat_s=gateway["settings"].heartbeat_s,
        **about,
    )
    return f"retry: {RETRY_MS}\n".encode() + control_frame(opened.type, dump(opened))


async def head_of(opened: ResumePoint, gateway: Gateway) -> list[bytes]:
    """The first frames of a stream: bounds, and unless a cursor is followed, the state."""
    look = opened.look
    retention_until = look.state.accepted.ts + timedelta(seconds=gateway["settings"].retention_s)
    about = {"deliberation_id": look.deliberation_id, "retention_until": retention_until}
    parts = [opened_at(look.log, look.state.last_sequence, gateway, **about)]
    if opened.gap is not None:
        parts.append(control_frame(opened.gap.type, dump(opened.gap)))
    if opened.cursor is None:
        parts += [await snapshot_of(look, gateway), cursor_frame(look.log.epoch, opened.start)]
    return parts
