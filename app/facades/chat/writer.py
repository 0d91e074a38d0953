"""Chat completions and their chunks, from an ended deliberation.

As an extension, completions and last chunks have the field `deliberation`, and their usage has `cost`. OpenAI's clients
ignore both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.api.schemas import Resource, dump
from app.deliberation.calls import UsageCost
from app.deliberation.errors import DeliberationError
from app.deliberation.fold import State, usage
from app.facades.chat.reader import ChatCompletionRequest
from app.facades.moments import Began, Ended, Interrupted, Moment
from app.facades.openai_errors import DONE, stream_error
from app.facades.outcomes import DeliberationOutcome, NoVerdict, answers, fingerprint, model_name, outcome

PIECE_CHARS = 256


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


def _head(state: State) -> dict[str, Any]:
    """The fields that a completion and its chunks have in common."""
    id, created = f"chatcmpl-{state.deliberation_id}", int(state.accepted.ts.timestamp())
    return {"id": id, "created": created, "model": model_name(state), "system_fingerprint": fingerprint(state)}


def _usage(state: State) -> ChatUsage:
    spent = usage(state)
    return ChatUsage(
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        total_tokens=spent.tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=spent.cached_tokens),
        cost=spent.cost,
    )


def completion(chat: ChatCompletionRequest, state: State) -> ChatCompletion:
    messages = (ChatAnswer(content=chat.truncated(text)) for text in answers(state))
    return ChatCompletion(
        **_head(state),
        choices=tuple(ChatChoice(index=index, message=message) for index, message in enumerate(messages)),
        usage=_usage(state),
        deliberation=outcome(state),
    )


def _framed(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"


def _frame(chat: ChatCompletionRequest, state: State, *choices: ChatChunkChoice, **added: Any) -> bytes:  # noqa: ANN401 -- fields
    if chat.counts_usage:
        added = {"usage": None, **added}
    chunk = ChatCompletionChunk(**_head(state), object="chat.completion.chunk", choices=choices, **added)
    return _framed(chunk.__pydantic_serializer__.to_json(chunk, exclude_unset=True))


def _choice(index: int, delta: ChatDelta, finish_reason: Literal["stop"] | None = None) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=finish_reason)


def _opening(chat: ChatCompletionRequest, state: State, index: int = 0) -> bytes:
    return _frame(chat, state, _choice(index, ChatDelta(role="assistant", content="")))


def waiting_frame(chat: ChatCompletionRequest, state: State) -> bytes:
    """A chunk without text, because clients that wait for chunks do not count comments."""
    return _frame(chat, state, _choice(0, ChatDelta(content="")))


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Writes chunks: the first one, with its role, before the end, and the text after it."""

    chat: ChatCompletionRequest
    request_id: str

    def write(self, moment: Moment) -> Iterator[bytes]:
        match moment:
            case Began():
                yield _opening(self.chat, moment.state)
            case Ended():
                try:
                    yield from self._answer(moment.state, answers(moment.state))
                except NoVerdict as error:
                    yield self._error(error)
            case Interrupted():
                yield self._error(moment.error)
            case _:
                pass

    def _error(self, error: DeliberationError) -> bytes:
        return _framed(dump(stream_error(error, self.request_id))) + DONE

    def _answer(self, state: State, texts: Sequence[str]) -> Iterator[bytes]:
        chat = self.chat
        for index, text in enumerate(texts):
            if index:
                yield _opening(chat, state, index)
            content = chat.truncated(text)
            for begin in range(0, len(content), PIECE_CHARS):
                yield _frame(chat, state, _choice(index, ChatDelta(content=content[begin : begin + PIECE_CHARS])))
            added = {"deliberation": outcome(state)} if index == len(texts) - 1 else {}
            yield _frame(chat, state, _choice(index, ChatDelta(), "stop"), **added)
        if chat.counts_usage:
            yield _frame(chat, state, usage=_usage(state))
        yield DONE
