"""Chat completions and their chunks, from an ended deliberation.

As an extension, completions and last chunks have the field `deliberation`, and their usage has `cost`. OpenAI's clients
ignore both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from pydantic_core import to_json

from app.api.schemas import Resource, dump
from app.deliberation.actions import arguments_json
from app.deliberation.calls import UsageCost
from app.deliberation.errors import DeliberationError
from app.deliberation.facts import Action
from app.deliberation.fold import State, usage
from app.facades.chat.reader import ChatCompletionRequest
from app.facades.moments import Began, Ended, Interrupted, Moment, StageBegan, StageEnded
from app.facades.openai_errors import DONE, stream_error
from app.facades.outcomes import DeliberationOutcome, NoVerdict, actions, fingerprint, is_cut_off, model_name, outcome
from app.facades.summaries import stage_begun, stage_ended

PIECE_CHARS = 256


class ChatUsage(Resource):
    """Tokens of all calls of all agents, as the engines reported them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    cost: UsageCost | None = Field(description="What they cost; null where no engine has prices")


class ChatCompletion(Resource):
    """An ended deliberation as a chat completion."""

    id: str = Field(description="`chatcmpl-` and the deliberation's id")
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(description="Unix time of the acceptance")
    model: str
    choices: tuple[dict[str, Any], ...] = Field(
        description="The verdict's answer, or with `independent` each agent's, as OpenAI's reference describes them"
    )
    usage: ChatUsage
    system_fingerprint: str = Field(description="Version of the gateway and of the strategy")
    deliberation: DeliberationOutcome | None = Field(description="Null where the limit of tokens left no answer")


class ModelResource(Resource):
    """A strategy and a role as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(default=0, description="Unknown, always 0")
    owned_by: str = "deliberation-gateway"


class ModelList(Resource):
    """Every strategy with every role."""

    object: Literal["list"] = "list"
    data: tuple[ModelResource, ...]


def _head(state: State, kind: str) -> dict[str, Any]:
    """The fields that a completion and its chunks have in common, in the order of OpenAI's reference."""
    head = {"id": f"chatcmpl-{state.deliberation_id}", "object": kind, "created": int(state.accepted.ts.timestamp())}
    return {**head, "model": model_name(state), "system_fingerprint": fingerprint(state)}


def _usage(state: State) -> ChatUsage:
    spent = usage(state)
    sums = {"total_tokens": spent.tokens, "prompt_tokens_details": {"cached_tokens": spent.cached_tokens}}
    return ChatUsage.model_validate({**dict(spent), **sums})


def _ending(chat: ChatCompletionRequest, state: State) -> Sequence[tuple[Action, str]]:
    """Each choice's action, and its finish reason; `length` where the request's limit left none. Raises NoVerdict."""
    if chat.limits_tokens and is_cut_off(state):
        return [(Action(reply=""), "length")]
    return [(action, "tool_calls" if action.calls else "stop") for action in actions(state)]


def completion(chat: ChatCompletionRequest, state: State) -> ChatCompletion:
    ended = _ending(chat, state)
    return ChatCompletion(
        **_head(state, "chat.completion"),
        choices=tuple(
            _choice(index, reason, message={"role": "assistant", **_message(chat, action), "refusal": None})
            for index, (action, reason) in enumerate(ended)
        ),
        usage=_usage(state),
        deliberation=None if ended[0][1] == "length" else outcome(state),
    )


def _message(chat: ChatCompletionRequest, action: Action) -> dict[str, Any]:
    if action.reply is not None:
        return {"content": chat.truncated(action.reply)}
    return {"content": None, "tool_calls": tool_calls(action)}


def tool_calls(action: Action) -> list[dict[str, Any]]:
    """The calls of an action as those of an assistant's message in OpenAI's reference."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_json(call)}}
        for call in action.calls
    ]


def _choice(index: int, finish_reason: str | None, **said: Any) -> dict[str, Any]:  # noqa: ANN401 -- JSON
    return {"index": index, **said, "logprobs": None, "finish_reason": finish_reason}


def _framed(content: bytes) -> bytes:
    return b"data: " + content + b"\n\n"


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Writes chunks: the first one, with its role, then the stages as reasoning, and the text after the end."""

    chat: ChatCompletionRequest
    request_id: str

    def write(self, moment: Moment) -> Iterator[bytes]:
        match moment:
            case Began(state):
                yield self._chunk(state, 0, role="assistant", content="")
            case StageBegan(state, opened):
                yield self._chunk(state, 0, reasoning_content=f"{stage_begun(opened)}\n\n")
            case StageEnded(state, opened, closed, cut) if cut != "interruption":
                yield self._chunk(state, 0, reasoning_content=f"{stage_ended(opened, closed)}\n\n")
            case Ended(state):
                try:
                    yield from self._answer(state, _ending(self.chat, state))
                except NoVerdict as error:
                    yield self._error(error)
            case Interrupted(_, error):
                yield self._error(error)
            case _:
                pass

    def waiting(self, state: State) -> bytes:
        """A chunk without text, because clients that wait for chunks do not count comments."""
        return self._chunk(state, 0, content="")

    def _error(self, error: DeliberationError) -> bytes:
        return _framed(dump(stream_error(error, self.request_id))) + DONE

    def _frame(self, state: State, *choices: dict[str, Any], **added: Any) -> bytes:  # noqa: ANN401 -- fields
        """A chunk as OpenAI's reference describes it; `usage`, if requested, is null except in the last one."""
        counted = {"usage": None} if self.chat.counts_usage else {}
        return _framed(to_json({**_head(state, "chat.completion.chunk"), "choices": choices, **counted, **added}))

    def _chunk(self, state: State, index: int, **delta: Any) -> bytes:  # noqa: ANN401 -- fields
        return self._frame(state, _choice(index, None, delta=delta))

    def _answer(self, state: State, ended: Sequence[tuple[Action, str]]) -> Iterator[bytes]:
        for index, (action, reason) in enumerate(ended):
            if index:
                yield self._chunk(state, index, role="assistant", content="")
            text = self.chat.truncated(action.reply or "")
            for begin in range(0, len(text), PIECE_CHARS):
                yield self._chunk(state, index, content=text[begin : begin + PIECE_CHARS])
            for place, call in enumerate(tool_calls(action)):
                yield self._chunk(state, index, tool_calls=[{"index": place, **call}])
            added = {"deliberation": outcome(state)} if reason != "length" and index == len(ended) - 1 else {}
            yield self._frame(state, _choice(index, reason, delta={}), **added)
        if self.chat.counts_usage:
            yield self._frame(state, usage=_usage(state))
        yield DONE
