"""The facts: a closed union of everything that can happen to a deliberation, and the subjects that hold them.

A fact is encoded once: the JSON that a writer appends is, unchanged, the `data` of the SSE frame that a viewer
receives. `type` is always its first field, so that `event_type` reads it without parsing.

Views (`call.started`, `call.delta`, `call.waiting`) travel on the same stream and decide nothing. The tombstone
(`deliberation.deleted`) follows the end and replaces all facts.

The union is closed, so all of its members stand in this file, though it is long.
"""

from datetime import UTC
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from app.deliberation.calls import FactProblem, Usage
from app.deliberation.citations import Citation
from app.deliberation.outputs import OutputKind
from app.deliberation.specification import Purpose, Specification, Structured, Token, Value, checked_token

Cause = Literal["all", "quorum", "deadline"]
CancelledBy = Literal["client", "disconnect", "superseded", "deadline", "operator"]
"""The author of a cancellation.

`client`: whoever asked for it; `disconnect`: its client left; `superseded`: a newer request replaces it; `deadline`:
the client's own time was over; `operator`: a key with the scope `admin`.
"""
CutBy = Literal["deadline", "calls", "tokens", "cost"]
TerminalStatus = Literal["completed", "failed", "cancelled", "timeout"]


class Envelope(Value, frozen=True):
    """The fields of every event: its type, its deliberation, and the time of its writing (RFC 3339, UTC)."""

    type: str
    deliberation_id: Token
    ts: AwareDatetime


class Accepted(Envelope, frozen=True):
    """The gateway took the work on; the fact is the queue item."""

    type: Literal["deliberation.accepted"] = "deliberation.accepted"
    specification: Specification
    deadline_at: AwareDatetime
    body_sha256: str
    request_id: str | None = None
    traceparent: str | None = None
    asked: dict[str, Any] = Field(
        default={},
        exclude_if=lambda asked: not asked,
        description="What a façade repeats of its request, such as an id that the client gave; it decides nothing",
    )


class PlannedCall(Value, frozen=True):
    """A call as its stage announces it: the form of its answer, and the candidate behind each letter of its prompt."""

    call_id: Token
    agent_id: Token
    role: str
    output: OutputKind = "answer"
    labels: dict[str, str] = {}


class StageOpened(Envelope, frozen=True):
    """A stage's calls may run now. The stage closes with a quorum at `soft_deadline_at`, or when all calls ended."""

    type: Literal["stage.opened"] = "stage.opened"
    stage: int
    purpose: Purpose
    round: int
    calls: tuple[PlannedCall, ...]
    quorum: int
    soft_deadline_at: AwareDatetime
    call_deadline_at: AwareDatetime


class CallStarted(Envelope, frozen=True):
    """View: an attempt of a call goes to an engine."""

    type: Literal["call.started"] = "call.started"
    call_id: Token
    agent_id: Token
    role: str
    model: str
    attempt: int


class CallDelta(Envelope, frozen=True):
    """View: a piece of an attempt's text; `offset` counts characters from the attempt's beginning.

    The text is structured output as the engine writes it; a stream with `text=answer` has the answer in it instead.
    """

    type: Literal["call.delta"] = "call.delta"
    call_id: Token
    agent_id: Token
    attempt: int
    offset: int
    text: str


class UnreachableEngine(Value, frozen=True):
    """No connection to an engine can be made: since when, and why; `url` has no credentials."""

    since: AwareDatetime
    cause: str
    url: str

    def __str__(self) -> str:
        at = f"{self.since.astimezone(UTC):%H:%M:%S} UTC"
        return f"engine {self.url} cannot be connected to since {at}: {self.cause}"


class CallWaiting(Envelope, frozen=True):
    """View: a call waits, because none of its engines can be connected to; repeated every few seconds."""

    type: Literal["call.waiting"] = "call.waiting"
    call_id: Token
    agent_id: Token
    role: str
    engines: tuple[UnreachableEngine, ...]
    gives_up_at: AwareDatetime
    detail: str


class CallFinished(Envelope, frozen=True):
    """A call's one recorded outcome: an answer that satisfies its schema, or a problem.

    `structured` says how its engine was made to answer in that form. `lenient` lists what was read leniently, in words
    of `readings.LENIENCIES`; `text` is in form. `usage_estimated` says that the engine reported no tokens, so that they
    are estimated by length.
    """

    type: Literal["call.finished"] = "call.finished"
    call_id: Token
    agent_id: Token
    role: str
    stage: int
    attempt: int
    text: str | None = None
    problem: FactProblem | None = None
    finish_reason: str | None = None
    model: str | None = None
    engine: str | None = None
    structured: Structured | None = None
    lenient: tuple[str, ...] = ()
    usage: Usage = Usage()
    usage_estimated: bool = False
    duration_ms: int
    ttft_ms: int | None = None
    tools_away: tuple[str, ...] = Field(
        default=(), exclude_if=lambda away: not away, description="Tool servers that could not be reached"
    )

    @property
    def answered(self) -> bool:
        return self.problem is None


class _ToolCall(Envelope, frozen=True):
    """A use of a tool by an agent's call; `number` counts its uses from 1, `turn` the replies that asked for them.

    `tool_call_id` and `name` are those of the model's reply. `arguments` is its JSON, cut at 8 KiB, without the values
    of keys that read like a secret's; `server` and `tool` are empty where the model named no tool that it has.
    """

    call_id: Token
    agent_id: Token
    role: str
    stage: int
    number: int
    turn: int
    server: str
    tool: str
    tool_call_id: str
    name: str
    arguments: str


class ToolStarted(_ToolCall, frozen=True):
    """A use begins of a tool that must not be repeated: its server marks it neither as read-only nor as idempotent."""

    type: Literal["tool.started"] = "tool.started"


class ToolUsed(_ToolCall, frozen=True):
    """A use of a tool ended; the model sees this record. `text` is the result, cut at the call's limit.

    `bytes` is the size of the whole result. `failed` says that the tool reports an error itself, or that there is no
    result; then `problem` tells why.
    """

    type: Literal["tool.used"] = "tool.used"
    text: str = ""
    failed: bool = False
    problem: FactProblem | None = None
    bytes: int = 0
    duration_ms: int = 0


class StageClosed(Envelope, frozen=True):
    """Freezes which outcomes counted: a late one is kept, but never seen."""

    type: Literal["stage.closed"] = "stage.closed"
    stage: int
    purpose: Purpose
    round: int
    seen: tuple[Token, ...]
    reason: Cause


class CancelRequested(Envelope, frozen=True):
    """A request to stop, with its author and its reason."""

    type: Literal["deliberation.cancelling"] = "deliberation.cancelling"
    by: CancelledBy = "client"
    reason: str | None = None


class Resumed(Envelope, frozen=True):
    """A coordinator took over from one that died or hung; with `given_back`, a stopping one hands its work back.

    `takeover` counts from 1 over the deliberation's life; `replica` is the writer's.
    """

    type: Literal["deliberation.resumed"] = "deliberation.resumed"
    takeover: int = Field(ge=1)
    replica: str
    given_back: bool = False


class Standing(Value, frozen=True):
    """One agent's place, with the version of its text that stands there (0 is the first).

    `score` is the aggregate it was ranked by, in [0, 1], or null without a score.
    """

    agent_id: Token
    score: float | None
    rank: int
    version: int = 0


class Tally(Value, frozen=True):
    """Votes for one answer: the answer as it was compared (normalised, at most 500 characters), and its agents.

    `final` counts the votes of final answers where each agent's first answer voted too, as after a debate; else null.
    """

    answer: str
    votes: int
    final: int | None = None
    agents: tuple[Token, ...]


class Dissent(Value, frozen=True):
    """A reviewer with a ballot that preferred another agent to the winner."""

    agent_id: Token
    preferred: Token


class StrategyRef(Value, frozen=True):
    """A strategy and its version."""

    name: str
    version: int


class ActionCall(Value, frozen=True):
    """A call of a client's tool. The verdict's calls have ids, under which the client tells what they returned."""

    id: str | None = Field(default=None, exclude_if=lambda id: id is None)
    name: str
    arguments: dict[str, Any]


class Action(Value, frozen=True):
    """An answer that replies with a text, or calls tools of the client."""

    reply: str | None = Field(default=None, exclude_if=lambda reply: reply is None)
    calls: tuple[ActionCall, ...] = Field(default=(), exclude_if=lambda calls: not calls)


class Verdict(Value, frozen=True):
    """The decision: ranking and answer.

    `winner` is null when nothing was ranked. `call_id` names the call with the answer `content`; both are null
    together. `agreement` is a mean Kendall τ in [-1, 1] after ballots. After a count of answers (`tally`, most votes
    first) `agreement` is the winner's share of the votes, in [0, 1]. `effective_votes` is N/(1+(N-1)ρ̂): how many
    independent ballots the ballots are worth, ρ̂ their mean pairwise τ. `citations` are the evidence that `content`
    names, checked against that of the request. `action` is the answer where answers are actions; `content` then has it
    in words. `agreed` says whether as many members as demanded gave the answer; null where none is demanded. Without
    agreement the answer may be a reply that states the dissent, which no call wrote.
    """

    winner: Token | None
    content: str | None
    call_id: Token | None = None
    ranking: tuple[Standing, ...]
    margin: float | None
    tie: bool
    dissent: tuple[Dissent, ...]
    agreement: float | None
    effective_votes: float | None = None
    tally: tuple[Tally, ...] = ()
    citations: tuple[Citation, ...] = Field(default=(), exclude_if=lambda citations: not citations)
    action: Action | None = Field(default=None, exclude_if=lambda action: action is None)
    agreed: bool | None = Field(default=None, exclude_if=lambda agreed: agreed is None)
    strategy: StrategyRef
    calls: int


class StageUsage(Usage, frozen=True):
    """Usage of one stage."""

    stage: int
    purpose: Purpose


class AgentUsage(Usage, frozen=True):
    """Usage of one agent."""

    agent_id: Token


class TotalUsage(Usage, frozen=True):
    """Usage of the deliberation: by stage and by agent it sums to the same totals."""

    by_stage: tuple[StageUsage, ...] = ()
    by_agent: tuple[AgentUsage, ...] = ()


class CutStage(Value, frozen=True):
    """A stage that lacks answers because time was over, or that time or the budget did not let open."""

    purpose: Purpose
    round: int
    by: CutBy


DEGRADED_REASONS = {
    "unscored": "no ballot or comparison was recorded; fewer tokens rank first, then a hash of the seed",
    "unreviewed": "only one answer was left, and no peer compared it",
    "untested": "no test was written, so no check ranked the programs",
    "budget": "the budget did not admit every stage",
    "deadline": "the time was over before every stage had its answers",
}
"""The reasons of one word, with their meaning; every other reason is a sentence."""


class Degraded(Value, frozen=True):
    """The shortcomings of a completed deliberation. `cut` lists stages in order."""

    reasons: tuple[str, ...] = Field(
        (),
        description="Shortcomings, as sentences or one of these words. "
        + " ".join(f"`{word}`: {meaning}." for word, meaning in DEGRADED_REASONS.items()),
    )
    cut: tuple[CutStage, ...] = ()


class Stall(Value, frozen=True):
    """The calls of one member in one stage without an outcome that counts.

    `code` is that of the last one's problem; it is null where the stage, or the deliberation, ended before the outcome.
    """

    agent_id: Token
    stage: int
    purpose: Purpose
    round: int
    calls: int
    code: str | None


class Participation(Value, frozen=True):
    """The members that took part: `counted` of `members` have an answer that counts. `stalled` lists calls without one.

    `took_place` is true where the answers of at least two members count.
    """

    took_place: bool
    members: int
    counted: int
    stalled: tuple[Stall, ...] = ()


class _End(Envelope, frozen=True):
    verdict: Verdict | None = None
    problem: FactProblem | None = None
    usage: TotalUsage = TotalUsage()
    degraded: Degraded | None = None
    participation: Participation | None = None


class Completed(_End, frozen=True):
    """The end: a verdict."""

    type: Literal["deliberation.completed"] = "deliberation.completed"


class Failed(_End, frozen=True):
    """The end: a problem."""

    type: Literal["deliberation.failed"] = "deliberation.failed"


class Cancelled(_End, frozen=True):
    """The end of a deliberation that was stopped on request, with the request's `by` and `reason`."""

    type: Literal["deliberation.cancelled"] = "deliberation.cancelled"
    by: CancelledBy = "client"
    reason: str | None = None


class TimedOut(_End, frozen=True):
    """The end: the deadline passed first."""

    type: Literal["deliberation.timeout"] = "deliberation.timeout"


class Deleted(Envelope, frozen=True):
    """The tombstone of an ended deliberation: the one fact that stays until retention."""

    type: Literal["deliberation.deleted"] = "deliberation.deleted"


class NewerEvent(Envelope, frozen=True):
    """An event of a type that a newer version added. It decides nothing here."""


End = Completed | Failed | Cancelled | TimedOut
Fact = Accepted | StageOpened | CallFinished | ToolStarted | ToolUsed | StageClosed | CancelRequested | Resumed | End
View = CallStarted | CallDelta | CallWaiting
Event = Fact | View | Deleted

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])
TERMINAL_STATUS: dict[str, TerminalStatus] = {
    "deliberation.completed": "completed",
    "deliberation.failed": "failed",
    "deliberation.cancelled": "cancelled",
    "deliberation.timeout": "timeout",
}


def encode(event: Event) -> bytes:
    return event.__pydantic_serializer__.to_json(event)


def decode(data: bytes) -> Event | NewerEvent:
    """The event in `data`, without fields that newer writers added. Raises pydantic.ValidationError."""
    try:
        return _EVENTS.validate_json(data)
    except ValidationError as exc:
        if exc.errors(include_input=False)[0]["type"] != "union_tag_invalid":
            raise
        return NewerEvent.model_validate_json(data)


def event_type(data: bytes) -> str:
    if not data.startswith(b'{"type":"'):
        raise ValueError("an encoded event begins with its type")
    return data[9 : data.index(b'"', 9)].decode()


def prefix(tenant: str, deliberation_id: str) -> str:
    checked_token(tenant, "tenant")
    return f"deliberations.{tenant}.{checked_token(deliberation_id, 'id')}"


def acceptance(cluster: str | None) -> str:
    """The last token of an acceptance's subject, by which the coordinators' queues tell the clusters apart.

    It stays one token, so that `accepted` and `accepted-eu` exclude each other and one pattern matches both.
    """
    return "accepted" if cluster is None else f"accepted-{cluster}"


def is_acceptance(subject: str) -> bool:
    return subject.rpartition(".")[2].partition("-")[0] == "accepted"


def suffix(event: Event) -> str:
    """The tokens of an event's subject after its deliberation's prefix. No two facts share a subject."""
    match event:
        case Accepted():
            return acceptance(event.specification.cluster)
        case StageOpened():
            return f"stage.{event.stage}.opened"
        case StageClosed():
            return f"stage.{event.stage}.closed"
        case CallStarted():
            return f"call.{event.call_id}.started"
        case CallDelta():
            return f"call.{event.call_id}.delta"
        case CallWaiting():
            return f"call.{event.call_id}.waiting"
        case CallFinished():
            return f"call.{event.call_id}.finished"
        case ToolStarted():
            return f"call.{event.call_id}.tool.{event.number}.started"
        case ToolUsed():
            return f"call.{event.call_id}.tool.{event.number}.used"
        case CancelRequested():
            return "cancel"
        case Resumed():
            return f"takeover.{event.takeover}"
        case Completed() | Failed() | Cancelled() | TimedOut():
            return "end"
        case Deleted():
            return "deleted"


_SEVERAL = ("stage.*.*", "call.*.finished", "call.*.tool.*.*", "takeover.*")
FACT_SUFFIXES: tuple[str, ...] = ("*", *_SEVERAL)
"""Patterns that together match every fact of a deliberation, its tombstone too, and no view."""
LATER_SUFFIXES: tuple[str, ...] = ("cancel", "end", "deleted", *_SEVERAL)
"""The same without the acceptance."""
