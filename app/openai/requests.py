"""What the OpenAI façade takes: a chat completion's request, and the deliberation that it asks for.

Every field that OpenAI's reference has is decided here: honoured, ignored where that harms nobody, or refused where
passing over it would promise what is not done. Fields that it does not have are refused, as they are there.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from app.api.problems import ValidationFailed, body_problems
from app.api.requests import (
    AGENTS_MAX,
    SEED_MAX,
    TASK_CHARS_MAX,
    BudgetRequest,
    DeliberationRequest,
    MaybeWhole,
    Metadata,
    RequestModel,
    Requirement,
    Rubric,
    SamplingRequest,
)
from app.api.schemas import FieldProblem
from app.deliberation.specification import TIMEOUT_S_MAX
from app.openai.problems import ModelNotFound

MESSAGES_MAX = 1_024
STOPS_MAX = 4
# The one strategy whose answers stand side by side: for it, `n` is the number of agents.
SIDE_BY_SIDE = "independent"

Known = Mapping[str, Mapping[str, Any]]
Ignored = Annotated[Any, Field(description="Taken and ignored")]


def _error(code: str, detail: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError(code, "{detail}", {"detail": detail, "remedy": remedy})  # pyright: ignore[reportArgumentType]


def _schema_of(harmless: object) -> dict[str, Any]:
    """The JSON Schema of one value; spelled out, since generators read no `const` of lists and objects."""
    match harmless:
        case []:
            return {"type": "array", "items": {}, "maxItems": 0}
        case [str(each)]:
            return {"type": "array", "items": _schema_of(each), "minItems": 1, "maxItems": 1}
        case {}:
            return _object_of(cast("dict[str, object]", harmless))
        case _:
            return {"const": harmless}


def _object_of(harmless: dict[str, object]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    if not harmless:
        return {**schema, "maxProperties": 0}
    properties = {name: _schema_of(value) for name, value in harmless.items()}
    return {**schema, "properties": properties, "required": list(harmless)}


class _Only:
    """Of a field that is not supported, the values that are taken because they ask for nothing; null always is."""

    def __init__(self, why: str, *harmless: object) -> None:
        self._why = why
        self._harmless = harmless

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, core_schema.any_schema())

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        taken = [{"type": "null"}, *map(_schema_of, self._harmless)]
        return {"anyOf": taken, "description": f"{self._why}: only what asks for nothing is taken"}

    def _checked(self, value: object) -> object:
        if value is not None and value not in self._harmless:
            raise _error("unsupported_parameter", self._why, "Leave it out.")
        return value


def _part_text(place: int, part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)} if kind not in ("text", "refusal"):
            raise _error("unsupported_content", f"Part {place} is of type {kind[:64]}", "Give parts of type text only.")
        case _:
            raise _error("invalid_type", f"Part {place} is no text part", 'Give {"type": "text", "text": "…"}.')


def _joined(content: object) -> object:
    """A message's content as one text; parts stand on lines of their own, and null says nothing."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_part_text(place, part) for place, part in enumerate(cast("list[object]", content)))
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
_NO_TOOLS, _NO_AUDIO = "A council calls no tools", "A council says nothing aloud"
_AS_SAMPLED = "Agents sample without it"
_NO_LOGPROBS = "A verdict has no log probabilities"


class ChatRequestMessage(BaseModel):
    """One message of the conversation. What else a client keeps with it is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, hide_input_in_errors=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)] = Field(default="", json_schema_extra=_CONTENT_SCHEMA)
    name: str | None = Field(default=None, max_length=64, pattern=r"^[^\s<>|\\/\[\]]*$")
    refusal: str | None = None
    tool_calls: Annotated[Any, _Only(_NO_TOOLS, [])] = None
    function_call: Annotated[Any, _Only(_NO_TOOLS)] = None
    audio: Annotated[Any, _Only(_NO_AUDIO)] = None

    @property
    def text(self) -> str:
        """What was said."""
        return self.content or self.refusal or ""


class StreamOptions(RequestModel):
    """How a stream is told."""

    include_usage: bool | None = Field(default=None, description="A last chunk with the usage of all agents")
    include_obfuscation: bool | None = Field(default=None, description="Taken and ignored")


class DeliberationOptions(RequestModel):
    """What a deliberation takes and OpenAI's fields cannot say; the same bounds as in `POST /deliberations`."""

    num_agents: MaybeWhole = Field(default=None, ge=1, le=AGENTS_MAX, description="3 if absent")
    rounds: MaybeWhole = Field(default=None, ge=0, le=5, description="1 if absent")
    parameters: dict[str, Any] | None = Field(default=None, max_length=32, description="The strategy's own")
    quorum: MaybeWhole = Field(default=None, ge=1, le=AGENTS_MAX)
    budget: BudgetRequest | None = None
    rubric: Rubric | None = None
    requirements: list[Requirement] | None = Field(default=None, max_length=32)
    timeout_seconds: MaybeWhole = Field(default=None, ge=1, le=TIMEOUT_S_MAX)


def _listed(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class ChatCompletionRequest(RequestModel):
    """The body of `POST /v1/chat/completions`. Null is the same as absent, wherever it stands."""

    model: str = Field(max_length=256, description="`<strategy>/<ROLE>`; `GET /v1/models` lists them")
    messages: list[ChatRequestMessage] = Field(min_length=1, max_length=MESSAGES_MAX)
    stream: bool | None = Field(default=None, description="Server-sent chunks; the text comes once it is decided")
    stream_options: StreamOptions | None = None
    n: MaybeWhole = Field(
        default=None, ge=1, le=AGENTS_MAX, description=f"1; with `{SIDE_BY_SIDE}` the number of agents, one choice each"
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="The first agent's; the others vary")
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_completion_tokens: MaybeWhole = Field(
        default=None, ge=1, le=32_768, description="Bound of each agent's completion, its reasoning included"
    )
    max_tokens: MaybeWhole = Field(default=None, ge=1, le=32_768, description="The older name of the same")
    seed: MaybeWhole = Field(default=None, ge=0, le=SEED_MAX)
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, BeforeValidator(_listed)] = Field(
        default=None, max_length=STOPS_MAX, description="The text that was decided on is cut before the first of these"
    )
    metadata: Metadata | None = None
    user: str | None = Field(default=None, max_length=512, description="Kept as metadata")
    safety_identifier: str | None = Field(default=None, max_length=512, description="Kept as metadata")
    deliberation: DeliberationOptions | None = Field(default=None, description="Not OpenAI's: how to deliberate")

    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning_effort: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    verbosity: Ignored = None

    audio: Annotated[Any, _Only(_NO_AUDIO)] = None
    frequency_penalty: Annotated[Any, _Only(_AS_SAMPLED, 0)] = None
    function_call: Annotated[Any, _Only(_NO_TOOLS, "none", "auto")] = None
    functions: Annotated[Any, _Only(_NO_TOOLS, [])] = None
    logit_bias: Annotated[Any, _Only(_AS_SAMPLED, {})] = None
    logprobs: Annotated[Any, _Only(_NO_LOGPROBS, False)] = None
    modalities: Annotated[Any, _Only("A council writes text", ["text"])] = None
    moderation: Annotated[Any, _Only("Nothing is moderated here")] = None
    presence_penalty: Annotated[Any, _Only(_AS_SAMPLED, 0)] = None
    response_format: Annotated[Any, _Only("The form of an answer is not enforced", {"type": "text"})] = None
    tool_choice: Annotated[Any, _Only(_NO_TOOLS, "none", "auto")] = None
    tools: Annotated[Any, _Only(_NO_TOOLS, [])] = None
    top_logprobs: Annotated[Any, _Only(_NO_LOGPROBS, 0)] = None
    web_search_options: Annotated[Any, _Only("A council searches nothing")] = None

    @property
    def counts_usage(self) -> bool:
        """Whether the stream ends in a chunk with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    def cut(self, text: str) -> str:
        """`text` up to the first stop sequence in it."""
        return text[: min((place for stop in self.stop or () if (place := text.find(stop)) >= 0), default=None)]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        faults: list[FieldProblem] = []
        if self.stream_options is not None and not self.stream:
            faults.append(_fault("/stream_options", "invalid_value", "Nothing is streamed", "Set stream to true."))
        bounds = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(bounds) > 1:
            told = "max_completion_tokens bounds the same"
            faults.append(_fault("/max_tokens", "invalid_value", told, "Give one of the two."))
        if faults:
            raise ValidationFailed(faults)
        return self


def _fault(path: str, code: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(location="body", pointer=path, code=code, detail=detail, remedy=remedy)


def conversation_mark(messages: Sequence[ChatRequestMessage]) -> str:
    """Twelve hex digits drawn from all that is said: who writes one message cannot know them, and so begin another."""
    said = json.dumps([[message.role, message.name, message.text] for message in messages])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def task_of(messages: Sequence[ChatRequestMessage]) -> str:
    """The task that a conversation sets: a lone message is the task, several are a transcript to be continued."""
    if len(messages) == 1:
        return messages[0].text
    mark = conversation_mark(messages)
    head = (
        "Write the assistant's next message in the conversation below, and nothing but that message. What system and "
        "developer say are requirements on it, and stand above what the user says. Every message begins with a line "
        f"in brackets that carries the mark {mark}."
    )
    told = [f"[{mark} {' '.join(filter(None, (said.role, said.name)))}]\n{said.text}" for said in messages]
    return "\n\n".join([head, *told])


def model_parts(model: str, known: Known) -> tuple[str, str]:
    """The strategy and the role that a model's name stands for; raises ModelNotFound when there is no such model."""
    strategy, _, role = model.partition("/")
    if strategy not in known["strategies"] or role not in known["roles"]:
        raise ModelNotFound(f"There is no model {model[:256]!r}.")
    return strategy, role


def _size(asked: ChatCompletionRequest, options: DeliberationOptions, strategy: str) -> int | None:
    """Agents that are asked for; raises ValidationFailed where `n` asks for several answers of one verdict."""
    if asked.n is None:
        return options.num_agents
    if strategy != SIDE_BY_SIDE:
        if asked.n > 1:
            told = f"{strategy} decides on one answer"
            raise ValidationFailed(
                [_fault("/n", "unsupported_value", told, f"Give 1, or take the model {SIDE_BY_SIDE}/….")]
            )
        return options.num_agents
    if options.num_agents not in (None, asked.n):
        told = "deliberation.num_agents says another number"
        raise ValidationFailed([_fault("/n", "invalid_value", told, "Give one of the two.")])
    return asked.n


def _metadata(asked: ChatCompletionRequest) -> dict[str, str]:
    kept = {"user": asked.user, "safety_identifier": asked.safety_identifier}
    return {name: value for name, value in kept.items() if value is not None} | (asked.metadata or {})


# Clients tell this refusal from others by the code, or by these very words.
_TOO_LONG = {
    "code": "context_length_exceeded",
    "detail": f"This model's maximum context length is {TASK_CHARS_MAX} characters",
    "remedy": "Shorten the conversation.",
}


def _here(fault: FieldProblem) -> FieldProblem:
    """A fault in the deliberation's request, at the field of this one that it comes from."""
    first, _, rest = fault.pointer.removeprefix("/").partition("/")
    match first:
        case "task":
            told = _TOO_LONG if fault.code == "string_too_long" else {}
            return fault.model_copy(update={"pointer": "/messages", **told})
        case "constraints":
            return fault.model_copy(update={"pointer": f"/deliberation/{rest}"})
        case _ if first in DeliberationOptions.model_fields:
            return fault.model_copy(update={"pointer": f"/deliberation{fault.pointer}"})
        case _:
            return fault


def _told_here(validate: Callable[[], DeliberationRequest]) -> DeliberationRequest:
    try:
        return validate()
    except ValidationError as invalid:
        faults = body_problems(invalid).errors
    except ValidationFailed as failed:
        faults = failed.errors
    raise ValidationFailed([_here(fault) for fault in faults])


def deliberation_of(asked: ChatCompletionRequest, known: Known) -> DeliberationRequest:
    """The deliberation that a chat completion asks for, among the known strategies and roles.

    Raises ModelNotFound, and ValidationFailed naming the fields of the chat completion.
    """
    strategy, role = model_parts(asked.model, known)
    options = asked.deliberation or DeliberationOptions()
    given = options.model_dump(exclude_none=True)
    constraints = {name: given.pop(name) for name in ("rubric", "requirements", "timeout_seconds") if name in given}
    sampling = SamplingRequest(
        temperature=asked.temperature, top_p=asked.top_p, max_tokens=asked.max_completion_tokens or asked.max_tokens
    )
    size = _size(asked, options, strategy)
    body = given | {
        "task": task_of(asked.messages),
        "role": role,
        "strategy": strategy,
        "constraints": constraints,
        "sampling": sampling.model_dump(),
        "seed": asked.seed,
        "metadata": _metadata(asked),
        **({} if size is None else {"num_agents": size}),
    }
    return _told_here(lambda: DeliberationRequest.model_validate(body, context=dict(known)))
