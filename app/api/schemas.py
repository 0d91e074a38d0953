"""Schemas of answers: resources and problems. `installation` has those of roles, `event_schemas` those of events."""

from decimal import Decimal
from typing import Any, Literal, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.deliberation.calls import FactProblem, Money, Usage, UsageCost
from app.deliberation.contributions import ContributionStatus
from app.deliberation.decider import StrategyDefinition
from app.deliberation.facts import Action, CancelledBy, Degraded, Participation, TotalUsage, Verdict
from app.deliberation.outputs import CheckOutcome, Issue, IssueResponse
from app.deliberation.specification import (
    AgentSpec,
    Amount,
    Budget,
    Constraints,
    Currency,
    Evidence,
    GitWorkspace,
    InputKind,
    InputRef,
    Purpose,
    StoryContext,
    Token,
    Webhook,
)

Status = Literal["pending", "in_progress", "cancelling", "completed", "failed", "cancelled", "timeout"]
StatsGroup = Literal["day", "strategy", "role", "model", "tenant"]
# The request fields of every strategy, besides task, agents and constraints.
_COMMON_FIELDS = ("quorum", "budget", "sampling", "seed")


class Resource(BaseModel):
    """Base of every answer: frozen, with every field present, null where it has no value."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


_Shape = TypeVar("_Shape", bound=Resource)


def dump(model: BaseModel) -> bytes:
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


class StageProgress(Resource):
    """The stage that an unfinished deliberation opened last."""

    stage: int
    purpose: Purpose
    round: int
    calls_total: int


class Progress(StageProgress):
    """The current stage of an unfinished deliberation."""

    calls_finished: int


class TextVersion(Resource):
    """A text of an author, numbered from 0; `round` is 0 for the first proposal."""

    version: int
    round: int
    content: str
    action: Action | None = Field(
        default=None, exclude_if=lambda action: action is None, description="The same where answers are actions"
    )
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
    action: Action | None = Field(
        default=None, exclude_if=lambda action: action is None, description="The same where answers are actions"
    )
    revisions: tuple[TextVersion, ...] = Field(description="Its other versions, oldest first")
    critiques: tuple[ReceivedCritique, ...]
    score: float | None = Field(description="Aggregate score for the ranking, 0 to 1")
    criteria: tuple[CriterionMean, ...]
    checks: tuple[CheckOutcome, ...] = Field(description="Results of running the text where it is a program")
    rank: int | None
    usage: Usage
    calls_finished: int = Field(description="Its calls that ended, or that nothing waits for any more")
    calls_total: int = Field(description="Its calls in all stages so far")
    status: ContributionStatus = Field(
        description="`answered`: its answer counts; `failed`: its calls for one did, see `error`; `late`: the stage "
        "closed without it; `skipped`: the deliberation ended first; `pending`: it may still come"
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
    by: CancelledBy = Field(description="Who stopped it")
    reason: str | None = Field(description="Why, in words on one line")
    cut: tuple[CutCall, ...] = Field(description="Calls that it stopped")
    finished_after: tuple[Token, ...] = Field(description="Calls that ended on their own after it")
    tokens_after: int = Field(description="Tokens of the calls that ended on their own after it")


class DeliberationReceipt(Resource):
    """Identity, status and times of a deliberation: all that a credential without the scope `read` sees."""

    id: Token
    status: Status
    revision: int = Field(description="Number of facts")
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    deadline_at: AwareDatetime
    last_event_id: str = Field(description="Cursor of the last fact")
    retention_until: AwareDatetime
    links: Links


class DeliberationResult(DeliberationReceipt):
    """A deliberation without what the request said and without each agent's work: its outcome, cost and times."""

    status_reason: str | None
    role: str | None = Field(description="The council's role when all members share it")
    strategy: str
    rounds: int
    quorum: int
    budget: Budget
    seed: int
    metadata: dict[str, str]
    progress: Progress | None
    verdict: Verdict | None
    usage: TotalUsage
    degraded: Degraded | None
    participation: Participation | None = Field(description="Null until it has ended")
    problem: FactProblem | None
    cancellation: Cancellation | None = Field(description="Null unless a client requested to cancel it before its end")


class FileView(Resource):
    path: str
    bytes: int


class FilesView(Resource):
    """Files of the request, without their texts; the event of the acceptance has them."""

    files: tuple[FileView, ...]


class Deliberation(DeliberationResult):
    """A deliberation: the fold of its facts."""

    task: str = Field(description="Beginning and end of a task that is stored as a file")
    turns: int = Field(
        default=1,
        exclude_if=lambda turns: turns == 1,
        description="Messages of a conversation, of which `task` is the transcript",
    )
    task_file: InputRef | None = Field(description="The whole task where it is stored as a file")
    agents: tuple[AgentSpec, ...] = Field(description="The council, sampling resolved")
    parameters: dict[str, Any] = Field(description="Parameters of the strategy, defaults filled in")
    constraints: Constraints
    evidence: tuple[Evidence, ...] = Field(
        description="Given, the verdict of a deliberation that it follows, or what the context service knew"
    )
    context: StoryContext | None = Field(
        description="Answer of the context service about `metadata.story_id`; null where it was not asked"
    )
    workspace: GitWorkspace | FilesView | None = Field(
        description="The repository or the files that the agents may read; null without them"
    )
    webhook: Webhook | None = Field(description="Receiver and event types; null without a webhook")
    proposals: tuple[Proposal, ...]


def narrowed(resource: Resource, shape: type[_Shape]) -> _Shape:
    return shape.model_construct(**{name: getattr(resource, name) for name in shape.model_fields})


class File(Resource):
    """A file that deliberations may name as evidence."""

    id: str = Field(description="`file-` and the SHA-256 of its bytes")
    name: str
    media_type: str = Field(description="By its content")
    kind: InputKind
    bytes: int
    tokens: int = Field(description="An estimate of what it takes of a prompt")
    pages: int | None = Field(description="Of a PDF")
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = Field(description="Null while a deliberation names it")


class FileList(Resource):
    files: tuple[File, ...]


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
    task: str = Field(description="The first 200 characters; of a conversation, those of the user's last message")
    metadata: dict[str, str]
    created_at: AwareDatetime
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    progress: StageProgress | None = Field(
        description="Null before the first stage, and once it has ended; events tell of each call"
    )
    usage: Usage | None = Field(description="Null until it has ended")
    winner: Token | None = Field(description="The verdict's; null without one")
    degraded: bool | None = Field(description="Whether its verdict lacks something; null until it has ended")
    links: Links


_BEHIND = "What changed in the last so many seconds may be missing; null before the archive has caught up once"


class DeliberationPage(Resource):
    """A page of deliberations, newest first; `next_cursor` is null on the last page."""

    items: tuple[DeliberationSummary, ...]
    next_cursor: str | None
    behind_s: float | None = Field(description=_BEHIND)


class StrategyResource(Resource):
    """A strategy of deliberation."""

    name: str
    version: int
    summary: str
    steps: tuple[str, ...]
    calls: str = Field(description="Model requests without failures: N agents, R rounds")
    tool_calls: str = Field(
        description="Those of `calls` that may use tools; after each use one makes one more model request"
    )
    source: str
    fields: tuple[str, ...] = Field(description="Request fields that configure it, besides task and council")
    parameters: dict[str, Any] = Field(description="JSON Schema of the request's `parameters`, with the defaults")

    @classmethod
    def of(cls, definition: StrategyDefinition) -> Self:
        return cls(
            name=definition.name,
            version=definition.version,
            summary=definition.summary,
            steps=definition.steps,
            calls=definition.formula,
            tool_calls=definition.tool_calls,
            source=definition.source,
            fields=(("rounds",) if definition.rounds else ()) + _COMMON_FIELDS,
            parameters=definition.parameters.model_json_schema(),
        )


class StrategyList(Resource):
    """All strategies."""

    items: tuple[StrategyResource, ...]


class Durations(Resource):
    """Seconds from acceptance to the end of completed deliberations; null without any.

    A percentile is the mean of the durations that differ from it by less than 10 %.
    """

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class Tokens(Resource):
    """Tokens as the engines reported them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Figures(Resource):
    """Counts by status, and figures over what has ended."""

    total: int
    active: int = Field(description="Accepted and unfinished")
    completed: int
    failed: int
    cancelled: int
    timeout: int
    seconds: Durations
    tokens: Tokens
    cost: UsageCost | None = Field(
        description="Cost of the calls; null while none has a price. `unpriced_calls` are in no sum"
    )
    other_costs: tuple[Money, ...] = Field(
        description="Sums in other currencies, most deliberations first. `cost` has the currency of the most"
    )
    agreement: float | None = Field(description="Mean agreement of the verdicts that have one; null without any")
    degraded_share: float | None = Field(description="Share of what ended that ended degraded; null without any")


class Wins(Resource):
    """The verdicts that a role or a model won, of those with a winner in which it took part."""

    won: int
    decided: int
    rate: float | None = Field(description="`won` of `decided`; null without any")


class GroupFigures(Figures):
    """The figures of one group; a role or a model has its own tokens and cost."""

    name: str = Field(
        description="The day in UTC, or the name of the strategy, role, model or tenant, cut after 200 characters"
    )
    wins: Wins | None = Field(description="Null unless the groups are roles or models")


class Spend(Resource):
    """Spending of the caller's tenant in the present day in UTC, and its limit; deletions do not lower it."""

    spent: Amount = Field(description="The cost of what has ended today")
    reserved: Amount = Field(description="The sum of `budget.max_cost` of what is accepted and unfinished")
    limit: Amount
    currency: Currency
    resets_at: AwareDatetime = Field(description="The end of the day")

    @property
    def left(self) -> Decimal:
        return self.limit - self.spent - self.reserved


class Stats(Figures):
    """Statistics of the deliberations that were accepted from `from` on and before `to`."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)

    from_: AwareDatetime = Field(alias="from")
    to: AwareDatetime
    by: StatsGroup | None
    behind_s: float | None = Field(default=None, description=_BEHIND)
    spend: Spend | None = Field(default=None, description="Of today, whatever the period; null without a limit")
    groups: tuple[GroupFigures, ...] = Field(
        description="In the order of their names. A deliberation counts in each of its roles and models; a model's "
        "deliberations count after their end"
    )


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
