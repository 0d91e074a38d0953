"""The request of a chat completion.

Every field of OpenAI's reference is supported, ignored if that is harmless, or refused if ignoring it would change the
answer's meaning. Unknown fields are refused, as by OpenAI.
"""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.api.problems import ValidationFailed, body_fault
from app.api.requests import (
    AGENTS_MAX,
    COMPLETION_TOKENS_MAX,
    BudgetRequest,
    MaybeWhole,
    Metadata,
    RequestModel,
    Requirement,
    Rubric,
)
from app.api.schemas import FieldProblem
from app.deliberation.specification import TIMEOUT_S_MAX, OnDeadline, Priority

MESSAGES_MAX = 1_024
STOPS_MAX = 4
# Engines refuse 0, which OpenAI takes.
TOP_P_MIN = 0.001
# The strategy that returns every agent's answer: for it, `n` is the number of agents.
SIDE_BY_SIDE = "independent"
IgnoredField = Annotated[Any, Field(description="Accepted and ignored")]


def _error(code: str, detail: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{detail}", {"detail": detail, "remedy": remedy})  # pyright: ignore[reportArgumentType]


def _schema_of(harmless: object) -> dict[str, Any]:
    """The JSON Schema of one value. Code generators do not read `const` of lists and objects."""
    match harmless:
        case []:
            return {"type": "array", "items": {}, "maxItems": 0}
        case [str(each)]:
            return {"type": "array", "items": _schema_of(each), "minItems": 1, "maxItems": 1}
        case {}:
            members = cast("dict[str, object]", harmless)
            if not members:
                return {"type": "object", "additionalProperties": False, "maxProperties": 0}
            properties = {name: _schema_of(value) for name, value in members.items()}
            return {"type": "object", "properties": properties, "required": [*members], "additionalProperties": False}
        case _:
            return {"const": harmless}


class _Unsupported:
    """An unsupported field, which may be null or one of the `harmless` values that request nothing."""

    def __init__(self, why: str, *harmless: object) -> None:
        self._why = why
        self._harmless = harmless

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, core_schema.any_schema())

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        accepted = [{"type": "null"}, *map(_schema_of, self._harmless)]
        return {"anyOf": accepted, "description": f"{self._why}; accepted only with values that request nothing"}

    def _checked(self, value: object) -> object:
        if value is not None and value not in self._harmless:
            raise _error("unsupported_parameter", self._why, "Leave it out.")
        return value


def _part_text(index: int, part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind not in ("text", "refusal"):
            raise _error("unsupported_content", f"Part {index} is of type {kind[:64]}", "Give parts of type text only.")
        case _:
            raise _error("invalid_type", f"Part {index} is not a text part", 'Give {"type": "text", "text": "…"}.')


def _joined(content: object) -> object:
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_part_text(index, part) for index, part in enumerate(cast("list[object]", content)))
    return content


_CONTENT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
        {"type": "null"},
    ],
}
_NO_TOOLS, _NO_AUDIO = "Tools are not supported", "Audio is not supported"
_NO_SAMPLING = "This sampling parameter is not supported"
_NO_LOGPROBS = "Log probabilities are not supported"


class ChatRequestMessage(BaseModel):
    """One message of the conversation; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)] = Field(default="", json_schema_extra=_CONTENT_SCHEMA)
    name: str | None = Field(default=None, max_length=64, pattern=r"^[^\s<>|\\/\[\]]*$")
    refusal: str | None = None
    tool_calls: Annotated[Any, _Unsupported(_NO_TOOLS, [])] = None
    function_call: Annotated[Any, _Unsupported(_NO_TOOLS)] = None
    audio: Annotated[Any, _Unsupported(_NO_AUDIO)] = None

    @property
    def text(self) -> str:
        return self.content or self.refusal or ""


class StreamOptions(RequestModel):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(default=None, description="Add a last chunk with the usage of all agents")
    include_obfuscation: bool | None = Field(default=None, description="Accepted and ignored")


class JsonSchemaFormat(RequestModel):
    """A named JSON Schema. Answers satisfy it with and without `strict`."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(default=None, max_length=2_000, description="Accepted and ignored")
    json_schema: dict[str, Any] | None = Field(
        default=None, alias="schema", description="Of an object, in a subset of JSON Schema; any object if absent"
    )
    strict: bool | None = Field(default=None, description="Accepted and ignored")


class ResponseFormat(RequestModel):
    """The form of the answer: a text, any JSON object, or an object that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = Field(default=None, description="With the type `json_schema` only")

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        if self.type == "text":
            return None
        given = None if self.json_schema is None else self.json_schema.json_schema
        return {"type": "object"} if given is None else given

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if (self.json_schema is None) == (self.type == "json_schema"):
            remedy = "Give json_schema with the type json_schema, and with no other."
            raise _error("invalid_value", "The type and json_schema contradict each other", remedy)
        return self


class DeliberationOptions(RequestModel):
    """Fields of a deliberation that OpenAI's fields lack, with the bounds of `POST /deliberations`."""

    num_agents: MaybeWhole = Field(default=None, ge=1, le=AGENTS_MAX, description="Default 3")
    rounds: MaybeWhole = Field(default=None, ge=0, le=5, description="Default 1")
    parameters: dict[str, Any] | None = Field(default=None, max_length=32, description="Parameters of the strategy")
    quorum: MaybeWhole = Field(default=None, ge=1, le=AGENTS_MAX)
    budget: BudgetRequest | None = None
    rubric: Rubric | None = None
    requirements: list[Requirement] | None = Field(default=None, max_length=32)
    timeout_seconds: MaybeWhole = Field(default=None, ge=1, description=f"At most {TIMEOUT_S_MAX} apply")
    on_deadline: OnDeadline | None = Field(default=None, description="Default best")
    priority: Priority | None = Field(default=None, description="Default interactive")


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


def _no_zero(limit: int | None) -> int | None:
    if limit == 0:
        raise _error("invalid_value", "No answer has 0 tokens", "Give 1 or more, or leave it out.")
    return limit


TokenLimit = Annotated[MaybeWhole, AfterValidator(_no_zero)]


_EXAMPLES: list[Any] = [
    {"model": "best_of_n/DEV", "messages": [{"role": "user", "content": "Merge two sorted lists."}]},
    {"model": "council", "messages": [{"role": "user", "content": "Merge two sorted lists."}], "stream": True},
]


class ChatCompletionRequest(RequestModel):
    """The body of `POST /v1/chat/completions`. Null is the same as absent in every field."""

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})

    model: str = Field(max_length=256, description="`<strategy>/<ROLE>` or one of both; `GET /v1/models` lists them")
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
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="The first agent's temperature; the others vary"
    )
    top_p: float | None = Field(default=None, ge=0, le=1, description=f"At least {TOP_P_MIN} applies")
    max_completion_tokens: TokenLimit = Field(
        default=None,
        description=f"Limit of each agent's completion, including its reasoning; at most {COMPLETION_TOKENS_MAX} "
        "apply, and the role's limit for a negative one",
    )
    max_tokens: TokenLimit = Field(default=None, description="Deprecated name of `max_completion_tokens`")
    seed: MaybeWhole = Field(default=None, description="A negative one is none")
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, BeforeValidator(_listed)] = Field(
        default=None, max_length=STOPS_MAX, description="The answer is truncated before the first of these"
    )
    metadata: Metadata | None = None
    user: str | None = Field(default=None, max_length=512, description="Stored as metadata")
    safety_identifier: str | None = Field(default=None, max_length=512, description="Stored as metadata")
    response_format: ResponseFormat | None = Field(
        default=None, description="JSON as the answer: every agent's is checked, and one that breaks it does not count"
    )
    deliberation: DeliberationOptions | None = Field(default=None, description="Extension: how to deliberate")

    parallel_tool_calls: IgnoredField = None
    prediction: IgnoredField = None
    prompt_cache_key: IgnoredField = None
    prompt_cache_options: IgnoredField = None
    prompt_cache_retention: IgnoredField = None
    reasoning_effort: IgnoredField = None
    service_tier: IgnoredField = None
    store: IgnoredField = None
    verbosity: IgnoredField = None

    audio: Annotated[Any, _Unsupported(_NO_AUDIO)] = None
    frequency_penalty: Annotated[Any, _Unsupported(_NO_SAMPLING, 0)] = None
    function_call: Annotated[Any, _Unsupported(_NO_TOOLS, "none", "auto")] = None
    functions: Annotated[Any, _Unsupported(_NO_TOOLS, [])] = None
    logit_bias: Annotated[Any, _Unsupported(_NO_SAMPLING, {})] = None
    logprobs: Annotated[Any, _Unsupported(_NO_LOGPROBS, False)] = None
    modalities: Annotated[Any, _Unsupported("Only text is supported", ["text"])] = None
    moderation: Annotated[Any, _Unsupported("Moderation is not supported")] = None
    presence_penalty: Annotated[Any, _Unsupported(_NO_SAMPLING, 0)] = None
    tool_choice: Annotated[Any, _Unsupported(_NO_TOOLS, "none", "auto")] = None
    tools: Annotated[Any, _Unsupported(_NO_TOOLS, [])] = None
    top_logprobs: Annotated[Any, _Unsupported(_NO_LOGPROBS, 0)] = None
    web_search_options: Annotated[Any, _Unsupported("Web search is not supported")] = None

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
        if self.stop and self.response_format is not None and self.response_format.answer_schema is not None:
            detail, remedy = "It would cut JSON off", "Leave it out, or ask for text."
            faults.append(body_fault("/stop", "invalid_value", detail, remedy))
        bounds = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(bounds) > 1:
            detail = "It contradicts max_completion_tokens"
            faults.append(body_fault("/max_tokens", "invalid_value", detail, "Give one of the two."))
        if faults:
            raise ValidationFailed(faults)
        return self
