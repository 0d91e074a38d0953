"""Schemas of answers: resources and problems. Events are in `event_schemas`, requests in `requests`."""

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.deliberation.calls import FactProblem, Usage
from app.deliberation.engine import StrategyDefinition
from app.deliberation.facts import Degraded, TotalUsage, Unreachable, Verdict
from app.deliberation.outputs import CheckOutcome, Issue, IssueResponse
from app.deliberation.specification import AgentSpec, Budget, Constraints, Purpose, Sampling, Token, Webhook

Status = Literal["pending", "in_progress", "cancelling", "completed", "failed", "cancelled", "timeout"]
ProposalStatus = Literal["pending", "answered", "failed", "late", "skipped"]
_Model = TypeVar("_Model", bound=BaseModel)
# The request fields of every strategy, besides task, agents and constraints.
_COMMON_FIELDS = ("quorum", "budget", "sampling", "seed")


class Resource(BaseModel):
    """Base of every answer: frozen, with every field present, null where it has no value."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


def dump(model: BaseModel) -> bytes:
    """The JSON bytes of a resource, event or record; equal ones give equal bytes."""
    return model.__pydantic_serializer__.to_json(model)


class FieldProblem(Resource):
    """One fault in a request, and its remedy."""

    location: Literal["body", "query", "path", "header", "service"] = Field(description="Where `pointer` points")
    pointer: str = Field(description="JSON pointer into the body, or the name of the parameter, header or check")
    code: str
    detail: str
    remedy: str


class Problem(Resource):
    """A problem document of RFC 9457 (application/problem+json)."""

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
    """The current stage of an unfinished deliberation."""

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
    responses: tuple[IssueResponse, ...] = Field(description="The author's response to each issue")


class ReceivedCritique(Resource):
    """One critic's findings in this agent's text."""

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
    """One agent's work; proposals are in rank order once ranked, before in the council's order."""

    agent_id: Token
    role: str
    model: str | None
    content: str | None = Field(description="The agent's best-scored version")
    revisions: tuple[TextVersion, ...] = Field(description="Its other versions, oldest first")
    critiques: tuple[ReceivedCritique, ...]
    score: float | None = Field(description="Aggregate score for the ranking, 0 to 1")
    criteria: tuple[CriterionMean, ...]
    checks: tuple[CheckOutcome, ...] = Field(description="Results of running the text where it is a program")
    rank: int | None
    usage: Usage
    status: ProposalStatus = Field(
        description="Of its first answer: `late`, after its stage closed; `skipped`, the deliberation ended before it"
    )
    error: FactProblem | None


class Links(Resource):
    """Paths of related operations."""

    self: str
    events: str
    cancel: str
    delete: str | None = Field(description="Null until it has ended")
    deliveries: str


class CutCall(Resource):
    """A call after its engine request was closed, with the usage reported by then."""

    call_id: Token
    agent_id: Token
    usage: Usage


class Cancellation(Resource):
    """The effects of a request to cancel."""

    requested_at: AwareDatetime
    reason: str | None
    cut: tuple[CutCall, ...] = Field(description="Calls that it stopped")
    finished_after: tuple[Token, ...] = Field(description="Calls that ended on their own after it")
    tokens_after: int = Field(description="Tokens of the calls that ended on their own after it")


class Deliberation(Resource):
    """A deliberation: the fold of its facts."""

    id: Token
    status: Status
    status_reason: str | None
    revision: int = Field(description="Number of facts")
    role: str | None = Field(description="The council's role when all members share it")
    agents: tuple[AgentSpec, ...] = Field(description="The council, sampling resolved")
    strategy: str
    parameters: dict[str, Any] = Field(description="Parameters of the strategy, defaults filled in")
    rounds: int
    task: str
    constraints: Constraints
    quorum: int
    budget: Budget
    seed: int
    metadata: dict[str, str]
    webhook: Webhook | None = Field(description="Receiver and event types; null without a webhook")
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
    cancellation: Cancellation | None = Field(description="Null unless a client requested to cancel it before its end")
    last_event_id: str = Field(description="Cursor of the last fact")
    retention_until: AwareDatetime
    links: Links
    withheld: tuple[str, ...] = Field(
        default=(),
        description="Names of the fields left empty by `view=summary`, or for a credential without the scope `read`",
    )


# What stands in place of each field that shows content, for a caller without the scope `read`.
_WITHHELD: Mapping[str, Any] = {
    "status_reason": None,
    "role": None,
    "agents": (),
    "strategy": "",
    "parameters": {},
    "rounds": 0,
    "task": "",
    "constraints": Constraints(rubric=(), timeout_seconds=0),
    "quorum": 0,
    "budget": Budget(),
    "seed": 0,
    "metadata": {},
    "webhook": None,
    "progress": None,
    "proposals": (),
    "verdict": None,
    "usage": TotalUsage(),
    "degraded": None,
    "problem": None,
    "cancellation": None,
}
_SHOWN = frozenset(
    {"id", "status", "revision", "created_at", "started_at", "ended_at", "deadline_at"}
    | {"last_event_id", "retention_until", "links", "withheld"}
)
assert _SHOWN ^ Deliberation.model_fields.keys() == _WITHHELD.keys(), "each field is either shown or withheld"


def without_content(found: Deliberation) -> Deliberation:
    """The resource for a caller that lacks the scope `read`: what identifies it, its status and its times."""
    return found.model_copy(update={**_WITHHELD, "withheld": tuple(_WITHHELD)})


_NOT_IN_SUMMARY = ("agents", "parameters", "task", "constraints", "webhook", "proposals")


def without_details(found: Deliberation) -> Deliberation:
    """The resource without what the request said and without each agent's work: its outcome, cost and times."""
    return found.model_copy(update={**{name: _WITHHELD[name] for name in _NOT_IN_SUMMARY}, "withheld": _NOT_IN_SUMMARY})


class AgentCount(Resource):
    """Members of a council by role."""

    role: str
    count: int


class DeliberationSummary(Resource):
    """A deliberation in a list: without proposals, verdict and the full task."""

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
    """Autoscaling bounds of a role's replicas."""

    min: int
    max: int


class EngineView(Resource):
    """An engine as a replica of the role sees it."""

    url: str
    healthy: bool
    circuit: Literal["closed", "open", "half_open"] = Field(description="Open: it failed and gets no calls for a while")
    models: tuple[str, ...]
    unreachable: Unreachable | None = Field(
        default=None, description="Since when and why a replica cannot connect to it; null when all can"
    )


class LiveRole(Resource):
    """The replicas of this role that answered."""

    replicas: int
    models: tuple[str, ...]
    simulated: bool = Field(description="Whether a simulator replaces the model")
    in_flight: int
    engines: tuple[EngineView, ...]


class RoleResource(Resource):
    """A role as declared, with its live replicas; `live` is null when no replica answered."""

    name: str
    persona: str
    model: str | None = Field(description="As declared; null selects the first model of the engine")
    engines: tuple[str, ...] = Field(description="As declared; empty selects the default engines")
    sampling: Sampling
    replicas: ReplicaBounds
    concurrency: int
    live: LiveRole | None


class RoleList(Resource):
    """All roles."""

    items: tuple[RoleResource, ...]


class StrategyResource(Resource):
    """A strategy of deliberation."""

    name: str
    version: int
    summary: str
    steps: tuple[str, ...]
    calls: str = Field(description="Model requests without failures: N agents, R rounds")
    source: str
    fields: tuple[str, ...] = Field(description="Request fields that configure it, besides task and council")
    parameters: dict[str, Any] = Field(description="JSON Schema of the request's `parameters`, with the defaults")

    @classmethod
    def of(cls, definition: StrategyDefinition) -> Self:
        """A strategy as clients read it."""
        return cls(
            name=definition.name,
            version=definition.version,
            summary=definition.summary,
            steps=definition.steps,
            calls=definition.formula,
            source=definition.source,
            fields=(("rounds",) if definition.rounds else ()) + _COMMON_FIELDS,
            parameters=definition.parameters.model_json_schema(),
        )


class StrategyList(Resource):
    """All strategies."""

    items: tuple[StrategyResource, ...]


class Durations(Resource):
    """Seconds from acceptance to the end of completed deliberations; null without any."""

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
    """The gateway can accept work, and a coordinator can run it."""

    status: Literal["ready"] = "ready"
    mode: Literal["keys", "development"] = Field(
        description="`development`: requests need no key, and only this machine can reach it"
    )
    checks: tuple[str, ...] = Field(description="Checks that passed")
    degraded: tuple[FieldProblem, ...] = Field(
        default=(),
        description="Faults that do not stop the gateway: no webhook sender, engines that cannot be connected to",
    )
