"""The complete request: every default is filled in and every choice made before acceptance."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.deliberation.errors import InvalidToken

TIMEOUT_S_MAX = 3_600
"""The longest deadline that a deliberation may have."""

OnDeadline = Literal["best", "fail"]
"""At the deadline: the best verdict that the recorded answers allow, or none."""

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


class Parameters(BaseModel):
    """Base of a strategy's own parameters: closed and strict. `GET /strategies` shows their JSON Schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Criterion(Value, frozen=True):
    """One line of the rubric; weights are relative."""

    id: Token
    description: str = Field(min_length=1, max_length=2_000)
    weight: float = Field(default=1.0, gt=0, le=1_000)


class Constraints(Value, frozen=True):
    """What the answer must satisfy. All of it but `timeout_seconds` and `on_deadline` reaches the prompts.

    `metadata` is context for the agents. With `answer_schema`, a JSON Schema, every answer is JSON that satisfies it.
    """

    rubric: tuple[Criterion, ...]
    requirements: tuple[str, ...] = ()
    timeout_seconds: int
    on_deadline: OnDeadline = "best"
    metadata: dict[str, str] = {}
    answer_schema: dict[str, Any] | None = None


class Sampling(Value, frozen=True):
    """How tokens are drawn. `max_tokens` bounds one completion."""

    temperature: float = Field(default=0.7, ge=0, le=2)
    max_tokens: int = Field(default=2_048, ge=1, le=32_768)
    top_p: float | None = Field(default=None, gt=0, le=1)


class AgentSpec(Value, frozen=True):
    """One member of the council; its sampling is resolved: request over role over default, and diverse already."""

    agent_id: Token
    role: str
    model: str | None = None
    sampling: Sampling = Sampling()


class Budget(Value, frozen=True):
    """Ceilings over the whole deliberation; None leaves that side open."""

    max_tokens: int | None = Field(default=None, ge=1)
    max_calls: int | None = Field(default=None, ge=1)


class Webhook(Value, frozen=True):
    """The receiver of events, and their types. `metadata` is sent to it with every event and reaches no prompt."""

    url: str
    events: tuple[str, ...]
    metadata: dict[str, str] = {}


class Specification(Value, frozen=True):
    """A deliberation as accepted: enough to replay it without any setting.

    `metadata` is for filtering lists and reaches no prompt.
    """

    task: str
    agents: tuple[AgentSpec, ...] = Field(min_length=1, max_length=32)
    strategy: str
    strategy_version: int
    parameters: dict[str, Any] = {}
    rounds: int
    constraints: Constraints
    quorum: int
    budget: Budget = Budget()
    seed: int
    metadata: dict[str, str] = {}
    webhook: Webhook | None = None

    @property
    def size(self) -> int:
        """Number of agents."""
        return len(self.agents)


DEFAULT_RUBRIC: tuple[Criterion, ...] = (
    Criterion(id="correctness", description="Is it right? Facts, logic and code hold under scrutiny.", weight=3),
    Criterion(id="completeness", description="Does it meet the whole task and every requirement?", weight=2),
    Criterion(id="clarity", description="Can the reader act on it without asking back?", weight=1),
)

Purpose = Literal[
    "propose", "critique", "revise", "score", "judge", "debate", "pick", "analyse", "fuse", "test", "check", "repair"
]
