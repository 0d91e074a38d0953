"""What a viewer asks for, and where in the log it is answered from: all that is settled before a stream opens."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Header, Query
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from app.acceptance import standing
from app.cursor import BEGINNING, CURSOR_PATTERN, Cursor, parse_cursor
from app.deliberation.facts import CallDelta, CallStarted, decode, prefix
from app.deliberation.fold import State
from app.deliberation.ports import Record, StreamState
from app.frames import EVENT_TYPES, Selection, control_frame, cursor_frame
from app.gateway import DeliberationId, Gateway, InGateway, OfTenant
from app.problems import NotAcceptable, ValidationFailed
from app.projection import resource
from app.schemas import DeliberationSnapshot, FieldProblem, StreamGap, StreamOpened, dump
from app.unfinished import unfinished_calls

RETRY_MS = 2_000

Media = Literal["text/event-stream", "application/json"]
_OFFERS: tuple[tuple[str, Media], ...] = (
    ("text/event-stream", "text/event-stream"),
    ("application/json", "application/json"),
    ("text/*", "text/event-stream"),
    ("application/*", "application/json"),
    ("*/*", "text/event-stream"),
)


def negotiated(accept: str | None) -> Media:
    """The representation to answer with; raises NotAcceptable when neither is accepted.

    A named type beats a wildcard, whatever the weights are; weight 0 refuses.
    """
    if accept is None or not accept.strip():
        return "text/event-stream"
    accepted: set[str] = set()
    for entry in accept.lower().split(","):
        media, *parameters = [part.strip() for part in entry.split(";")]
        weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
        if weight.strip("0.") != "":
            accepted.add(media)
    for pattern, media in _OFFERS:
        if pattern in accepted:
            return media
    raise NotAcceptable("This resource is a text/event-stream, or application/json in pages.")


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

    def selection(self) -> Selection:
        """The filter; raises ValidationFailed when it names a type that the log does not have."""
        if not self.types:
            return Selection(self.deltas)
        named = frozenset(kind.strip() for entry in self.types for kind in entry.split(","))
        unknown = sorted(named - EVENT_TYPES)
        if unknown:
            detail = f"No logged event has the type {', '.join(map(repr, unknown))}"[:500]
            remedy = f"Give some of {', '.join(sorted(EVENT_TYPES))}."
            fault = FieldProblem(location="query", pointer="types", code="unknown_type", detail=detail, remedy=remedy)
            raise ValidationFailed([fault])
        return Selection(self.deltas, named)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a viewer asks for. `cursor` is None when it names none; `limit` is for pages."""

    media: Media
    selection: Selection
    cursor: Cursor | None
    limit: int


def asked(
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[
        str | SkipJsonSchema[None],
        Header(
            alias="Last-Event-ID",
            description="Cursor to continue after; beats `after`, because a reconnect repeats the old URL",
            json_schema_extra={"pattern": f"^$|{CURSOR_PATTERN}"},
        ),
    ] = None,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Asked:
    """The request, checked; raises NotAcceptable, InvalidCursor and ValidationFailed."""
    cursor = None if query.after is None else parse_cursor(query.after, "after")
    if last_event_id:
        cursor = parse_cursor(last_event_id, "Last-Event-ID")
    return Asked(negotiated(accept), query.selection(), cursor, query.limit)


@dataclass(frozen=True, slots=True)
class Opening:
    """A deliberation as it is at `position`, and where its viewer goes on.

    `cursor` is None unless the client's can be followed; then events after it are replayed, and otherwise a snapshot
    is due, after `gap` where there is one. `end_sequence` is the place of the terminal event.
    """

    tenant: str
    deliberation_id: str
    state: State
    log: StreamState
    position: int
    cursor: Cursor | None
    gap: StreamGap | None
    end_sequence: int | None
    views_after: int

    @property
    def subject(self) -> str:
        """Under which everything of the deliberation lives."""
        return prefix(self.tenant, self.deliberation_id)

    @property
    def over(self) -> bool:
        """Whether the client has seen the terminal event."""
        return self.cursor is not None and self.end_sequence is not None and self.cursor.sequence >= self.end_sequence

    @property
    def start(self) -> int:
        """The sequence above which events are sent; after a snapshot the terminal one is, as it ends the stream."""
        if self.cursor is not None:
            return self.cursor.sequence
        return self.position if self.end_sequence is None else self.end_sequence - 1


def _gap_reason(cursor: Cursor, log_state: StreamState, position: int) -> Literal["retention", "epoch"] | None:
    """Why events after `cursor` cannot be replayed without a gap; None when they can."""
    if cursor == BEGINNING:
        return None
    if cursor.epoch != log_state.epoch or cursor.sequence > position:
        return "epoch"
    return "retention" if 0 < cursor.sequence < log_state.first_sequence - 1 else None


def _place(records: list[Record], suffix: str) -> int | None:
    return next((record.sequence for record in records if record.subject.endswith(suffix)), None)


async def opening(
    gateway: InGateway,
    tenant: OfTenant,
    deliberation_id: DeliberationId,
    wanted: Annotated[Asked, Depends(asked)],
) -> Opening:
    """Everything a stream or page needs to know before it opens.

    Raises NotFound, Gone and JournalUnavailable. The stream's state is asked before the facts, so that all that is
    stored up to `position` is in them.
    """
    journal, cursor = gateway["journal"], wanted.cursor
    log_state = await journal.state()
    records = await journal.facts(tenant, deliberation_id)
    state = standing(gateway, deliberation_id, records)
    position = max(log_state.last_sequence, records[-1].sequence)
    reason = None if cursor is None else _gap_reason(cursor, log_state, position)
    gap = None
    if cursor is not None and reason is not None:
        to = str(Cursor(log_state.epoch, position))
        said = {"deliberation_id": deliberation_id, "ts": gateway["clock"].now(), "reason": reason}
        gap = StreamGap.model_validate({**said, "from": str(cursor), "to": to})
    return Opening(
        tenant=tenant,
        deliberation_id=deliberation_id,
        state=state,
        log=log_state,
        position=position,
        cursor=None if gap is not None else cursor,
        gap=gap,
        end_sequence=_place(records, ".end"),
        views_after=_place(records, f".stage.{len(state.stages)}.opened") or 0,
    )


async def snapshot_of(opened: Opening, gateway: Gateway) -> DeliberationSnapshot:
    """The state at the opening's position, with the texts of the calls that are under way."""
    views: list[CallStarted | CallDelta] = []
    if opened.state.open_stage is not None and not opened.state.ended:
        async for record in gateway["journal"].read(f"{opened.subject}.call.*.*", opened.views_after):
            if record.sequence > opened.position:
                continue
            view = decode(record.data) if record.tokens[-1] in ("started", "delta") else None
            if isinstance(view, CallStarted | CallDelta):
                views.append(view)
    return DeliberationSnapshot(
        deliberation_id=opened.deliberation_id,
        ts=gateway["clock"].now(),
        deliberation=resource(opened.state, epoch=opened.log.epoch, retention_s=gateway["settings"].retention_s),
        unfinished=unfinished_calls(opened.state, views),
    )


async def head_of(opened: Opening, gateway: Gateway) -> bytes:
    """The first bytes of a stream: bounds, and unless a cursor is followed, the state."""
    told = resource(opened.state, epoch=opened.log.epoch, retention_s=gateway["settings"].retention_s)
    bounds = StreamOpened(
        deliberation_id=opened.deliberation_id,
        ts=gateway["clock"].now(),
        first=str(Cursor(opened.log.epoch, max(0, opened.log.first_sequence - 1))),
        last=told.last_event_id,
        heartbeat_s=gateway["settings"].heartbeat_s,
        retention_until=told.retention_until,
    )
    parts = [f"retry: {RETRY_MS}\n".encode(), control_frame(bounds.type, dump(bounds))]
    if opened.gap is not None:
        parts.append(control_frame(opened.gap.type, dump(opened.gap)))
    if opened.cursor is None:
        snapshot = await snapshot_of(opened, gateway)
        parts.append(control_frame(snapshot.type, dump(snapshot)))
        parts.append(cursor_frame(opened.log.epoch, opened.start))
    return b"".join(parts)
