import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from app.deliberation.errors import EngineUnavailable
from serve_deployments.engine.replies import EngineReply, Meter, StreamedChoice, StreamedReply
from serve_deployments.engine.tool_calls import ARGUMENT_CHARS_MAX, ToolCallsHeard
from tests.integration.agent.test_agent_replica import call

PROMPT = 40


class Engine:
    label = "engine"

    def quote(self, content: bytes) -> str:
        return content.decode()


class Listeners:
    def __init__(self, number: int) -> None:
        self.texts: list[list[str]] = [[] for _ in range(number)]
        self.ended: list[tuple[int, EngineReply]] = []
        self.choices = [self._choice(index) for index in range(number)]
        self.reply = StreamedReply(self.choices)
        for choice in self.choices:
            choice.meter.sent_bytes = 100

    def _choice(self, index: int) -> StreamedChoice:
        async def on_text(piece: str) -> None:
            self.texts[index].append(piece)

        return StreamedChoice(call(index), "trace", on_text, Meter(), lambda reply: self.ended.append((index, reply)))

    def tokens(self) -> list[tuple[int, int]]:
        return [(each.meter.usage.prompt_tokens, each.meter.usage.completion_tokens) for each in self.choices]


def event(index: int, text: str = "", tokens: int = 0, finish: str | None = None, *, counted: bool = True) -> str:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    usage = {"usage": {"prompt_tokens": PROMPT, "completion_tokens": tokens}} if counted else {}
    return f"data: {json.dumps({'choices': [choice], **usage})}\n\n"


def end(completion_tokens: int, **details: Any) -> str:
    usage = {"prompt_tokens": PROMPT, "completion_tokens": completion_tokens, **details}
    return f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"


async def chunks(events: Iterable[str]) -> AsyncIterator[bytes]:
    for each in events:
        yield each.encode()


async def test_interleaved_choices_end_one_by_one_and_the_last_carries_the_prompt() -> None:
    heard = Listeners(3)
    events = [event(2, "c", 1), event(0, "a", 1), event(1, "b", 1), event(2, "C", 2), event(1, "B", 5, "stop")]
    details = {"prompt_tokens_details": {"cached_tokens": 32}}
    events += [event(0, "A", 4, "length"), event(2, "!", 9, "stop"), end(18, **details)]
    await heard.reply.read(Engine(), chunks(events))
    assert heard.texts == [["a", "A"], ["b", "B"], ["c", "C", "!"]]
    assert [(index, reply.text, reply.finish_reason) for index, reply in heard.ended] == [
        (1, "bB", "stop"),
        (0, "aA", "length"),
        (2, "cC!", "stop"),
    ]
    assert heard.tokens() == [(0, 4), (0, 5), (PROMPT, 9)]
    assert heard.choices[2].meter.usage.cached_tokens == 32
    assert not heard.reply.ignored_n


async def test_a_stream_that_breaks_off_is_charged_as_far_as_it_came() -> None:
    heard = Listeners(3)
    with pytest.raises(EngineUnavailable, match="broke its stream off after 2 characters"):
        await heard.reply.read(Engine(), chunks([event(0, "a", 3), event(1, "b", 2, "stop"), event(2, "", 0)]))
    assert [index for index, _ in heard.ended] == [1]
    assert heard.tokens() == [(PROMPT, 3), (0, 2), (0, 0)]


async def test_what_the_engine_writes_for_a_choice_that_was_left_is_charged_to_another() -> None:
    heard = Listeners(2)

    async def events() -> AsyncIterator[bytes]:
        yield event(0, "a", 1).encode() + event(1, "b", 1).encode()
        heard.reply.leave(heard.choices[0])
        yield (event(0, "aa", 7, "stop") + event(1, "bb", 3, "stop") + end(10)).encode()

    await heard.reply.read(Engine(), events())
    assert heard.texts == [["a"], ["b", "bb"]], "nothing is passed on to a choice that was left"
    assert heard.tokens() == [(0, 1), (PROMPT, 9)]


async def test_an_answer_does_not_wait_for_choices_that_were_left() -> None:
    heard = Listeners(2)

    async def events() -> AsyncIterator[bytes]:
        heard.reply.leave(heard.choices[0])
        yield event(1, "b", 2, "stop").encode()
        raise AssertionError("the engine writes on for the choice that was left")

    await heard.reply.read(Engine(), events())
    assert [reply.text for _, reply in heard.ended] == ["b"]


async def test_an_engine_that_begins_one_choice_alone_ignores_n() -> None:
    heard = Listeners(3)
    await heard.reply.read(Engine(), chunks([event(0, "a", 3, "stop"), end(3)]))
    assert [(index, reply.text) for index, reply in heard.ended] == [(0, "a")]
    assert heard.reply.ignored_n and heard.reply.open == heard.choices[1:]
    assert sum(completion for _, completion in heard.tokens()) == 3


@pytest.mark.parametrize("total", [True, False])
async def test_tokens_that_are_not_counted_by_choice_are_estimated(total: bool) -> None:
    heard = Listeners(2)
    events = [event(index, "word " * 8, finish="stop", counted=False) for index in (0, 1)]
    await heard.reply.read(Engine(), chunks([*events, end(40) if total else "data: [DONE]\n\n"]))
    assert heard.reply.ignored_n
    assert all(choice.meter.estimated for choice in heard.choices)
    assert all(completion for _, completion in heard.tokens())
    assert [prompt > 0 for prompt, _ in heard.tokens()] == [False, True]


@pytest.mark.parametrize("line", ['{"choices": [{"index": 7, "delta": {}}]}', '{"choices": [{"index": -1}]}', "[]"])
async def test_a_choice_that_was_not_asked_for_is_ignored(line: str) -> None:
    heard = Listeners(2)
    events = [f"data: {line}\n\n", event(0, "a", 1, "stop"), event(1, "b", 1, "stop"), end(2)]
    await heard.reply.read(Engine(), chunks(events))
    assert [reply.text for _, reply in heard.ended] == ["a", "b"]


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
    heard = Listeners(1)
    heard.choices[0].tool_calls = ToolCallsHeard()
    reply = await heard.reply.read(Engine(), chunks([*events, event(0, finish="stop"), end(3)]))
    assert [(each.id, each.name, each.arguments) for each in reply.tool_calls] == expected
    assert reply.text == "" and not reply.withheld


async def test_tool_calls_of_a_whole_completion_are_read_alike() -> None:
    heard = Listeners(1)
    heard.choices[0].tool_calls = ToolCallsHeard()
    message = {"content": None, "tool_calls": [{"id": "a", "function": function('{"x": 1}', "f")}]}
    whole = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    reply = await heard.reply.read(Engine(), chunks([whole]))
    assert [(each.name, each.arguments) for each in reply.tool_calls] == [("f", '{"x": 1}')]


async def test_arguments_beyond_the_bound_of_a_reply_end_it() -> None:
    heard = Listeners(1)
    heard.choices[0].tool_calls = ToolCallsHeard()
    many = calling({"index": 0, "id": "a", "function": function("x" * 60_000, "f")})
    reply = await heard.reply.read(Engine(), chunks([many] * 20))
    assert reply.finish_reason == "length" and len(reply.tool_calls[0].arguments) <= ARGUMENT_CHARS_MAX
