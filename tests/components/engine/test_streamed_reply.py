import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from app.deliberation.calls import Usage
from app.deliberation.errors import EngineUnavailable
from serve_deployments.engine.replies import Meter, StreamedChoice, StreamedReply
from serve_deployments.engine.tool_calls import ARGUMENT_CHARS_MAX, StreamedToolCalls
from tests.integration.agent.stage_runs import call

PROMPT = 40


class Engine:
    label = "engine"

    def quote(self, content: bytes) -> str:
        return content.decode()


class Listener:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.choice = StreamedChoice(call(1), "trace", self.on_text, Meter())
        self.reply = StreamedReply(self.choice)
        self.choice.meter.sent_bytes = 100

    async def on_text(self, piece: str) -> None:
        self.texts.append(piece)


def event(text: str = "", tokens: int = 0, finish: str | None = None, *, counted: bool = True) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    usage = {"usage": {"prompt_tokens": PROMPT, "completion_tokens": tokens}} if counted else {}
    return f"data: {json.dumps({'choices': [choice], **usage})}\n\n"


def end(completion_tokens: int, **details: Any) -> str:
    usage = {"prompt_tokens": PROMPT, "completion_tokens": completion_tokens, **details}
    return f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"


async def chunks(events: Iterable[str]) -> AsyncIterator[bytes]:
    for each in events:
        yield each.encode()


async def test_a_stream_is_a_text_with_its_finish_reason_and_usage() -> None:
    listener = Listener()
    events = [event("a", 1), event("A", 4, "length"), end(4, prompt_tokens_details={"cached_tokens": 32})]
    reply = await listener.reply.read(Engine(), chunks(events))
    assert listener.texts == ["a", "A"]
    assert (reply.text, reply.finish_reason) == ("aA", "length")
    assert reply.usage == Usage(prompt_tokens=PROMPT, completion_tokens=4, cached_tokens=32)
    assert not listener.choice.meter.estimated


async def test_a_stream_that_breaks_off_is_charged_as_far_as_it_came() -> None:
    listener = Listener()
    with pytest.raises(EngineUnavailable, match="broke its stream off after 1 characters"):
        await listener.reply.read(Engine(), chunks([event("a", 3)]))
    assert listener.choice.meter.usage == Usage(prompt_tokens=PROMPT, completion_tokens=3)


async def test_tokens_that_are_not_counted_are_estimated() -> None:
    listener = Listener()
    events = [event("word " * 8, finish="stop", counted=False), "data: [DONE]\n\n"]
    reply = await listener.reply.read(Engine(), chunks(events))
    assert listener.choice.meter.estimated
    assert reply.usage.prompt_tokens > 0 and reply.usage.completion_tokens > 0


@pytest.mark.parametrize("line", ['{"choices": [{"delta": {}}, {"delta": {"content": "b"}}]}', '{"choices": 7}', "[]"])
async def test_what_was_not_asked_for_is_ignored(line: str) -> None:
    listener = Listener()
    reply = await listener.reply.read(Engine(), chunks([f"data: {line}\n\n", event("a", 1, "stop"), end(1)]))
    assert reply.text == "a"


def calling(*pieces: Any, finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"tool_calls": list(pieces)}, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def function(arguments: Any, name: str | None = None) -> dict[str, Any]:
    return {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [
                calling({"index": 0, "id": "a", "type": "function", "function": function("", "f")}),
                calling({"index": 0, "function": function('{"x"')}),
                calling({"index": 0, "function": function(": 1}")}),
                calling({"index": 1, "id": "b", "function": function("{}", "g")}, finish="tool_calls"),
            ],
            [("a", "f", '{"x": 1}'), ("b", "g", "{}")],
        ),
        ([calling({"id": "a", "function": function({"x": 1}, "f")}, finish="stop")], [("a", "f", '{"x": 1}')]),
        (
            [
                calling({"id": "a", "function": function("{}", "f")}),
                calling({"id": "b", "function": function("{}", "g")}),
            ],
            [("a", "f", "{}"), ("b", "g", "{}")],
        ),
        ([calling({"index": 0, "function": {"name": "f"}}, finish="tool_calls")], [("", "f", "{}")]),
        (
            [calling(None, 7, {"index": -1}, {"index": 10**9, "function": function("{}", "f")}, finish="stop")],
            [("", "f", "{}")],
        ),
    ],
    ids=["OpenAI's pieces", "an object, without index", "two without index", "no id, no arguments", "nonsense"],
)
async def test_tool_calls_are_read_in_the_forms_that_engines_stream(
    events: list[str], expected: list[tuple[str, str, str]]
) -> None:
    listener = Listener()
    listener.choice.tool_calls = StreamedToolCalls()
    reply = await listener.reply.read(Engine(), chunks([*events, event(finish="stop"), end(3)]))
    assert [(called.id, called.name, called.arguments) for called in reply.tool_calls] == expected
    assert reply.text == "" and not reply.withheld


async def test_tool_calls_of_a_whole_completion_are_read_alike() -> None:
    listener = Listener()
    listener.choice.tool_calls = StreamedToolCalls()
    message = {"content": None, "tool_calls": [{"id": "a", "function": function('{"x": 1}', "f")}]}
    whole = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    reply = await listener.reply.read(Engine(), chunks([whole]))
    assert [(called.name, called.arguments) for called in reply.tool_calls] == [("f", '{"x": 1}')]


async def test_arguments_beyond_the_bound_of_a_reply_end_it() -> None:
    listener = Listener()
    listener.choice.tool_calls = StreamedToolCalls()
    many = calling({"index": 0, "id": "a", "function": function("x" * 60_000, "f")})
    reply = await listener.reply.read(Engine(), chunks([many] * 20))
    assert reply.finish_reason == "length" and len(reply.tool_calls[0].arguments) <= ARGUMENT_CHARS_MAX
