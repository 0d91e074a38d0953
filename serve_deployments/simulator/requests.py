"""Requests as vLLM 0.32 takes them: the fields that the simulator honours, every other one accepted and ignored.

Two kinds of refusal, as in vLLM: a field of the wrong type ("Bad Request", `param` from the body's root) and a value
out of its bounds ("BadRequestError", `param` the field alone).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from serve_deployments.simulator.errors import Refusal, bad_request

SEQUENCES_MAX = 128
CONVERSATIONS_MAX = 1_024
_INT64 = 2**63
_ERRORS_TOLD_MAX = 10
_Model = TypeVar("_Model", bound=BaseModel)


class _Body(BaseModel):
    # Unknown fields are ignored, not kept: vLLM logs and drops them too.
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class Part(_Body):
    """One part of a message's content; only text is understood."""

    type: str = "text"
    text: str | None = None


class Turn(_Body):
    """One chat message."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(_Body):
    """What a stream tells about usage. `continuous_usage_stats` needs `include_usage`, as in vLLM."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaFormat(_Body):
    """The schema of `response_format: json_schema`."""

    name: str = "schema"
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(_Body):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(_Body):
    """`structured_outputs`: exactly one constraint."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class _Sampling(_Body):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = Field(default=None, ge=-_INT64, le=_INT64 - 1)
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: str | None = None


class ChatRequest(_Sampling):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Turn] = Field(min_length=1)


class BatchRequest(_Sampling):
    """Body of `POST /v1/chat/completions/batch`: several conversations, one answer each."""

    messages: list[Annotated[list[Turn], Field(min_length=1)]] = Field(min_length=1, max_length=CONVERSATIONS_MAX)


class TokenizeRequest(_Body):
    """Body of `POST /tokenize`: a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Turn] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must be: a value of a JSON schema, one of some texts, or a match of a pattern."""

    schema: Mapping[str, Any] | bool | None = None
    choice: tuple[str, ...] = ()
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A checked request: conversations, how many completions of each, and how they are made and sent.

    `max_tokens_field` is the name under which `max_tokens` was given.
    """

    conversations: tuple[tuple[tuple[str, str], ...], ...]
    model: str | None
    sequences: int
    max_tokens: int | None
    max_tokens_field: str
    seed: int | None
    stop: tuple[str, ...]
    keep_stop: bool
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stream_interval: int
    constraint: Constraint | None
    cache_salt: str | None

    @property
    def size(self) -> int:
        """Number of completions asked for."""
        return len(self.conversations) * self.sequences


def parse_chat(body: bytes) -> Work:
    """The work that `body` asks for; Refusal (400) when it is malformed or out of bounds."""
    request = _validated(ChatRequest, body)
    return _work(request, (_conversation(request.messages),))


def parse_batch(body: bytes) -> Work:
    """The work that a batch asks for; Refusal (400) when it is malformed, streamed, or asks for several choices."""
    request = _validated(BatchRequest, body)
    if request.stream:
        raise bad_request("Batch chat completions do not support streaming. Please set `stream` to False.", "stream")
    if request.n not in (None, 1):
        raise bad_request("Batch chat completions do not support `n > 1`. Please set `n` to 1.", "n")
    return _work(request, tuple(_conversation(turns) for turns in request.messages))


def parse_tokenize(body: bytes) -> tuple[TokenizeRequest, tuple[tuple[str, str], ...]]:
    """The request and its conversation (empty for a plain prompt); Refusal (400) when it is malformed."""
    request = _validated(TokenizeRequest, body)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Exactly one of `prompt` and `messages` must be given.", "prompt")
    return request, _conversation(request.messages or [])


def _validated(model: type[_Model], body: bytes) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        told = "".join(f"\n  {error}" for error in errors[:_ERRORS_TOLD_MAX])
        label = "error" if len(errors) == 1 else "errors"
        param = ".".join(("body", *(str(step) for step in errors[0]["loc"] if not _is_branch(step))))
        raise Refusal(400, f"{len(errors)} validation {label}:{told}", param=param, kind="Bad Request") from exc


def _is_branch(step: int | str) -> bool:
    # Of a union, pydantic tells the branch that it tried; that is no field of the body.
    return isinstance(step, str) and (step in ("str", "Part") or "[" in step)


def _conversation(turns: list[Turn]) -> tuple[tuple[str, str], ...]:
    return tuple((turn.role, _text(turn.content)) for turn in turns)


def _text(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in ("text", "input_text") or part.text is None:
            raise bad_request(f"At most 0 {part.type}(s) may be provided in one prompt: this model reads text only.")
    return "\n".join(part.text or "" for part in content)


def _work(request: ChatRequest | BatchRequest, conversations: tuple[tuple[tuple[str, str], ...], ...]) -> Work:
    _check_bounds(request)
    options = request.stream_options
    include_usage = bool(options and options.include_usage)
    limit_field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    return Work(
        conversations=conversations,
        model=request.model,
        sequences=1 if request.n is None else request.n,
        max_tokens=getattr(request, limit_field),
        max_tokens_field=limit_field,
        seed=request.seed,
        stop=stop,
        keep_stop=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        stream=bool(request.stream),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
        stream_interval=request.stream_interval or 1,
        constraint=_constraint(request),
        cache_salt=request.cache_salt,
    )


def _check_bounds(request: ChatRequest | BatchRequest) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        value: int | None = getattr(request, name)
        if value is not None and value < 1:
            raise bad_request(f"{name} must be at least 1, got {value}.", name)
    if request.n is not None and not 1 <= request.n <= SEQUENCES_MAX:
        raise bad_request(f"n must be in [1, {SEQUENCES_MAX}], got {request.n}.", "n")
    heat = request.temperature
    if heat is not None and not 0.0 <= heat <= 2.0:
        raise bad_request(f"temperature must be in [0, 2], got {heat}.", "temperature")
    if heat == 0.0 and (request.n or 1) > 1:
        raise bad_request(f"n must be 1 when using greedy sampling, got {request.n}.", "n")
    if request.top_p is not None and not 0.0 < request.top_p <= 1.0:
        raise bad_request(f"top_p must be in (0, 1], got {request.top_p}.", "top_p")
    if request.stream_interval is not None and request.stream_interval < 1:
        raise bad_request(f"stream_interval must be at least 1, got {request.stream_interval}.", "stream_interval")
    if request.stream_options is not None and not request.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    if request.stop == "" or (isinstance(request.stop, list) and "" in request.stop):
        raise bad_request("stop cannot contain an empty string.", "stop")
    if request.cache_salt == "":
        raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _constraint(request: ChatRequest | BatchRequest) -> Constraint | None:
    outputs = request.structured_outputs
    if outputs is not None:
        return _structured(outputs)
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return _ANY_OBJECT
    if wanted.type == "structural_tag":
        raise bad_request("response_format type 'structural_tag' is not simulated.", "response_format")
    if wanted.json_schema is None or wanted.json_schema.json_schema is None:
        raise bad_request(
            "When response_format type is 'json_schema', the 'json_schema' field must be provided.", "response_format"
        )
    return Constraint(schema=wanted.json_schema.json_schema)


_ANY_OBJECT = Constraint(
    schema={
        "type": "object",
        "properties": {"answer": {"type": "string"}, "confidence": {"type": "integer", "minimum": 0, "maximum": 100}},
        "required": ["answer", "confidence"],
    }
)


def _structured(outputs: StructuredOutputs) -> Constraint:
    named = [name for name in ("json_", "regex", "choice", "grammar", "structural_tag") if getattr(outputs, name)]
    named += ["json_object"] if outputs.json_object else []
    if len(named) != 1:
        count = "multiple are" if named else "none are"
        raise bad_request(
            f"You must use exactly one kind of structured outputs constraint but {count} specified.",
            "structured_outputs",
        )
    match named[0]:
        case "json_":
            return Constraint(schema=_schema_object(outputs.json_))
        case "json_object":
            return _ANY_OBJECT
        case "regex":
            return Constraint(regex=outputs.regex)
        case "choice":
            return Constraint(choice=tuple(outputs.choice or ()))
        case kind:
            raise bad_request(
                f"structured_outputs.{kind} is not simulated: use json, choice or regex.", "structured_outputs"
            )


def _schema_object(given: dict[str, Any] | str | None) -> Mapping[str, Any]:
    if isinstance(given, str):
        try:
            parsed: object = json.loads(given)
        except (ValueError, RecursionError) as exc:
            raise bad_request(f"structured_outputs.json is no JSON: {exc}", "structured_outputs") from exc
        if not isinstance(parsed, dict):
            raise bad_request("structured_outputs.json must be a JSON schema object.", "structured_outputs")
        return cast("dict[str, Any]", parsed)
    return given or {}
