"""What a stream carries: the events of the log, and what is said about the stream itself."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel

from app.api.schemas import Deliberation, DeliberationSummary, Resource
from app.deliberation.facts import (
    Accepted,
    CallDelta,
    CallFinished,
    CallStarted,
    Cancelled,
    CancelRequested,
    Completed,
    Deleted,
    Envelope,
    Failed,
    Resumed,
    StageClosed,
    StageOpened,
    TimedOut,
)
from app.deliberation.specification import Token


class StreamEnvelope(BaseModel, frozen=True):
    """What every event about a stream itself carries; these are not in the log, and have no id."""

    model_config = ConfigDict(extra="ignore", json_schema_serialization_defaults_required=True)

    type: str
    deliberation_id: Token | None = Field(description="Null on a stream of several deliberations")
    ts: AwareDatetime


class StreamOpened(StreamEnvelope, frozen=True):
    """First on every stream: the bounds of what can be replayed."""

    type: Literal["stream.opened"] = "stream.opened"
    first: str = Field(description="Cursor before the first retained event")
    last: str = Field(description="Cursor of the last event at opening")
    heartbeat_s: float
    retention_until: AwareDatetime | None = Field(description="Null on a stream of several deliberations")


class UnfinishedCall(Resource):
    """What an unfinished attempt has said so far; `offset` is where the next delta begins, in characters."""

    call_id: Token
    agent_id: Token
    attempt: int
    text: str
    offset: int


class DeliberationSnapshot(Envelope, frozen=True):
    """The whole state, valid at `deliberation.last_event_id`."""

    type: Literal["deliberation.snapshot"] = "deliberation.snapshot"
    deliberation: Deliberation
    unfinished: tuple[UnfinishedCall, ...]


class StreamGap(StreamEnvelope, frozen=True):
    """Events between two cursors cannot be replayed; a snapshot follows."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    type: Literal["stream.gap"] = "stream.gap"
    from_: str = Field(alias="from")
    to: str
    reason: Literal["retention", "epoch", "slow_consumer"]


class StreamReconnect(StreamEnvelope, frozen=True):
    """The gateway ends this stream; come back with the last id."""

    type: Literal["stream.reconnect"] = "stream.reconnect"
    reason: Literal["draining", "max_age", "slow_consumer"]


class DeliberationsSnapshot(StreamEnvelope, frozen=True):
    """The newest deliberations that a stream of several shows, as lists have them, at the id that follows.

    Those that do not fit are in `GET /deliberations` with `next_cursor`.
    """

    type: Literal["deliberations.snapshot"] = "deliberations.snapshot"
    items: tuple[DeliberationSummary, ...]
    next_cursor: str | None


StreamEvent = StreamOpened | DeliberationSnapshot | DeliberationsSnapshot | StreamGap | StreamReconnect
KnownEvent = (
    Accepted
    | StageOpened
    | StageClosed
    | CallStarted
    | CallDelta
    | CallFinished
    | CancelRequested
    | Resumed
    | Completed
    | Failed
    | Cancelled
    | TimedOut
    | Deleted
    | StreamEvent
)


class DeliberationEvent(RootModel[Annotated[KnownEvent, Field(discriminator="type")]]):
    """Every event that a stream can carry, told apart by `type`."""


class EventPage(Resource):
    """Events after a cursor, oldest first; ask again with `after=next` until `ended`."""

    items: tuple[Annotated[DeliberationEvent, Field(json_schema_extra={"required": ["id"]})], ...]
    next: str
    ended: bool
