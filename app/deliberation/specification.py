"""The complete request: every default is filled in and every choice made before acceptance."""

import json
import re
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, WithJsonSchema

from app.deliberation.errors import InvalidToken

TIMEOUT_S_MAX = 3_600

Structured = Literal["json_schema", "json_object", "prompt"]
"""How an engine is made to answer in a form: by a schema, by JSON with the schema in the prompt, or by the prompt."""

OnDeadline = Literal["best", "fail"]
"""At the deadline: the best verdict that the recorded answers allow, or none."""

ArgumentComparison = Literal["text", "path", "ignore"]
"""How an argument of a call is compared, where not exactly: by its words, as a normal path, or not at all."""

OnDisagreement = Literal["best", "reply", "fail"]
"""Without enough agreement: the verdict as it is, marked; a reply that states the dissent; or no verdict."""

Priority = Literal["interactive", "batch"]
"""`batch` work yields to `interactive` work in every queue."""

PERSONA_CHARS_MAX = 4_000
# UTF-8 bytes per token, low on purpose: the estimate errs towards refusing, so that a ceiling holds. Bytes, because a
# Chinese character or an emoji takes a token or more, and three or four bytes.
BYTES_PER_TOKEN = 3
TOKEN_PATTERN = r"^[a-z0-9_-]{1,64}$"

Token = Annotated[str, Field(pattern=TOKEN_PATTERN)]


def checked_token(text: str, field: str) -> str:
    """Return `text` when it may stand as one token of a subject; raise InvalidToken otherwise.

    nats-py stores literal `*` and `>` in published subjects, so the allow-list is enforced here and not by the client.
    """
    if re.fullmatch(TOKEN_PATTERN, text) is None:
        raise InvalidToken(f"{field} must match [a-z0-9_-]{{1,64}}", field)
    return text


class Value(BaseModel, frozen=True):
    """Base of every value of the core: frozen. Fields that a newer writer added are dropped on reading."""

    model_config = ConfigDict(extra="ignore", json_schema_serialization_defaults_required=True)


Amount = Annotated[
    Decimal,
    Field(ge=0),
    PlainSerializer(float, return_type=float, when_used="json"),
    WithJsonSchema({"type": "number", "minimum": 0}),
]
"""An amount of money, in millionths of its currency; in JSON a number."""

Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class Prices(Value, frozen=True):
    """Prices of an engine's tokens, per million. Without a price of their own cached tokens cost what a prompt does."""

    currency: Currency
    prompt: Amount
    cached: Amount | None = None
    completion: Amount


class Parameters(BaseModel):
    """Base of a strategy's own parameters: closed and strict. `GET /strategies` shows their JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Criterion(Value, frozen=True):
    """One line of the rubric; weights are relative."""

    id: Token
    description: str = Field(min_length=1, max_length=2_000)
    weight: float = Field(default=1.0, gt=0, le=1_000)


class ActionTool(Value, frozen=True):
    """A tool of the client that an action may call; nothing here runs it.

    `parameters` is the JSON Schema of its arguments, rebuilt as an answer's is, with the defaults. `comparisons` has
    the arguments that are not compared exactly. `agreement_min` is the share of members that must want a call of it.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any]
    comparisons: dict[str, ArgumentComparison] = Field(default={}, exclude_if=lambda comparisons: not comparisons)
    agreement_min: float | None = Field(default=None, exclude_if=lambda share: share is None)


class Actions(Value, frozen=True):
    """What an answer may do: reply with a text, or call up to `calls_max` tools. With `must_call` it calls."""

    tools: tuple[ActionTool, ...] = Field(min_length=1)
    must_call: bool = False
    calls_max: int = Field(ge=1)

    @cached_property
    def listing(self) -> str:
        """The tools as prompts have them, one on a line. It is written once for all calls."""
        shown = [tool.model_dump(include={"name", "description", "parameters"}) for tool in self.tools]
        return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in shown)

    def form(self, reply: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON Schema of an action. `reply` is that of a reply; without it a reply is a text."""
        calls = [_closed({"name": {"enum": [tool.name]}, "arguments": tool.parameters}) for tool in self.tools]
        listed = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": self.calls_max}
        calling = _closed({"calls": listed})
        replying = _closed({"reply": reply or {"type": "string"}})
        return calling if self.must_call else {"type": "object", "anyOf": [replying, calling]}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Constraints(Value, frozen=True):
    """Demands on the answer. The deadline and the agreement reach no prompt.

    `metadata` is context for the agents. With `answer_schema`, a JSON Schema, every answer is JSON that satisfies it;
    with `actions` every answer is an action, and what it replies satisfies the schema. `agreement_min` is the share of
    all members that must give the verdict's answer.
    """

    rubric: tuple[Criterion, ...]
    requirements: tuple[str, ...] = ()
    timeout_seconds: int
    on_deadline: OnDeadline = "best"
    metadata: dict[str, str] = {}
    answer_schema: dict[str, Any] | None = None
    actions: Actions | None = Field(default=None, exclude_if=lambda actions: actions is None)
    agreement_min: float | None = Field(default=None, exclude_if=lambda share: share is None)
    on_disagreement: OnDisagreement = Field(default="best", exclude_if=lambda way: way == "best")

    @cached_property
    def answer_form(self) -> str:
        """The JSON Schema of an answer, as JSON; empty where it is a text. It is written once for all calls."""
        form = self.answer_schema if self.actions is None else self.actions.form(self.answer_schema)
        return "" if form is None else json.dumps(form)


class Sampling(Value, frozen=True):
    """Parameters of drawing tokens. `max_tokens` bounds one completion."""

    temperature: float = Field(default=0.7, ge=0, le=2)
    max_tokens: int = Field(default=2_048, ge=1, le=32_768)
    top_p: float | None = Field(default=None, gt=0, le=1)


class ToolAllowance(Value, frozen=True):
    """The tools that a call may use: their names, how many uses in all, and how many bytes of results in all."""

    names: tuple[str, ...]
    uses: int = Field(ge=1)
    bytes: int = Field(ge=1)


class AgentSpec(Value, frozen=True):
    """One member of the council; its sampling is resolved: request over role over default, and diverse already.

    `tools` are those of its role that the request leaves; its ballots, checks and tests use none.
    """

    agent_id: Token
    role: str
    persona: str | None = Field(
        default=None, exclude_if=lambda persona: persona is None, description="In place of the role's"
    )
    model: str | None = None
    sampling: Sampling = Sampling()
    tools: ToolAllowance | None = Field(default=None, exclude_if=lambda tools: tools is None)


class RolePrices(Prices, frozen=True):
    """The most that tokens of a role's calls cost, on whichever of its engines."""

    role: str


class Budget(Value, frozen=True):
    """Ceilings over the whole deliberation; None leaves that side open.

    `prices` are those at acceptance, in the currency of `max_cost`: later ones change no decision.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    max_calls: int | None = Field(default=None, ge=1)
    max_cost: Amount | None = None
    max_tool_uses: int | None = Field(default=None, ge=0, exclude_if=lambda uses: uses is None)
    prices: tuple[RolePrices, ...] = ()

    @property
    def counts_tokens(self) -> bool:
        return self.max_tokens is not None or self.max_cost is not None


WebhookFormat = Literal["event", "a2a"]


class Webhook(Value, frozen=True):
    """The receiver of events, and their types. `metadata` is sent to it with every event and reaches no prompt."""

    url: str
    events: tuple[str, ...]
    metadata: dict[str, str] = {}
    format: WebhookFormat = Field(default="event", exclude_if=lambda format: format == "event")


InputKind = Literal["text", "picture"]


class InputRef(Value, frozen=True):
    """A stored input, by the SHA-256 of its bytes. Agents read its form: a text in UTF-8, or a picture.

    `tokens` is an estimate of what the form takes of a prompt. `form_sha256` is the form's own digest.
    """

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: str
    media_type: str
    bytes: int
    kind: InputKind
    tokens: int
    pages: int | None = Field(default=None, exclude_if=lambda pages: pages is None)
    form_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    form_bytes: int

    @property
    def prompt_bytes(self) -> int:
        """The bytes that it adds to a prompt; a picture counts as a text of its tokens."""
        return self.form_bytes if self.kind == "text" else self.tokens * BYTES_PER_TOKEN


class Evidence(Value, frozen=True):
    """A text, an input, or the name of a source, that every agent reads as data. No source is fetched."""

    id: str
    title: str
    text: str | None = None
    file: InputRef | None = Field(default=None, exclude_if=lambda file: file is None)
    source: str | None = None


class GitWorkspace(Value, frozen=True):
    """The agents' repository: its URL or path, the requested ref, and the commit of the ref at acceptance."""

    git: str
    ref: str
    commit: str


class WorkspaceFile(Value, frozen=True):
    path: str
    text: str


class FilesWorkspace(Value, frozen=True):
    """Files of the request, which agents read by tools. Prompts name them, and leave out their texts."""

    files: tuple[WorkspaceFile, ...]


ContextStatus = Literal["given", "empty", "unanswered", "unusable"]


class StoryContext(Value, frozen=True):
    """The answer of the context service about the story of a request, before its acceptance.

    `empty`: it knows nothing of the story; `unanswered`: no reply in time; `unusable`: a reply that cannot be read.
    """

    story_id: str
    status: ContextStatus
    version: str | None = Field(default=None, description="The reply's `version_hash`")
    detail: str | None = Field(default=None, description="Reason for none; null where the service gave or knew none")


class Specification(Value, frozen=True):
    """A deliberation as accepted: enough to replay it without any setting.

    `cluster` is the label of the clusters that may do it; any may where it is null. `metadata` is for filtering lists
    and reaches no prompt. `evidence` reaches every prompt: that of the request, then
    the verdicts of the deliberations that it follows, then the text of a context that was `given`. With a `task_file`
    that is the task, and `task` its beginning. A task of several `turns` is the transcript of a conversation.
    """

    task: str
    turns: int = Field(default=1, exclude_if=lambda turns: turns == 1)
    task_file: InputRef | None = Field(default=None, exclude_if=lambda file: file is None)
    agents: tuple[AgentSpec, ...] = Field(min_length=1, max_length=32)
    strategy: str
    strategy_version: int
    parameters: dict[str, Any] = {}
    rounds: int
    constraints: Constraints
    quorum: int
    budget: Budget = Budget()
    seed: int
    priority: Priority = "interactive"
    cluster: Token | None = Field(default=None, exclude_if=lambda label: label is None)
    metadata: dict[str, str] = {}
    evidence: tuple[Evidence, ...] = Field(default=(), exclude_if=lambda evidence: not evidence)
    context: StoryContext | None = Field(default=None, exclude_if=lambda context: context is None)
    workspace: GitWorkspace | FilesWorkspace | None = Field(
        default=None, exclude_if=lambda workspace: workspace is None
    )
    webhook: Webhook | None = None

    @property
    def size(self) -> int:
        return len(self.agents)

    @property
    def inputs(self) -> tuple[InputRef, ...]:
        """The inputs that its prompts have, each once."""
        named = (self.task_file, *(evidence.file for evidence in self.evidence))
        return tuple({file.sha256: file for file in named if file is not None}.values())


DEFAULT_RUBRIC: tuple[Criterion, ...] = (
    Criterion(id="correctness", description="Is it right? Facts, logic and code hold under scrutiny.", weight=3),
    Criterion(id="completeness", description="Does it meet the whole task and every requirement?", weight=2),
    Criterion(id="clarity", description="Can the reader act on it without asking back?", weight=1),
)

Purpose = Literal[
    "propose", "critique", "revise", "score", "judge", "debate", "pick", "analyse", "fuse", "test", "check", "repair"
]
