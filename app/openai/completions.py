"""An ended deliberation as a chat completion, whole or in chunks."""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Literal

from app.api.schemas import dump
from app.catalog.projection import links, resource
from app.deliberation.calls import FactProblem
from app.deliberation.fold import State, usage
from app.openai.problems import NoVerdict
from app.openai.requests import ChatCompletionRequest
from app.openai.schemas import (
    ChatAnswer,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatUsage,
    DeliberationOutcome,
    OpenAIError,
    PromptTokensDetails,
)

PIECE_CHARS = 256
DONE_DATA = "[DONE]"
DONE = f"data: {DONE_DATA}\n\n".encode()


def completion_id(state: State) -> str:
    """The completion's id, in which the deliberation's is."""
    return f"chatcmpl-{state.deliberation_id}"


@cache
def _gateway_version() -> str:
    return version("deliberation-gateway")


def fingerprint(state: State) -> str:
    """What the same seed gives the same answer with: the gateway's version and the strategy's."""
    asked = state.specification
    return f"deliberation-gateway-{_gateway_version()}-{asked.strategy}-v{asked.strategy_version}"


def _created(state: State) -> int:
    return int(state.accepted.ts.timestamp())


def texts(state: State) -> tuple[str, ...]:
    """The answers: the verdict's one, or where nothing was ranked each agent's; raises NoVerdict when there is none."""
    end = state.end
    assert end is not None
    if end.verdict is not None and end.verdict.content is not None:
        return (end.verdict.content,)
    if end.verdict is not None:
        told = resource(state, epoch="", retention_s=0)
        answers = tuple(each.content for each in told.proposals if each.content is not None)
        if answers:
            return answers
    stopped = "it was cancelled" + (f": {state.cancel.reason}" if state.cancel and state.cancel.reason else "")
    cancelled = FactProblem(code="cancelled", detail=stopped, retryable=False)
    raise NoVerdict(end.problem or cancelled, state.deliberation_id)


def _usage(state: State) -> ChatUsage:
    spent = usage(state)
    return ChatUsage(
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        total_tokens=spent.tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=spent.cached_tokens),
    )


def _outcome(state: State) -> DeliberationOutcome:
    assert state.end is not None and state.end.verdict is not None
    verdict, degraded = state.end.verdict, state.end.degraded
    return DeliberationOutcome(
        id=state.deliberation_id,
        href=links(state.deliberation_id, ended=state.ended).self,
        winner=verdict.winner,
        margin=verdict.margin,
        tie=verdict.tie,
        agreement=verdict.agreement,
        calls=verdict.calls,
        degraded=degraded.reasons if degraded else (),
    )


def completion(asked: ChatCompletionRequest, state: State) -> ChatCompletion:
    """The whole completion of an ended deliberation; raises NoVerdict."""
    choices = (
        ChatChoice(index=place, message=ChatAnswer(content=asked.cut(text))) for place, text in enumerate(texts(state))
    )
    return ChatCompletion(
        id=completion_id(state),
        created=_created(state),
        model=asked.model,
        choices=tuple(choices),
        usage=_usage(state),
        system_fingerprint=fingerprint(state),
        deliberation=_outcome(state),
    )


def _framed(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"


def _chunk(asked: ChatCompletionRequest, state: State, *choices: ChatChunkChoice) -> ChatCompletionChunk:
    chunk = ChatCompletionChunk(
        id=completion_id(state),
        object="chat.completion.chunk",
        created=_created(state),
        model=asked.model,
        system_fingerprint=fingerprint(state),
        choices=choices,
    )
    return chunk.model_copy(update={"usage": None}) if asked.counts_usage else chunk


def _dumped(chunk: ChatCompletionChunk) -> bytes:
    """A chunk as a frame. What was not said is left out: a delta tells only what it adds."""
    return _framed(chunk.__pydantic_serializer__.to_json(chunk, exclude_unset=True))


def _choice(index: int, delta: ChatDelta, finish_reason: Literal["stop"] | None = None) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=finish_reason)


def opening_frame(asked: ChatCompletionRequest, state: State, index: int = 0) -> bytes:
    """The first chunk of a choice: who speaks. The first choice's is sent while the council still deliberates."""
    return _dumped(_chunk(asked, state, _choice(index, ChatDelta(role="assistant", content=""))))


def frames(asked: ChatCompletionRequest, state: State) -> Iterator[bytes]:
    """Everything after the opening of the first choice; raises NoVerdict before the first frame."""
    answers = texts(state)
    for index, text in enumerate(answers):
        if index:
            yield opening_frame(asked, state, index)
        shown = asked.cut(text)
        for begin in range(0, len(shown), PIECE_CHARS):
            piece = ChatDelta(content=shown[begin : begin + PIECE_CHARS])
            yield _dumped(_chunk(asked, state, _choice(index, piece)))
        last = _chunk(asked, state, _choice(index, ChatDelta(), "stop"))
        told = {"deliberation": _outcome(state)} if index == len(answers) - 1 else {}
        yield _dumped(last.model_copy(update=told))
    if asked.counts_usage:
        yield _dumped(_chunk(asked, state).model_copy(update={"usage": _usage(state)}))
    yield DONE


def error_frames(error: OpenAIError) -> bytes:
    """A stream that was opened and cannot go on: the error, as the clients read it, and the end."""
    return _framed(dump(error)) + DONE
