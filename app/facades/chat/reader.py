"""The request of a chat completion, and the deliberation that it asks for."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from app.api.action_requests import (
    CALL_ID_PATTERN,
)
from app.api.problems import ValidationFailed, body_fault, refused
from app.api.request_model import (
    MaybeWhole,
    RequestModel,
)
from app.api.requests import (
    AGENTS_MAX,
    COMPLETION_TOKENS_MAX,
    DeliberationRequest,
)
from app.api.schemas import FieldProblem
from app.deliberation.conversation import CallTurn, ConversationTurn, said_with_calls
from app.facades import openai_requests as openai
from app.facades.message_content import FilePart, MessageContent, OpenAIContent, evidence_of, placed

MESSAGES_MAX = 1_024
STOPS_MAX = 4
# The strategy that returns every agent's answer: for it, `n` is the number of agents.
SIDE_BY_SIDE = "independent"
_NO_AUDIO = "Audio is not supported"
_NoBias = Annotated[dict[str, Any], Field(max_length=0)]
_TextAlone = Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)]


class CalledFunction(RequestModel, extra="ignore"):
    """The function that a call names, and its arguments as JSON."""

    name: str = Field(max_length=64)
    arguments: str = ""


class MessageToolCall(RequestModel, extra="ignore"):
    """A call of an assistant's message."""

    id: str = Field(max_length=128)
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatRequestMessage(RequestModel, extra="ignore"):
    """One message of the conversation; unknown fields are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[MessageContent, OpenAIContent("text")] = Field(default_factory=MessageContent)
    name: str | None = Field(default=None, max_length=64, pattern=CALL_ID_PATTERN)
    refusal: str | None = None
    tool_calls: list[MessageToolCall] | None = Field(default=None, max_length=openai.TURN_CALLS_MAX)
    tool_call_id: str | None = Field(
        default=None,
        validate_default=True,
        max_length=128,
        pattern=CALL_ID_PATTERN,
        description="Of the call that a tool's message answers",
    )
    function_call: Annotated[openai.Nothing, openai.Unsupported(openai.NO_TOOLS)] = None
    audio: Annotated[openai.Nothing, openai.Unsupported(_NO_AUDIO)] = None

    @property
    def turn(self) -> ConversationTurn:
        calls = [CallTurn(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ()]
        text = said_with_calls(self.content.text or self.refusal or "", calls)
        return ConversationTurn(self.role, self.tool_call_id if self.role == "tool" else self.name, text)

    @field_validator("tool_call_id")
    @classmethod
    def _answers_a_call(cls, tool_call_id: str | None, info: ValidationInfo) -> str | None:
        if tool_call_id is None and info.data.get("role") == "tool":
            raise refused("missing", "The message of a tool names no call", "Give the id of the call.")
        return tool_call_id


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(default=None, description="Add a last chunk with the usage of all agents")
    include_obfuscation: bool | None = Field(default=None, description="Accepted and ignored")


class ResponseFormat(RequestModel):
    """The form of the answer: a text, any JSON object, or an object that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: openai.JsonSchemaFormat | None = Field(default=None, description="With the type `json_schema` only")

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        if self.type == "text":
            return None
        schema = None if self.json_schema is None else self.json_schema.json_schema
        return {"type": "object"} if schema is None else schema

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if (self.json_schema is None) == (self.type == "json_schema"):
            remedy = "Give json_schema with the type json_schema, and with no other."
            raise refused("invalid_value", "The type and json_schema contradict each other", remedy)
        return self


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


_EXAMPLES: list[Any] = [
    {"model": "best_of_n/DEV", "messages": [{"role": "user", "content": "Merge two sorted lists."}]},
    {"model": "council", "messages": [{"role": "user", "content": "Merge two sorted lists."}], "stream": True},
]


class ChatCompletionRequest(openai.CouncilRequest, json_schema_extra={"examples": _EXAMPLES}):
    """The body of `POST /v1/chat/completions`. Null is the same as absent in every field."""

    PLACES = {
        "/task": "/messages",
        "/conversation": "/messages",
        "/evidence": "/messages",
        "/constraints/answer_schema": "/response_format/json_schema/schema",
    }

    messages: list[ChatRequestMessage] = Field(min_length=1, max_length=MESSAGES_MAX)
    stream: bool | None = Field(
        default=None, description="Answer in server-sent chunks; the text follows once the deliberation has ended"
    )
    stream_options: StreamOptions | None = None
    n: MaybeWhole = Field(
        default=None,
        ge=1,
        description=f"Must be 1, except with `{SIDE_BY_SIDE}`: the number of agents, each with one choice; at most "
        f"{AGENTS_MAX} apply",
    )
    max_completion_tokens: openai.TokenLimit = Field(
        default=None,
        description=f"Limit of each agent's completion, including its reasoning; at most {COMPLETION_TOKENS_MAX} "
        "apply, and the role's limit for a negative one",
    )
    max_tokens: openai.TokenLimit = Field(default=None, description="Deprecated name of `max_completion_tokens`")
    seed: MaybeWhole = Field(default=None, description="A negative one is none")
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, openai.OrText(), BeforeValidator(_listed)] = (
        Field(default=None, max_length=STOPS_MAX, description="A text is truncated before the first of these")
    )
    response_format: ResponseFormat | None = Field(
        default=None,
        description="JSON as the answer: every agent's is checked, and one that breaks it does not count; "
        "calls of tools stay calls",
    )

    prediction: openai.IgnoredField = None
    prompt_cache_key: openai.IgnoredField = None
    reasoning_effort: openai.IgnoredField = None
    store: openai.IgnoredField = None
    verbosity: openai.IgnoredField = None

    audio: Annotated[openai.Nothing, openai.Unsupported(_NO_AUDIO)] = None
    function_call: Annotated[Literal["none", "auto"] | None, openai.Unsupported(openai.NO_TOOLS)] = None
    functions: Annotated[openai.NoItems, openai.Unsupported(openai.NO_TOOLS)] = None
    logit_bias: Annotated[_NoBias | None, openai.Unsupported(openai.NO_SAMPLING)] = None
    logprobs: Annotated[Literal[False] | None, openai.Unsupported(openai.NO_LOGPROBS)] = None
    modalities: Annotated[_TextAlone | None, openai.Unsupported("Only text is supported")] = None
    web_search_options: Annotated[Literal[False] | None, openai.Unsupported("Web search is not supported")] = None

    @property
    def files(self) -> list[FilePart]:
        return placed({f"/messages/{n}/content": message.content for n, message in enumerate(self.messages)})

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        return None if self.response_format is None else self.response_format.answer_schema

    @property
    def limits_tokens(self) -> bool:
        return (self.max_completion_tokens or self.max_tokens) is not None

    @property
    def counts_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    def truncated(self, text: str) -> str:
        return text[: min((index for stop in self.stop or () if (index := text.find(stop)) >= 0), default=None)]

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        faults: list[FieldProblem] = []
        if self.stream_options is not None and not self.stream:
            faults.append(body_fault("/stream_options", "invalid_value", "It needs a stream", "Set stream to true."))
        if self.stop and self.answer_schema is not None:
            detail, remedy = "It would cut JSON off", "Leave it out, or ask for text."
            faults.append(body_fault("/stop", "invalid_value", detail, remedy))
        bounds = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(bounds) > 1:
            detail = "It contradicts max_completion_tokens"
            faults.append(body_fault("/max_tokens", "invalid_value", detail, "Give one of the two."))
        if faults:
            raise ValidationFailed(faults)
        return self


def _size(chat: ChatCompletionRequest, strategy: str) -> int | None:
    size = None if chat.deliberation is None else chat.deliberation.num_agents
    if chat.n is None:
        return size
    if strategy != SIDE_BY_SIDE and chat.n > 1:
        detail, remedy = f"{strategy} has one answer", f"Give 1, or use the model {SIDE_BY_SIDE}/…."
        raise ValidationFailed([body_fault("/n", "unsupported_value", detail, remedy)])
    if strategy == SIDE_BY_SIDE and size not in (None, chat.n):
        detail = "It contradicts deliberation.num_agents"
        raise ValidationFailed([body_fault("/n", "invalid_value", detail, "Give one of the two.")])
    return chat.n if strategy == SIDE_BY_SIDE else size


def asked(chat: ChatCompletionRequest, registry: openai.Registry) -> DeliberationRequest:
    """The deliberation that is asked for; raises ModelNotFound and ValidationFailed."""
    strategy, _ = openai.model_parts(chat.model, registry)
    return openai.deliberation_of(
        chat,
        registry,
        [message.turn for message in chat.messages],
        evidence=evidence_of(chat.files),
        max_tokens=chat.max_completion_tokens or chat.max_tokens,
        seed=chat.seed,
        num_agents=_size(chat, strategy),
    )
