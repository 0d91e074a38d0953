"""Status replies of replicas over the control subjects, tolerant of other versions' fields."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, ValidationError

from app.api.installation import CircuitState, ReplicaVersions, Turn
from app.deliberation.engine_troubles import EngineTrouble
from app.deliberation.roles import without_credentials
from app.deliberation.specification import Structured, Token
from app.observability.process_counts import CoordinatorCounts, DurationHistogram, Figure, ToolCounts

COORDINATORS_SUBJECT = "control.coordinator"
SENDERS_SUBJECT = "control.webhooks"
PROJECTORS_SUBJECT = "control.archive"
# Each replica of a role tells here, unasked and so often, what it answers to an inquiry.
HEARTBEATS_SUBJECT = "heartbeats.role.{role}"
HEARTBEAT_S = 2.0
# The maximum in `serve_deployments.application`.
COORDINATORS_MAX = 64
# The most processes that answer on one of the other subjects.
PROCESSES_MAX = 16

StatusType = TypeVar("StatusType", bound=BaseModel)


def _address(url: str) -> str:
    urlsplit(url)
    return without_credentials(url)


class EngineStatus(BaseModel):
    """An engine as a replica knows it. `answers`, tokens and durations count from the replica's start.

    `recent` has of each of the last answers milliseconds to the first token, prompt tokens and cached ones. `unlisted`
    is the model that calls name and its list lacks. `structured` is how it takes the form of answers, None before the
    first call; `prioritises` is None where it takes no priorities.
    """

    url: Annotated[str, AfterValidator(_address)]
    name: str | None = None
    healthy: bool = False
    circuit: CircuitState = "closed"
    in_flight: int = 0
    models: tuple[str, ...] = ()
    version: str | None = None
    trouble: EngineTrouble | None = None
    unlisted: str = ""
    context_tokens: Figure | None = None
    structured: Structured | None = None
    prioritises: bool | None = None
    answers: Figure = 0
    prompt_tokens: Figure = 0
    cached_tokens: Figure = 0
    completion_tokens: Figure = 0
    seconds: DurationHistogram = Field(default_factory=DurationHistogram)
    first_token: DurationHistogram = Field(default_factory=DurationHistogram)
    recent: tuple[tuple[Figure | None, Figure, Figure], ...] = Field(default=(), max_length=64)


class ToolServerStatus(BaseModel):
    """A tool server as a replica knows it; neither connected nor away before the first connection."""

    name: str
    tools: tuple[str, ...] = ()
    connected: bool = False
    away_since: AwareDatetime | None = None
    why: str = ""


class ProcessStatus(BaseModel):
    replica: str
    started_at: AwareDatetime | None = None
    versions: ReplicaVersions = Field(default_factory=ReplicaVersions)


class ReplicaStatus(ProcessStatus):
    node: str | None = None
    application: str | None = None
    deployment: str | None = None
    wanted: int | None = None


class AgentStatus(ReplicaStatus):
    """A replica of a role.

    `costs` has the cost of its recorded calls by currency, in millionths; `lenient` counts their lenient readings, and
    `failed_removals` what could not be removed from the directory of workspaces.
    """

    role: str
    model: str | None = None
    simulated: bool = False
    in_flight: int = 0
    waiting: int = 0
    concurrency: int | None = None
    counts: dict[str, int] = Field(default_factory=dict[str, int])
    lenient: dict[str, int] = Field(default_factory=dict[str, int])
    costs: dict[str, int] = Field(default_factory=dict[str, int])
    engines: tuple[EngineStatus, ...] = ()
    tools: tuple[ToolServerStatus, ...] = ()
    failed_removals: Figure = 0
    tool_uses: dict[Token, ToolCounts] = Field(default_factory=dict[Token, ToolCounts], max_length=64)


class CoordinatorStatus(ReplicaStatus):
    """A coordinator's replica. The aliases are the names in its reply."""

    in_hand: int = Field(default=0, validation_alias="in_flight")
    bound: int | None = Field(default=None, validation_alias="slots")
    clusters: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = Field(default=(), validation_alias="gates")
    counts: CoordinatorCounts = Field(default_factory=CoordinatorCounts)


class SenderStatus(ProcessStatus):
    in_flight: int = 0
    waiting: int = 0
    held: dict[str, int] = Field(default_factory=dict[str, int])
    counts: dict[str, int] = Field(default_factory=dict[str, int])
    queues: dict[str, dict[str, int]] = Field(default_factory=dict[str, dict[str, int]])


class ProjectorStatus(ProcessStatus):
    counts: dict[str, int] = Field(default_factory=dict[str, int])
    failure: str = ""
    pending: int = 0


def read(of: type[StatusType], replies: Iterable[dict[str, Any]]) -> tuple[tuple[StatusType, ...], tuple[int, ...]]:
    """The valid replies, and the number of faults of each invalid one."""
    valid: list[StatusType] = []
    faults: list[int] = []
    for reply in replies:
        try:
            valid.append(of.model_validate(reply))
        except ValidationError as exc:
            faults.append(exc.error_count())
    return tuple(valid), tuple(faults)
