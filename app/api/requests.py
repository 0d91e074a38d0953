"""Bodies of requests, with their bounds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from math import ceil
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from app.api.action_requests import SCHEMA_KEYWORDS, ActionsRequest, AgreementMin, TurnRequest
from app.api.problems import ValidationFailed, body_fault, body_problems, refused
from app.api.request_model import MaybeWhole, RequestModel, Whole
from app.api.schemas import FieldProblem
from app.api.suggestions import did_you_mean
from app.api.webhook_payloads import TERMINAL_EVENTS, WebhookEvent
from app.api.webhook_targets import URL_CHARS_MAX, Rules, UnfitUrl, parsed
from app.control_characters import is_control
from app.deliberation.answer_schema import SchemaRefused, rebuilt_schema
from app.deliberation.conversation import task_of
from app.deliberation.decider import StrategyDefinition
from app.deliberation.facts import CancelledBy
from app.deliberation.specification import (
    BYTES_PER_TOKEN,
    PERSONA_CHARS_MAX,
    TIMEOUT_S_MAX,
    TOKEN_PATTERN,
    Amount,
    OnDeadline,
    OnDisagreement,
    Priority,
    Token,
    WebhookFormat,
)
from app.deliberation.strategies import STRATEGIES
from app.deliberation.tools import FILES_TOOLS, HISTORY_TOOLS, WORKSPACE_TOOLS, ToolName
from app.workspace.files import PATH_BYTES_MAX, path_fault, same_paths
from app.workspace.repositories import REF_PATTERN

TASK_CHARS_MAX = 2_000_000
FILE_ID_PREFIX = "file-"
FILE_ID_PATTERN = rf"^{FILE_ID_PREFIX}[0-9a-f]{{64}}$"
INLINE_CHARS_MAX = 32_768
"""A longer task is stored as an input."""
AGENTS_MAX = 32
COMPLETION_TOKENS_MAX = 32_768
EVIDENCE_MAX = 32
EVIDENCE_TOKENS_MAX = 8_192
FILES_MAX = 256
TURNS_MAX = 2_048
DEFAULT_ROLE = "DEV"
DEFAULT_STRATEGY = "council"
DEFAULT_SIZE = 3
SEED_MAX = 2**63 - 1
SEED_DRAWN_MAX = 2**53 - 1
"""The largest seed that is drawn: every JSON reader keeps it, also one in which all numbers are doubles."""
_UNPRICED_REMEDY = (
    "Leave it out, or have the operator declare the engine under `engines` of the roles file, with `prices` (0 for a "
    "free one), and name it in the role."
)


class CriterionRequest(RequestModel):
    """One criterion of the rubric; weights are relative."""

    id: str = Field(pattern=TOKEN_PATTERN)
    description: str = Field(min_length=1, max_length=2_000)
    weight: float = Field(default=1.0, gt=0, le=1_000)


def _decimal(number: object) -> object:
    return Decimal(str(number)) if isinstance(number, int | float) and not isinstance(number, bool) else number


MaybeAmount = Annotated[Amount | None, BeforeValidator(_decimal)]


def _as_rubric(rubric: object) -> object:
    return [{"id": "rubric", "description": rubric}] if isinstance(rubric, str) else rubric


def _distinct(rubric: list[CriterionRequest]) -> list[CriterionRequest]:
    if len({criterion.id for criterion in rubric}) < len(rubric):
        raise refused("repeated_id", "Criteria must have different ids", "Rename one of them.")
    return rubric


class _OrText:
    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 2_000}, handler(schema)]}


Rubric = Annotated[
    list[CriterionRequest],
    Field(min_length=1, max_length=16),
    BeforeValidator(_as_rubric),
    AfterValidator(_distinct),
    _OrText(),
]
Requirement = Annotated[str, Field(min_length=1, max_length=2_000)]
MetadataKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Metadata = Annotated[dict[MetadataKey, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def _rebuilt(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return rebuilt_schema(schema)
    except SchemaRefused as error:
        raise refused("unsupported_schema", str(error), error.remedy or SCHEMA_KEYWORDS) from error


AnswerSchema = Annotated[dict[str, Any], AfterValidator(_rebuilt)]


class ConstraintsRequest(RequestModel):
    """Demands on the answer. `metadata` is context for the agents; the two fields of the deadline are not."""

    rubric: Rubric | None = Field(default=None, description="Criteria that judges score; a general rubric if absent")
    requirements: list[Requirement] = Field(default=[], max_length=32)
    timeout_seconds: MaybeWhole = Field(
        default=None, ge=1, le=TIMEOUT_S_MAX, description="Deadline; the gateway's default if absent"
    )
    on_deadline: OnDeadline = Field(
        default="best",
        exclude_if=lambda on_deadline: on_deadline == "best",
        description="best: complete with the best verdict that the answers so far allow, and time out only without "
        "any; fail: time out",
    )
    metadata: Metadata = {}
    answer_schema: AnswerSchema | None = Field(
        default=None,
        exclude_if=lambda schema: schema is None,
        description="JSON Schema of an object: every answer is JSON that satisfies it, or with `actions` every reply. "
        "Not with `execute`",
    )
    agreement_min: AgreementMin = Field(
        default=None,
        description="Share of all members that must give the verdict's answer: with `actions`, or where it is counted",
    )
    on_disagreement: OnDisagreement = Field(
        default="best",
        exclude_if=lambda way: way == "best",
        description="best: complete with the answer all the same, marked; reply: complete with a reply that states "
        "the dissent; fail: end without a verdict",
    )


class SamplingRequest(RequestModel):
    """Sampling parameters; absent ones come from the role. The first agent uses them as given, others vary."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: MaybeWhole = Field(default=None, ge=1, le=COMPLETION_TOKENS_MAX, description="Limit of one completion")
    top_p: float | None = Field(default=None, gt=0, le=1)


class BudgetRequest(RequestModel):
    """Limits of the whole deliberation."""

    max_tokens: MaybeWhole = Field(default=None, ge=1)
    max_calls: MaybeWhole = Field(default=None, ge=1)
    max_tool_uses: MaybeWhole = Field(
        default=None,
        ge=0,
        exclude_if=lambda max_tool_uses: max_tool_uses is None,
        description="Uses of tools by all agents",
    )
    max_cost: MaybeAmount = Field(
        default=None,
        gt=0,
        le=1_000_000,
        decimal_places=6,
        exclude_if=lambda amount: amount is None,
        description="In the currency of the prices; every engine of the council's roles must have them",
    )


def _choice_remedy(gateway: Mapping[str, Any], registry: str, unknown: str = "") -> str:
    if gateway.get("read", True):
        return f"{did_you_mean(unknown, gateway[registry])}Give one of {', '.join(sorted(gateway[registry]))}."
    return f"Give one that GET /{registry} lists; that needs the scope read."


def _known(kind: str, registry: str) -> AfterValidator:
    """Refuses names that the gateway's registry lacks; where a body is read without a gateway, any name passes."""

    def check(name: str, info: ValidationInfo) -> str:
        context: Any = info.context
        if context is not None and name not in context[registry]:
            remedy = _choice_remedy(context, registry, name)
            raise refused(f"unknown_{kind}", f"The {kind} {name!r} does not exist", remedy)
        return name

    return AfterValidator(check)


# Roles are declared in capitals, so that a name in any case means one role.
RoleName = Annotated[str, Field(max_length=64), AfterValidator(str.upper), _known("role", "roles")]
StrategyName = Annotated[
    str, Field(max_length=64, json_schema_extra={"enum": list(STRATEGIES)}), _known("strategy", "strategies")
]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise refused("blank", "The text is blank", "Say something, or leave it out.")
    return text


class AgentRequest(RequestModel):
    """`count` members of one role, with its persona or with one of their own."""

    role: RoleName = Field(default=DEFAULT_ROLE, validate_default=True, description="Engines, tools and sampling")
    count: Whole = Field(default=1, ge=1, le=AGENTS_MAX)
    name: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_-]{0,39}$",
        exclude_if=lambda name: name is None,
        description="Id of the member, with a number where `count` is more; no other member reads it",
    )
    persona: Annotated[str, Field(max_length=PERSONA_CHARS_MAX), AfterValidator(_not_blank)] | None = Field(
        default=None,
        exclude_if=lambda persona: persona is None,
        description="In place of the role's, in the member's own prompts alone",
    )
    model: str | None = Field(default=None, min_length=1, max_length=256, description="The role's model if absent")
    temperature: float | None = Field(default=None, ge=0, le=2, description="Used as given, without variation")


def _fit_url(url: str, info: ValidationInfo) -> str:
    context: Any = info.context or {}
    rules: Rules | None = context.get("webhooks")
    check = parsed if rules is None else rules.check
    try:
        check(url)
    except UnfitUrl as unfit:
        raise refused("unfit_url", f"The URL is not allowed for a webhook: {unfit}", unfit.remedy) from unfit
    return url


class WebhookRequest(RequestModel):
    """The receiver of the deliberation's events, which are signed as Standard Webhooks specifies."""

    url: Annotated[str, AfterValidator(_fit_url)] = Field(
        min_length=1,
        max_length=URL_CHARS_MAX,
        description="https URL of a public host, without credentials and without a fragment",
    )
    events: list[WebhookEvent] = Field(
        default=list(TERMINAL_EVENTS), min_length=1, max_length=16, description="The terminal ones if absent"
    )
    metadata: Metadata = Field(default={}, description="Sent with every event, for the receiver")
    format: WebhookFormat = Field(
        default="event",
        exclude_if=lambda format: format == "event",
        description="event: the body is the event; a2a: it is a StreamResponse of A2A 1.0 with the new status",
    )


class EvidenceRequest(RequestModel):
    """Something to show every agent before its work: a text, or the name of a source that agents may know."""

    id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Agents name it where they rely on it")
    title: str = Field(min_length=1, max_length=200)
    text: str | None = Field(default=None, min_length=1, max_length=TASK_CHARS_MAX)
    file: str | None = Field(
        default=None,
        pattern=FILE_ID_PATTERN,
        exclude_if=lambda file: file is None,
        description="Id of an uploaded file, in place of `text`",
    )
    source: str | None = Field(
        default=None, min_length=1, max_length=512, description="A citation, not a URL: nothing is fetched"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.text is None and self.file is None and self.source is None:
            detail, remedy = "The evidence has neither text nor file nor source", "Give a text or a file, or a source."
            raise refused("empty_evidence", detail, remedy)
        if self.text is not None and self.file is not None:
            raise refused("conflict", "The evidence has a text and a file", "Give them as two pieces of evidence.")
        if self.source is not None and "://" in self.source:
            raise refused("url_source", "The source is a URL", "Give the text itself: nothing is fetched.")
        return self


class FileRequest(RequestModel):
    """A file that agents read by tools."""

    path: str = Field(
        min_length=1,
        max_length=PATH_BYTES_MAX,
        description="Relative, with `/` between names, such as `tests/test_merge.py`",
    )
    text: str

    @field_validator("path")
    @classmethod
    def _inside(cls, path: str) -> str:
        if fault := path_fault(path):
            raise refused("unfit_path", fault, "Correct it.")
        return path


class WorkspaceRequest(RequestModel):
    """The files that the agents' tools read: those of a git repository, or `files` that stand here.

    Of a repository they read files and history at the present commit of `ref`. Prompts name `files`, without texts.
    """

    git: str | None = Field(
        default=None,
        min_length=1,
        max_length=URL_CHARS_MAX,
        exclude_if=lambda git: git is None,
        description="http(s) URL without credentials, or absolute path on the gateway's host, as WORKSPACES allows",
    )
    ref: str | None = Field(
        default=None,
        pattern=REF_PATTERN,
        exclude_if=lambda ref: ref is None,
        description="Branch, tag, HEAD (if absent), or full id of a commit",
    )
    files: list[FileRequest] | None = Field(
        default=None,
        min_length=1,
        max_length=FILES_MAX,
        exclude_if=lambda files: files is None,
        description="In place of `git`. No two paths differ in case alone, and none is a directory of another",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.git is None and self.files is None:
            detail, remedy = "A workspace has a repository or files", "Give git or files."
            raise ValidationFailed([body_fault("/workspace/git", "missing", detail, remedy)])
        both = ("git", "ref") if self.files is not None else ()
        faults = [
            body_fault(f"/workspace/{name}", "conflict", "`files` already are the workspace", f"Leave {name} out.")
            for name in both
            if getattr(self, name) is not None
        ]
        for place, fault in same_paths([file.path for file in self.files or ()]):
            faults.append(body_fault(f"/workspace/files/{place}/path", "repeated_path", fault, "Rename one of them."))
        if faults:
            raise ValidationFailed(faults)
        return self

    @property
    def tools(self) -> tuple[str, ...]:
        return WORKSPACE_TOOLS if self.files is None else FILES_TOOLS


def evidence_tokens(text: str) -> int:
    return ceil(len(text.encode()) / BYTES_PER_TOKEN)


_EXAMPLES: list[JsonValue] = [
    {
        "task": "Write a function that merges two sorted lists.",
        "role": "DEV",
        "num_agents": 2,
        "strategy": "best_of_n",
        "constraints": {
            "requirements": ["linear time"],
            "rubric": [{"id": "correct", "description": "Right for every input, also for empty lists."}],
            "timeout_seconds": 300,
        },
        "seed": 7,
        "metadata": {"project": "sorting"},
    },
    {"task": "Review this design.", "agents": [{"role": "ARCHITECT"}, {"role": "QA", "count": 2}], "rounds": 2},
    {"task": "Name a colour.", "webhook": {"url": "https://hooks.example.com/deliberations"}},
    {
        "task": "Where do sessions live from now on?",
        "evidence": [
            {"id": "adr-7", "title": "Decision of March", "text": "Sessions live in the database."},
            {"id": "rfc", "title": "Caching", "source": "RFC 9111, section 4"},
        ],
    },
    {
        "task": "The disk of db-2 is full.",
        "strategy": "vote",
        "actions": {
            "tools": [
                {
                    "name": "delete",
                    "description": "Delete a directory.",
                    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
                    "comparisons": {"path": "path"},
                    "agreement_min": 1,
                }
            ]
        },
        "constraints": {"on_disagreement": "reply"},
    },
    {
        "task": "Why does test_merge fail?",
        "workspace": {
            "files": [
                {"path": "merge.py", "text": "def merge(a, b):\n    return a + b\n"},
                {"path": "test_merge.py", "text": "from merge import merge\n\n…"},
            ]
        },
    },
]


class DeliberationRequest(RequestModel):
    """The body of `POST /deliberations`: a council of one role (`role`, `num_agents`), or a mixed one (`agents`)."""

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})

    conversation: list[TurnRequest] | None = Field(
        default=None,
        min_length=1,
        max_length=TURNS_MAX,
        exclude_if=lambda turns: turns is None,
        description="In place of `task`: the council writes the assistant's next message, or decides on its action",
    )
    task: str | None = Field(
        default=None,
        validate_default=True,
        min_length=1,
        max_length=TASK_CHARS_MAX,
        description="The question or task, or `conversation`",
    )
    role: RoleName | None = Field(default=None, description="DEV if absent; not together with `agents`")
    num_agents: MaybeWhole = Field(
        default=None, ge=1, le=AGENTS_MAX, description="3 if absent, 1 for `single`; not together with `agents`"
    )
    agents: list[AgentRequest] | None = Field(
        default=None, min_length=1, max_length=AGENTS_MAX, description="A mixed council of 1 to 32 members in all"
    )
    strategy: StrategyName = DEFAULT_STRATEGY
    parameters: dict[str, Any] = Field(
        default={}, max_length=32, description="Parameters of the strategy; `GET /strategies` has their schemas"
    )
    rounds: Whole = Field(default=1, ge=0, le=5, description="Rounds of critique and revision")
    constraints: ConstraintsRequest = ConstraintsRequest()
    quorum: MaybeWhole = Field(
        default=None, ge=1, le=AGENTS_MAX, description="Answers that a stage needs; max(2, ceil(N/2)) if absent"
    )
    budget: BudgetRequest = BudgetRequest()
    sampling: SamplingRequest = SamplingRequest()
    seed: MaybeWhole = Field(default=None, ge=0, le=SEED_MAX, description="Drawn below 2^53 and recorded if absent")
    priority: Priority = Field(
        default="interactive",
        exclude_if=lambda priority: priority == "interactive",
        description="interactive: somebody waits for the verdict; batch: its calls yield to those of interactive work",
    )
    cluster: Token | None = Field(
        default=None,
        exclude_if=lambda label: label is None,
        description="Label of the clusters that may do it, one that the operator declared; any may if absent",
    )
    metadata: Metadata = Field(default={}, description="For filtering lists; it does not reach the prompts")
    evidence: list[EvidenceRequest] = Field(
        default=[],
        max_length=EVIDENCE_MAX,
        exclude_if=lambda evidence: not evidence,
        description="Shown to every agent as data. Texts of more than "
        f"{EVIDENCE_TOKENS_MAX:,} tokens in all are stored as files, the longest first",
    )
    follows: list[Annotated[str, Field(pattern=TOKEN_PATTERN)]] = Field(
        default=[],
        max_length=8,
        exclude_if=lambda follows: not follows,
        description="Ids of ended deliberations: their verdicts become evidence",
    )
    tools: list[ToolName] | None = Field(
        default=None,
        max_length=64,
        exclude_if=lambda tools: tools is None,
        description="Tools that agents may use, of those of their roles and the workspace; all of them if absent, none "
        "if empty. `GET /tools` lists those of roles",
    )
    actions: ActionsRequest | None = Field(
        default=None,
        exclude_if=lambda actions: actions is None,
        description="Tools of the client: every answer is then an action, and the verdict has the one to carry out",
    )
    workspace: WorkspaceRequest | None = Field(
        default=None,
        exclude_if=lambda workspace: workspace is None,
        description="A repository that the gateway allows, or files, for the agents' tools",
    )
    webhook: WebhookRequest | None = Field(default=None, description="Receiver of the end, or of chosen events")

    @field_validator("task")
    @classmethod
    def _said(cls, task: str | None, info: ValidationInfo) -> str | None:
        conversation = info.data.get("conversation", ())
        if task is None and conversation is None:
            raise refused("missing", "It is missing", "Add it.")
        if task is not None and conversation:
            raise refused("conflict", "`conversation` already says it", "Give one of the two.")
        if task is not None and not task.strip():
            raise refused("blank", "The task is blank", "Say what to deliberate about.")
        return task

    @field_validator("conversation")
    @classmethod
    def _told(cls, conversation: list[TurnRequest] | None) -> list[TurnRequest] | None:
        if conversation is not None and not any(turn.turn.text.strip() for turn in conversation):
            raise refused("blank", "The conversation is blank", "Say what to deliberate about.")
        if sum(len(turn.turn.text) for turn in conversation or ()) > TASK_CHARS_MAX:
            raise refused("string_too_long", "It is too long", f"Give at most {TASK_CHARS_MAX:,} characters in all.")
        return conversation

    @cached_property
    def whole_task(self) -> str:
        """The task, or the transcript of the conversation."""
        return self.task or task_of([turn.turn for turn in self.conversation or ()])

    @property
    def size(self) -> int:
        return sum(agent.count for agent in self.roster)

    @property
    def roster(self) -> list[AgentRequest]:
        if self.agents is not None:
            return self.agents
        definition = STRATEGIES.get(self.strategy)
        default = DEFAULT_SIZE if definition is None or definition.size is None else definition.size
        return [AgentRequest.model_construct(role=self.role or DEFAULT_ROLE, count=self.num_agents or default)]

    @property
    def member_ids(self) -> list[list[str]]:
        """The ids of the members of each entry of the roster."""
        counts: Counter[str] = Counter()
        ids: list[list[str]] = []
        for entry in self.roster:
            name = entry.name or entry.role.lower()
            if entry.name is not None and entry.count == 1:
                ids.append([name])
                continue
            ids.append([f"{name}-{counts[name] + number:03d}" for number in range(1, entry.count + 1)])
            counts[name] += entry.count
        return ids

    @model_validator(mode="after")
    def _agrees(self, info: ValidationInfo) -> Self:
        faults: list[FieldProblem] = []
        if self.agents is not None:
            for name in ("role", "num_agents"):
                if getattr(self, name) is not None:
                    detail = "`agents` already defines the council"
                    faults.append(body_fault(f"/{name}", "conflict", detail, f"Leave {name} out."))
        if self.size > AGENTS_MAX:
            detail = f"The council has {self.size} members"
            faults.append(body_fault("/agents", "too_many_agents", detail, f"Give at most {AGENTS_MAX} in all."))
        faults += _name_faults(self)
        if self.quorum is not None and self.quorum > self.size:
            detail = f"{self.size} agents cannot reach a quorum of {self.quorum}"
            faults.append(body_fault("/quorum", "quorum_too_large", detail, f"Give {self.size} or less."))
        faults += _evidence_faults(self)
        if info.context is not None:
            faults += _gateway_faults(self, info.context)
        if faults:
            raise ValidationFailed(faults)
        return self


def _name_faults(request: DeliberationRequest) -> list[FieldProblem]:
    faults: list[FieldProblem] = []
    known = set[str]()
    for place, ids in enumerate(request.member_ids):
        if repeated := known & set(ids):
            detail = f"Another member is called {min(repeated)}"
            faults.append(body_fault(f"/agents/{place}/name", "repeated_name", detail, "Give it another name."))
        known |= set(ids)
    return faults


def _evidence_faults(request: DeliberationRequest) -> list[FieldProblem]:
    faults: list[FieldProblem] = []
    ids = [*(evidence.id for evidence in request.evidence), *request.follows]
    if len(set(ids)) < len(ids):
        faults.append(body_fault("/evidence", "repeated_id", "Evidence must have different ids", "Rename one of them."))
    return faults


def _on_one_line(text: str) -> str:
    return " ".join("".join(" " if is_control(character) else character for character in text).split())


class CancelRequest(RequestModel):
    """The optional body of a request to cancel."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "no longer needed"}]})

    by: CancelledBy = Field(default="client", description="Who stops it; `operator` needs the scope `admin`")
    reason: Annotated[str, AfterValidator(_on_one_line)] | None = Field(
        default=None, max_length=500, description="Why; kept on one line, without what cannot be printed"
    )


def _unknown_cluster(declared: Sequence[str]) -> tuple[str, str]:
    if not declared:
        return "No cluster has a label here", "Leave it out, or have the operator set CLUSTERS."
    return "No cluster with this label is declared", f"Give one of {', '.join(declared)}, or leave it out."


def _gateway_faults(request: DeliberationRequest, gateway: dict[str, Any]) -> list[FieldProblem]:
    faults: list[FieldProblem] = []
    if request.agents is None and request.role is None and DEFAULT_ROLE not in gateway["roles"]:
        remedy = _choice_remedy(gateway, "roles")
        faults.append(body_fault("/role", "unknown_role", f"This gateway has no role {DEFAULT_ROLE}", remedy))
    definition: StrategyDefinition | None = gateway["strategies"].get(request.strategy)
    if definition is not None:
        try:
            definition.parameters.model_validate(request.parameters)
        except ValidationError as invalid:
            faults += body_problems(invalid, definition.parameters, "/parameters").errors
    if request.constraints.answer_schema is not None and definition is not None and "test" in definition.steps:
        detail, remedy = f"{request.strategy} writes programs", "Leave it out, or choose another strategy."
        faults.append(body_fault("/constraints/answer_schema", "unsupported_value", detail, remedy))
    if request.budget.max_cost is not None:
        named = {entry.role: gateway["roles"].get(entry.role) for entry in request.roster}
        for name, role in named.items():
            if role is not None and (engine := role.unpriced_engine) is not None:
                detail = f"Role {name} has an engine without prices: {engine}"
                faults.append(body_fault("/budget/max_cost", "unpriced_role", detail, _UNPRICED_REMEDY))
    declared = gateway.get("clusters", ())
    if request.cluster is not None and request.cluster not in declared:
        faults.append(body_fault("/cluster", "unknown_cluster", *_unknown_cluster(declared)))
    faults += _tool_faults(request, gateway)
    faults += _agreement_faults(request, definition)
    if request.webhook is not None and gateway.get("webhooks") is None:
        remedy = "Leave it out, or have the operator set WEBHOOKS and run a sender."
        faults.append(body_fault("/webhook", "webhooks_off", "This gateway sends no webhooks", remedy))
    return faults


# Their answer is none of the members'.
_WRITES_ANEW = ("fuse",)


def _disagreement_faults(request: DeliberationRequest) -> list[FieldProblem]:
    constraints, at = request.constraints, "/constraints/on_disagreement"
    if constraints.on_disagreement == "best":
        return []
    tools = () if request.actions is None else request.actions.tools
    if constraints.agreement_min is None and all(tool.agreement_min is None for tool in tools):
        return [body_fault(at, "conflict", "No agreement is demanded", "Give agreement_min, or leave it out.")]
    if constraints.on_disagreement == "reply" and constraints.answer_schema is not None:
        detail = "A reply that states the dissent is no answer of the schema"
        return [body_fault(at, "conflict", detail, "Give fail or best.")]
    return []


def _agreement_faults(request: DeliberationRequest, definition: StrategyDefinition | None) -> list[FieldProblem]:
    """The faults of `actions` and of agreement with the strategy."""
    constraints, strategy = request.constraints, request.strategy
    faults = _disagreement_faults(request)
    counts = definition is not None and "normaliser" in definition.parameters.model_fields
    if request.actions is None:
        counts = counts and request.parameters.get("normaliser") != "none"
        if constraints.agreement_min is not None and not counts:
            remedy = "Leave it out, give `actions`, or choose vote, auto or debate, which count answers."
            detail = f"{strategy} does not count equal answers"
            faults.append(body_fault("/constraints/agreement_min", "unsupported_value", detail, remedy))
        return faults
    escalates_to = request.parameters.get("escalate_to")
    if definition is not None and ("test" in definition.steps or strategy in _WRITES_ANEW):
        detail, remedy = f"{strategy} does not choose among actions", "Choose another strategy."
        faults.append(body_fault("/strategy", "unsupported_value", detail, remedy))
    if escalates_to in _WRITES_ANEW:
        detail, remedy = f"{escalates_to} does not choose among actions", "Choose another strategy."
        faults.append(body_fault("/parameters/escalate_to", "unsupported_value", detail, remedy))
    for name in ("normaliser", "options"):
        if name in request.parameters:
            detail = "Actions are compared by their calls"
            faults.append(body_fault(f"/parameters/{name}", "conflict", detail, "Leave it out."))
    return faults


def _tool_faults(request: DeliberationRequest, gateway: dict[str, Any]) -> list[FieldProblem]:
    roles = [gateway["roles"].get(entry.role) for entry in request.roster]
    allowed = {name for role in roles if role is not None for role_tools in role.tools for name in role_tools.allow}
    workspace = request.workspace
    allowed |= set(workspace.tools if workspace is not None else ())
    listed = f"Give some of {', '.join(sorted(allowed))}." if allowed else "Leave it out: its roles have no tools."
    remedy = listed if gateway.get("read", True) else "Give some that GET /tools lists; that needs the scope read."
    faults: list[FieldProblem] = []
    for place, name in enumerate(request.tools or ()):
        if name in allowed:
            continue
        code, detail = "unknown_tool", "No role of the council has this tool"
        if workspace is not None and name in HISTORY_TOOLS:
            code, detail = "no_history", "Files of a request have no history; this tool reads a git repository"
        faults.append(body_fault(f"/tools/{place}", code, detail, remedy))
    usable = allowed if request.tools is None else allowed & set(request.tools)
    for place, tool in enumerate(request.actions.tools if request.actions is not None else ()):
        if tool.name in usable:
            detail, remedy = (
                "The council's agents use a tool of this name",
                "Rename it, or give an empty list of tools.",
            )
            faults.append(body_fault(f"/actions/tools/{place}/name", "conflict", detail, remedy))
    return faults
