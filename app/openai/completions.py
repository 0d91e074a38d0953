"""Chat completions and their chunks, from an ended deliberation."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Literal

from app.api.resource import links
from app.api.schemas import dump
from app.deliberation.calls import FactProblem
from app.deliberation.fold import State, usage
from app.deliberation.works import works
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
_VERSION = version("deliberation-gateway")


def completion_id(state: State) -> str:
    return f"chatcmpl-{state.deliberation_id}"


def fingerprint(state: State) -> str:
    """The versions of gateway and strategy; with the same fingerprint, the same seed gives the same answer."""
    specified = state.specification
    return f"deliberation-gateway-{_VERSION}-{specified.strategy}-v{specified.strategy_version}"


def model_name(state: State) -> str:
    specified = state.specification
    return f"{specified.strategy}/{specified.agents[0].role}"


def texts(state: State) -> tuple[str, ...]:
    """The verdict's answer, or all agents' answers if the strategy does not rank them; raises NoVerdict."""
    end = state.end
    assert end is not None
    if end.verdict is not None and end.verdict.content is not None:
        return (end.verdict.content,)
    if end.verdict is not None:
        answers = tuple(work.chosen.text for work in works(state) if work.chosen is not None)
        if answers:
            return answers
    detail = "it was cancelled" + (f": {state.cancel.reason}" if state.cancel and state.cancel.reason else "")
    cancelled = FactProblem(code="cancelled", detail=detail, retryable=False)
    raise NoVerdict(end.problem or cancelled, state.deliberation_id)


def _usage(state: State) -> ChatUsage:
    spent = usage(state)
    return ChatUsage(
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        total_tokens=spent.tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=spent.cached_tokens),
        cost=spent.cost,
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


def completion(chat: ChatCompletionRequest, state: State) -> ChatCompletion:
    answers = (ChatAnswer(content=chat.truncated(text)) for text in texts(state))
    return ChatCompletion(
        id=completion_id(state),
        created=int(state.accepted.ts.timestamp()),
        model=model_name(state),
        choices=tuple(ChatChoice(index=index, message=message) for index, message in enumerate(answers)),
        usage=_usage(state),
        system_fingerprint=fingerprint(state),
        deliberation=_outcome(state),
    )


def _framed(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"


def _frame(chat: ChatCompletionRequest, state: State, *choices: ChatChunkChoice, **added: Any) -> bytes:  # noqa: ANN401 -- fields
    if chat.counts_usage:
        added = {"usage": None, **added}
    chunk = ChatCompletionChunk(
        id=completion_id(state),
        object="chat.completion.chunk",
        created=int(state.accepted.ts.timestamp()),
        model=model_name(state),
        system_fingerprint=fingerprint(state),
        choices=choices,
        **added,
    )
    return _framed(chunk.__pydantic_serializer__.to_json(chunk, exclude_unset=True))


def _choice(index: int, delta: ChatDelta, finish_reason: Literal["stop"] | None = None) -> ChatChunkChoice:
    return ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=finish_reason)


def opening_frame(chat: ChatCompletionRequest, state: State, index: int = 0) -> bytes:
    """The first chunk of a choice, with its role. The first choice's is sent before the deliberation ends."""
    return _frame(chat, state, _choice(index, ChatDelta(role="assistant", content="")))


def waiting_frame(chat: ChatCompletionRequest, state: State) -> bytes:
    """A chunk without text, because clients that wait for chunks do not count comments."""
    return _frame(chat, state, _choice(0, ChatDelta(content="")))


def frames(chat: ChatCompletionRequest, state: State) -> Iterator[bytes]:
    """All frames after `opening_frame`; raises NoVerdict before the first one."""
    answers = texts(state)
    for index, text in enumerate(answers):
        if index:
            yield opening_frame(chat, state, index)
        content = chat.truncated(text)
        for begin in range(0, len(content), PIECE_CHARS):
            yield _frame(chat, state, _choice(index, ChatDelta(content=content[begin : begin + PIECE_CHARS])))
        outcome = {"deliberation": _outcome(state)} if index == len(answers) - 1 else {}
        yield _frame(chat, state, _choice(index, ChatDelta(), "stop"), **outcome)
    if chat.counts_usage:
        yield _frame(chat, state, usage=_usage(state))
    yield DONE


def error_frames(error: OpenAIError) -> bytes:
    return _framed(dump(error)) + DONE
