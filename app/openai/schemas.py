"""What the OpenAI façade answers: chat completions, their chunks, models and errors, as OpenAI's reference has them.

Beyond it, completions and last chunks carry `deliberation`, which clients of OpenAI pass over or show as they like.
"""

from typing import Literal

from pydantic import ConfigDict, Field

from app.api.schemas import Resource


class OpenAIErrorDetail(Resource):
    """What went wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None = Field(description="The first field at fault, as `messages[0].content`")
    code: str | None = Field(description="Stable, for programs")


class OpenAIError(Resource):
    """An error as OpenAI's clients read it."""

    error: OpenAIErrorDetail


class ChatAnswer(Resource):
    """What was decided on."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Resource):
    """One answer: the verdict's, or with `independent` one agent's."""

    index: int
    message: ChatAnswer
    logprobs: None = None
    finish_reason: Literal["stop"] = "stop"


class PromptTokensDetails(Resource):
    """Of the prompts' tokens."""

    cached_tokens: int


class ChatUsage(Resource):
    """Tokens of all calls of all agents, as the engines reported them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class DeliberationOutcome(Resource):
    """What OpenAI's fields have no place for; the whole of it is at `href`."""

    id: str
    href: str
    winner: str | None
    margin: float | None
    tie: bool
    agreement: float | None
    calls: int
    degraded: tuple[str, ...] = Field(description="Why it is less than was asked for; empty when it is not")


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


# What a chunk does not say is left out of it, and not null.
_AS_SAID = ConfigDict(frozen=True, json_schema_serialization_defaults_required=False)


class ChatDelta(Resource):
    """What a chunk adds; absent is nothing."""

    model_config = _AS_SAID

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(Resource):
    """A piece of one choice."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: Literal["stop"] | None = None


class ChatCompletionChunk(Resource):
    """A piece of a streamed chat completion; `usage` is there when it was asked for, and null but in the last one."""

    model_config = _AS_SAID

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: tuple[ChatChunkChoice, ...]
    usage: ChatUsage | None = None
    deliberation: DeliberationOutcome | None = None


class ModelResource(Resource):
    """A strategy with a council of one role, by the name of a model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Not known: 0")
    owned_by: str


class ModelList(Resource):
    """Every strategy with every role."""

    object: Literal["list"] = "list"
    data: tuple[ModelResource, ...]
