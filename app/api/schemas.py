"""What the gateway answers: resources and problems. Events are in `event_schemas`, requests in `requests`."""

from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.deliberation.calls import FactProblem, Usage
from app.deliberation.facts import (
    Degraded,
    TotalUsage,
    Verdict,
)
from app.deliberation.outputs import CheckOutcome, Issue, IssueResponse
from app.deliberation.specification import AgentSpec, Budget, Constraints, Purpose, Sampling, Token, Webhook

Status = Literal["pending", "in_progress", "cancelling", "completed", "failed", "cancelled", "timeout"]
ProposalStatus = Literal["pending", "answered", "failed", "late", "skipped"]
_Model = TypeVar("_Model", bound=BaseModel)


class Resource(BaseModel):
    """Base of every answer: frozen, and every field is there, null where there is nothing to say."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


def dump(model: BaseModel) -> bytes:
    """The JSON bytes of a resource or stream event, ready to be sent."""
    return model.__pydantic_serializer__.to_json(model)


class FieldProblem(Resource):
    """One fault in a request, and what to do about it."""

    location: Literal["body", "query", "path", "header", "service"] = Field(description="Where `pointer` points")
    pointer: str = Field(description="JSON pointer into the body, or the name of the parameter, header or check")
    code: str
    detail: str
    remedy: str


class Problem(Resource):
    """An error as RFC 9457 tells it (application/problem+json)."""

    type: str = Field(description="URI of the kind of problem")
    title: str
    status: int
    detail: str
    instance: str = Field(description="Path of the request")
    code: str = Field(description="Stable, for programs")
    request_id: str
    retryable: bool = Field(description="Whether the same request may succeed later")
    errors: tuple[FieldProblem, ...] = ()


class Progress(Resource):
    """The latest stage while the deliberation lives."""

    stage: int
    purpose: Purpose
    round: int
    calls_finished: int
    calls_total: int


class TextVersion(Resource):
    """A text of an author, numbered from 0; `round` is 0 for the first proposal."""

    version: int
    round: int
    content: str
    responses: tuple[IssueResponse, ...] = Field(description="What the author made of each issue")


class ReceivedCritique(Resource):
    """What one critic found in this agent's text."""

    agent_id: Token = Field(description="The critic")
    round: int
    verdict: Literal["accept", "revise", "reject"]
    issues: tuple[Issue, ...]


class CriterionMean(Resource):
    """Mean score, 0 to 10, of the ballots that scored this criterion of the chosen text."""

    id: Token
    score: float
    ballots: int


class Proposal(Resource):
    """One agent's work. In rank order once ranked, in the council's order before."""

    agent_id: Token
    role: str
    model: str | None
    content: str | None = Field(description="The text that stands for the agent: the best scored of its versions")
    revisions: tuple[TextVersion, ...] = Field(description="Its other versions, oldest first")
    critiques: tuple[ReceivedCritique, ...]
    score: float | None = Field(description="The aggregate it was ranked by, 0 to 1")
    criteria: tuple[CriterionMean, ...]
    checks: tuple[CheckOutcome, ...] = Field(description="What running its text brought, where that is a program")
    rank: int | None
    usage: Usage
    status: ProposalStatus = Field(
        description="Of its first answer: `late`, its stage did not wait for it; `skipped`, the end came before it"
    )
    error: FactProblem | None


class Links(Resource):
    """Where to go from here."""

    self: str
    events: str
    cancel: str
    delete: str | None = Field(description="Null while it has not ended")
    deliveries: str


class CutCall(Resource):
    """A call whose request was closed; the usage is what the engine had reported by then."""

    call_id: Token
    agent_id: Token
    usage: Usage


class Cancellation(Resource):
    """What a request to stop brought about."""

    requested_at: AwareDatetime
    reason: str | None
    cut: tuple[CutCall, ...] = Field(description="Calls that it stopped")
    finished_after: tuple[Token, ...] = Field(description="Calls that ended by themselves after it")
    tokens_after: int = Field(description="Tokens of the calls that ended by themselves after it")


class Deliberation(Resource):
    """A deliberation: the fold of its facts."""

    id: Token
    status: Status
    status_reason: str | None
    revision: int = Field(description="Facts so far; it grows by one with each")
    role: str | None = Field(description="The council's role when all members share it")
    agents: tuple[AgentSpec, ...] = Field(description="The council, sampling resolved")
    strategy: str
    parameters: dict[str, Any] = Field(description="The strategy's own, defaults filled in")
    rounds: int
    task: str
    constraints: Constraints
    quorum: int
    budget: Budget
    seed: int
    metadata: dict[str, str]
    webhook: Webhook | None = Field(description="Where its events are told, and which; null if nowhere")
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    deadline_at: AwareDatetime
    progress: Progress | None
    proposals: tuple[Proposal, ...]
    verdict: Verdict | None
    usage: TotalUsage
    degraded: Degraded | None
    problem: FactProblem | None
    cancellation: Cancellation | None = Field(description="Null unless somebody asked to stop before the end")
    last_event_id: str = Field(description="Cursor of the last fact; read the events after it")
    retention_until: AwareDatetime
    links: Links


class AgentCount(Resource):
    """Members of a council by role."""

    role: str
    count: int


class DeliberationSummary(Resource):
    """A deliberation in a list: without proposals, verdict and the whole of its task."""

    id: Token
    status: Status
    role: str | None = Field(description="The council's role when all members share it")
    agents: tuple[AgentCount, ...]
    strategy: str
    task: str = Field(description="The first 200 characters")
    metadata: dict[str, str]
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    links: Links


class DeliberationPage(Resource):
    """Newest first; `next_cursor` is null on the last page."""

    items: tuple[DeliberationSummary, ...]
    next_cursor: str | None


class ReplicaBounds(Resource):
    """Bounds within which a role's replicas are scaled."""

    min: int
    max: int


class EngineView(Resource):
    """An engine as a replica of the role sees it."""

    url: str
    healthy: bool
    circuit: Literal["closed", "open", "half_open"] = Field(description="Open: it failed, and is not asked for a while")
    models: tuple[str, ...]


class LiveRole(Resource):
    """What answered for this role just now."""

    replicas: int
    models: tuple[str, ...]
    simulated: bool = Field(description="Whether a simulator stands in for a model")
    in_flight: int
    engines: tuple[EngineView, ...]


class RoleResource(Resource):
    """A role as declared, and who lives it now; `live` is null when no replica answered."""

    name: str
    persona: str
    model: str | None = Field(description="As declared; null takes the first that the engine serves")
    engines: tuple[str, ...] = Field(description="As declared; empty takes the default ones")
    sampling: Sampling
    replicas: ReplicaBounds
    concurrency: int
    live: LiveRole | None


class RoleList(Resource):
    """All roles."""

    items: tuple[RoleResource, ...]


class StrategyResource(Resource):
    """A way to deliberate."""

    name: str
    version: int
    summary: str
    steps: tuple[str, ...]
    calls: str = Field(description="Model requests without failures: N agents, R rounds")
    source: str
    fields: tuple[str, ...] = Field(description="The request's fields beside the task and the council that steer it")
    parameters: dict[str, Any] = Field(description="JSON Schema of the request's `parameters`, with the defaults")


class StrategyList(Resource):
    """All strategies."""

    items: tuple[StrategyResource, ...]


class Durations(Resource):
    """Seconds from acceptance to the end, over what has completed; null before anything has."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class Tokens(Resource):
    """Tokens as the engines reported them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Stats(Resource):
    """Counts over the retained deliberations."""

    total: int
    active: int
    completed: int
    failed: int
    cancelled: int
    timeout: int
    seconds: Durations
    tokens: Tokens


class Health(Resource):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class Ready(Resource):
    """Work can be accepted and will be done."""

    status: Literal["ready"] = "ready"
    mode: Literal["keys", "development"] = Field(
        description="`development`: no keys are asked for, and only this machine can reach it"
    )
    checks: tuple[str, ...] = Field(description="What was found in order")
    degraded: tuple[FieldProblem, ...] = Field(
        default=(), description="What is missing though no deliberation depends on it: whoever sends webhooks"
    )
