"""Requests as vLLM 0.32 takes them: the fields that the simulator honours, every other one accepted and ignored.

As in vLLM, a field of the wrong type is a "Bad Request", with `param` from the body's root. A value out of its bounds
is a "BadRequestError", with `param` the field alone.
"""

import hashlib
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from serve_deployments.simulator.server.exchange import RequestRefused, bad_request

SEQUENCES_MAX = 128
PICTURE_TOKENS = 64
_INT64 = 2**63
_BOUND_ERRORS = frozenset(("greater_than", "greater_than_equal", "less_than_equal", "string_too_short"))
_Model = TypeVar("_Model", bound=BaseModel)
_Filled = Annotated[str, StringConstraints(min_length=1)]
# (role, text) of each message.
Conversation = tuple[tuple[str, str], ...]


class _Body(BaseModel):
    # Unknown fields are ignored, not kept: vLLM logs and drops them too.
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class _Part(_Body):
    type: str = "text"
    text: str | None = None
    image_url: dict[str, Any] | None = None


class _Message(_Body):
    role: str
    content: str | list[_Part] | None = None


class _Function(_Body):
    name: str
    parameters: dict[str, Any] = {}


class _Tool(_Body):
    type: Literal["function"] = "function"
    function: _Function


class _StreamOptions(_Body):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: dict[str, Any] | None = None


class CompletionRequest(_Body):
    messages: list[_Message] = Field(min_length=1)
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=1, ge=1, le=SEQUENCES_MAX)
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    seed: int | None = Field(default=None, ge=-_INT64, le=_INT64 - 1)
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    stream_interval: int | None = Field(default=None, ge=1)
    response_format: _ResponseFormat | None = None
    cache_salt: _Filled | None = None
    priority: int = 0
    tools: list[_Tool] | None = None

    @property
    def sequences(self) -> int:
        return self.n or 1

    def seed_of(self, sequence: int) -> tuple[int | None, int]:
        """Returns the key of one completion's chance. As in vLLM, the seed of each is the request's plus its place."""
        return (None, sequence) if self.seed is None else (self.seed + sequence, 0)

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeRequest(_Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


# Any object will do: the simulator knows these properties as those of an answer.
ANY_OBJECT: dict[str, Any] = {"properties": {"reasoning": {}, "answer": {}, "confidence": {}}}


def parse_chat(body: bytes) -> tuple[CompletionRequest, Conversation]:
    request = _validated(CompletionRequest, body)
    if request.temperature == 0.0 and request.sequences > 1:
        raise bad_request(f"n must be 1 when using greedy sampling, got {request.n}.", "n")
    if request.stream_options is not None and not request.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    return request, _conversation(request.messages)


def parse_tokenize(body: bytes) -> tuple[TokenizeRequest, Conversation]:
    request = _validated(TokenizeRequest, body)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Exactly one of `prompt` and `messages` must be given.", "prompt")
    return request, _conversation(request.messages or [])


def _validated(model: type[_Model], body: bytes) -> _Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        for error in errors:
            if error["type"] in _BOUND_ERRORS and error["loc"][0] != "seed":
                name = str(error["loc"][0])
                raise bad_request(f"{name}: {error['msg']}.", name) from exc
        param = ".".join(("body", *(str(step) for step in errors[0]["loc"] if not _is_branch(step))))
        raise RequestRefused(400, str(exc), param=param, kind="Bad Request") from exc


def _is_branch(step: int | str) -> bool:
    # For a union, pydantic adds the branch that it tried; that is no field of the body.
    return isinstance(step, str) and (step in ("str", "_Part") or "[" in step)


def _conversation(messages: list[_Message]) -> Conversation:
    return tuple((message.role, _text(message.content)) for message in messages)


def _text(content: str | list[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(map(_shown, content))


def _shown(part: _Part) -> str:
    """The text of a part; a picture stands as a word for each of its tokens."""
    if part.type == "image_url" and part.image_url is not None:
        url = str(part.image_url.get("url", ""))
        if not url.startswith("data:image/"):
            raise bad_request("This model takes pictures as data URLs.")
        return " ".join([f"picture-{hashlib.sha256(url.encode()).hexdigest()[:8]}"] * PICTURE_TOKENS)
    if part.type not in ("text", "input_text") or part.text is None:
        raise bad_request(f"At most 0 {part.type}(s) may be provided in one prompt: this model reads no such part.")
    return part.text


def output_form(request: CompletionRequest) -> dict[str, Any] | None:
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ANY_OBJECT
    schema: object = (wanted.json_schema or {}).get("schema")
    if wanted.type != "json_schema" or not isinstance(schema, dict):
        raise bad_request(f"response_format type '{wanted.type}' needs a 'json_schema'.", "response_format")
    return cast("dict[str, Any]", schema)
