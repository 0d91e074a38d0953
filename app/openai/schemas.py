"""Schemas of the façade's answers, as in OpenAI's reference: chat completions, chunks, models and errors.

As an extension, completions and last chunks have the field `deliberation`, and their usage has `cost`. OpenAI's clients
ignore both.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from app.api.schemas import Resource
from app.deliberation.calls import UsageCost


class OpenAIErrorDetail(Resource):
    """The error."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None = Field(description="The first invalid field, for example `messages[0].content`")
    code: str | None = Field(description="A stable code for programs")


class OpenAIError(Resource):
    """An error in OpenAI's format."""

    error: OpenAIErrorDetail


class ChatAnswer(Resource):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Resource):
    """The verdict's answer, or with `independent` one agent's."""

    index: int
    message: ChatAnswer
    logprobs: None = None
    finish_reason: Literal["stop"] = "stop"


class PromptTokensDetails(Resource):
    """Details of the prompts' tokens."""

    cached_tokens: int


class ChatUsage(Resource):
    """Tokens of all calls of all agents, as the engines reported them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    cost: UsageCost | None = Field(description="What they cost; null where no engine has prices")


class DeliberationOutcome(Resource):
    """The deliberation's outcome in short; the full deliberation is at `href`."""

    id: str
    href: str
    winner: str | None
    margin: float | None
    tie: bool
    agreement: float | None
    calls: int
    degraded: tuple[str, ...] = Field(description="Why the deliberation is degraded; empty if it is not")


class ChatCompletion(Resource):
    """An ended deliberation as a chat completion."""

    id: str = Field(description="`chatcmpl-` and the deliberation's id")
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(description="Unix time of the acceptance")
    model: str
    choices: tuple[ChatChoice, ...]
    usage: ChatUsage
    system_fingerprint: str = Field(description="Version of the gateway and of the strategy")
    deliberation: DeliberationOutcome


# Unset fields of a chunk are absent, not null.
_SPARSE = ConfigDict(frozen=True, json_schema_serialization_defaults_required=False)


class ChatDelta(Resource):
    """The addition of a chunk to a choice."""

    model_config = _SPARSE

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Resource):
    """A chunk of one choice."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: Literal["stop"] | None = None


class ChatCompletionChunk(Resource):
    """A chunk of a streamed chat completion; `usage`, if requested, is null except in the last one."""

    model_config = _SPARSE

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChatChunkChoice, ...]
    usage: ChatUsage | None = None
    deliberation: DeliberationOutcome | None = None


class ModelResource(Resource):
    """A strategy and a role as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unknown, always 0")
    owned_by: str


class ModelList(Resource):
    """Every strategy with every role."""

    object: Literal["list"] = "list"
    data: tuple[ModelResource, ...]
