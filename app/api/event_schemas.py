"""The events of a stream: those of the log, and those about the stream itself."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel

from app.api.schemas import Deliberation, DeliberationSummary, Resource
from app.deliberation.facts import Envelope, Event
from app.deliberation.specification import Token


class StreamEnvelope(BaseModel, frozen=True):
    """The common fields of events about a stream; they are not in the log and have no id."""

    model_config = ConfigDict(extra="ignore", json_schema_serialization_defaults_required=True)

    type: str
    deliberation_id: Token | None = Field(description="Null on a stream of several deliberations")
    ts: AwareDatetime


class StreamOpened(StreamEnvelope, frozen=True):
    """The first event of every stream: the bounds of a replay."""

    type: Literal["stream.opened"] = "stream.opened"
    first: str = Field(description="Cursor before the first retained event")
    last: str = Field(description="Cursor of the last event at opening")
    heartbeat_s: float
    retention_until: AwareDatetime | None = Field(description="Null on a stream of several deliberations")


class UnfinishedCall(Resource):
    """The partial text of an unfinished call; the next delta begins at `offset`, in characters."""

    call_id: Token
    agent_id: Token
    attempt: int
    text: str
    offset: int


class DeliberationSnapshot(Envelope, frozen=True):
    """The complete state at `deliberation.last_event_id`."""

    type: Literal["deliberation.snapshot"] = "deliberation.snapshot"
    deliberation: Deliberation
    unfinished: tuple[UnfinishedCall, ...]


class StreamGap(StreamEnvelope, frozen=True):
    """Events between two cursors cannot be replayed; a snapshot follows."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    type: Literal["stream.gap"] = "stream.gap"
    from_: str = Field(alias="from")
    to: str
    reason: Literal["retention", "epoch", "beyond_end", "slow_consumer"] = Field(
        description="`epoch`: the cursor is of another log; `beyond_end`: the log ends before the cursor"
    )


class StreamReconnect(StreamEnvelope, frozen=True):
    """The gateway ends this stream; reconnect with the last id."""

    type: Literal["stream.reconnect"] = "stream.reconnect"
    reason: Literal["draining", "max_age", "slow_consumer"]


class DeliberationsSnapshot(StreamEnvelope, frozen=True):
    """The newest deliberations, at the start of a stream of several; the next frame's id is their position.

    `GET /deliberations` with `next_cursor` lists the others.
    """

    type: Literal["deliberations.snapshot"] = "deliberations.snapshot"
    items: tuple[DeliberationSummary, ...]
    next_cursor: str | None


StreamEvent = StreamOpened | DeliberationSnapshot | DeliberationsSnapshot | StreamGap | StreamReconnect
KnownEvent = Event | StreamEvent


class DeliberationEvent(RootModel[Annotated[KnownEvent, Field(discriminator="type")]]):
    """Every event of a stream, discriminated by `type`."""


class EventPage(Resource):
    """Events after a cursor, oldest first; continue with `after=next` until `ended`."""

    items: tuple[Annotated[DeliberationEvent, Field(json_schema_extra={"required": ["id"]})], ...]
    next: str
    ended: bool
