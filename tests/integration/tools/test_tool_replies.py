"""Tool calls as engines really bring them: ids, indices, names and arguments that break OpenAI's form."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import pytest

from app.deliberation.facts import CallFinished, ToolUsed
from app.deliberation.tools import TOOL_PATTERN, ToolLimits
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.engine.tool_calls import ToolTurn
from serve_deployments.tools.toolbox import GrantedTools, Tool, ToolResult
from tests.fakes import InMemoryJournal
from tests.integration.agent.scripted_engine import ANSWER, ScriptedEngine, streamed
from tests.integration.agent.stage_runs import replica, request, views
from tests.integration.tools.tool_calls import call

Piece = dict[str, Any]
LIFE, DEATH = '{"word": "life"}', '{"word": "death"}'
BOTH = [("look_up", {"word": "life"}), ("look_up", {"word": "death"})]
ONE = BOTH[:1]


def nested(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


NATIVE_CALL = f'{{"name": "look_up", "arguments": {LIFE}}}'


class Shelf:
    """A toolbox in memory, with the uses that were made."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Mapping[str, Any]]] = []

    async def tools(self) -> Sequence[Tool]:
        return [Tool("shelf", name, "", {"type": "object", "properties": {}}, True) for name in ("look_up", "write")]

    async def use(self, name: str, arguments: Mapping[str, Any], within_s: float) -> ToolResult:
        self.made.append((name, arguments))
        return ToolResult(f"result {len(self.made)}", failed=False)


def piece(
    arguments: object = "", name: str | None = None, *, index: object = 0, id: object = None, **more: object
) -> Piece:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {
        **({} if index is None else {"index": index}),
        **({} if id is None else {"id": id}),
        "function": function,
        **more,
    }


def said(*deltas: dict[str, Any], finish: str | None = "tool_calls") -> httpx.Response:
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return httpx.Response(200, stream=httpx.ByteStream(lines.encode()))


def calls(*pieces: Piece, finish: str = "tool_calls") -> httpx.Response:
    """A stream with one piece of a tool call in each event."""
    return said(*({"tool_calls": [each]} for each in pieces), finish=finish)


def together(*pieces: Piece) -> httpx.Response:
    return said({"tool_calls": list(pieces)})


def whole(message: dict[str, Any], finish: str = "tool_calls") -> httpx.Response:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}
    return httpx.Response(200, stream=httpx.ByteStream(json.dumps(body).encode()))


def engine_of(first: httpx.Response | Callable[[dict[str, Any], int], httpx.Response]) -> ScriptedEngine:
    if callable(first):
        return ScriptedEngine(first)
    return ScriptedEngine(lambda _, number: first if number == 1 else streamed(ANSWER))


async def answered(engine: ScriptedEngine) -> tuple[Shelf, list[ToolUsed], CallFinished, AgentReplica]:
    shelf, journal = Shelf(), InMemoryJournal()
    agent = replica(engine, journal)
    granted = [GrantedTools("shelf", shelf, frozenset({"look_up", "write"}), ToolLimits())]
    agent.toolboxes = lambda request, call: granted
    await agent.run_stage(request((call(),)))
    (outcome,) = views(journal, CallFinished)
    return shelf, views(journal, ToolUsed), outcome, agent


REPLIES: dict[str, tuple[httpx.Response, list[tuple[str, Any]]]] = {
    "fragments of OpenAI's form": (
        calls(piece("", "look_up", id="a"), piece('{"word": '), piece('"life"}')), ONE,
    ),
    "two calls, by index": (
        calls(piece(LIFE, "look_up", id="a"), piece(DEATH, "look_up", index=1, id="b")), BOTH,
    ),
    "indices with a gap, from 1": (
        calls(piece(LIFE, "look_up", index=1, id="a"), piece(DEATH, "look_up", index=7, id="b")), BOTH,
    ),
    "indices all 0, without ids (Ollama)": (together(piece(LIFE, "look_up"), piece(DEATH, "look_up")), BOTH),
    "indices all 0, each in its event (Gemini)": (
        calls(piece(LIFE, "look_up", id="a"), piece(DEATH, "look_up", id="b")), BOTH,
    ),
    "no index": (together(piece(LIFE, "look_up", index=None), piece(DEATH, "look_up", index=None)), BOTH),
    "an index below 0": (calls(piece(LIFE, "look_up", index=-1, id="a")), ONE),
    "an index as text": (calls(piece('{"word": ', "look_up", index="0", id="a"), piece('"life"}', index="0")), ONE),
    "one id for two calls": (
        calls(piece(LIFE, "look_up", id="a"), piece(DEATH, "look_up", index=1, id="a")), BOTH,
    ),
    "the id in each piece, blank later": (
        calls(piece("", "look_up", id="a"), piece('{"word": ', id=" "), piece('"life"}', id="")), ONE,
    ),
    "a new id in each piece": (
        calls(piece("", "look_up", id="a"), piece('{"word": ', id="b"), piece('"life"}', id="c")), ONE,
    ),
    "the name in each piece": (
        calls(piece("", "look_up", id="a"), piece('{"word": ', "look_up"), piece('"life"}', "look_up")), ONE,
    ),
    "a name in two pieces": (calls(piece("", "look", id="a"), piece(LIFE, "_up")), ONE),
    "an id that is a number": (calls(piece(LIFE, "look_up", id=7)), ONE),
    "stop as the finish reason": (calls(piece(LIFE, "look_up", id="a"), finish="stop"), ONE),
    "words beside the call": (said({"content": "Let me see."}, {"tool_calls": [piece(LIFE, "look_up", id="a")]}), ONE),
    "a completion that is not streamed": (whole({"tool_calls": [piece(LIFE, "look_up", id="a")]}), ONE),
    "a call in place of a list": (whole({"content": "", "tool_calls": piece(LIFE, "look_up", id="a")}), ONE),
    "the form of 2023": (whole({"content": None, "function_call": {"name": "look_up", "arguments": LIFE}}), ONE),
    "name and arguments without `function`": (
        whole({"content": None, "tool_calls": [{"id": "a", "name": "look_up", "arguments": LIFE}]}), ONE,
    ),
    "arguments as an object": (whole({"tool_calls": [piece({"word": "life"}, "look_up", id="a")]}), ONE),
    "arguments as JSON in JSON": (calls(piece(json.dumps(LIFE), "look_up", id="a")), ONE),
    "no arguments": (calls(piece(None, "look_up", id="a")), [("look_up", {})]),
    "null as arguments": (calls(piece("null", "look_up", id="a")), [("look_up", {})]),
    "blank arguments": (calls(piece(" ", "look_up", id="a")), [("look_up", {})]),
    "a line break in a string": (calls(piece('{"word": "a\nb"}', "look_up", id="a")), [("look_up", {"word": "a\nb"})]),
    "half of a surrogate pair": (
        calls(piece(json.dumps({"word": "\ud800"}), "look_up", id="\udc00")), [("look_up", {"word": "\ufffd"})],
    ),
    "half of a surrogate pair as a key": (
        calls(piece({"\ud800": ["\udfff"]}, "look_up")), [("look_up", {"\ufffd": ["\ufffd"]})],
    ),
    "a namespace before the name": (calls(piece(LIFE, "functions.look_up", id="a")), ONE),
    "a mark of the template behind the name": (calls(piece(LIFE, "look_up<|channel|>commentary", id="a")), ONE),
    "blanks around the name": (calls(piece(LIFE, " look_up ", id="a")), ONE),
    "left in the text by Hermes": (said({"content": f"<tool_call>\n{NATIVE_CALL}\n</tool_call>"}, finish="stop"), ONE),
    "left in the text by Mistral": (said({"content": f"[TOOL_CALLS][{NATIVE_CALL}]"}, finish="stop"), ONE),
    "left in the text by Llama": (
        said({"content": f'<|python_tag|>{{"name": "look_up", "parameters": {LIFE}}}'}, finish="stop"), ONE,
    ),
    "two left in the text, one of no tool": (
        said({"content": f'{NATIVE_CALL}\n{{"name": "burn", "arguments": {{}}}}'}, finish="stop"), ONE,
    ),
    "an empty name": (calls(piece(LIFE, "", id="a")), []),
    "no call for all its finish reason": (said({"content": ""}), []),
    "null for a list": (said({"content": "…", "tool_calls": None}), []),
    "nonsense for a list": (said({"content": "…", "tool_calls": ["look_up", 7, None]}), []),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "made"), REPLIES.values(), ids=REPLIES)
async def test_a_reply_is_read_as_the_calls_that_its_model_meant(
    reply: httpx.Response, made: list[tuple[str, Any]]
) -> None:
    engine = engine_of(reply)
    shelf, uses, outcome, _ = await answered(engine)
    assert shelf.made == made and [use.problem for use in uses] == [None] * len(made)
    assert outcome.answered and outcome.usage.tool_uses == len(made)
    assert_well_formed(engine.bodies[-1])


BROKEN = {
    "no JSON": (calls(piece('{"word": ', "look_up", id="a"), finish="length"), "no JSON"),
    "two objects": (calls(piece('{}{"word": "life"}', "look_up", id="a")), "no JSON"),
    "a list": (calls(piece("[1]", "look_up", id="a")), "no JSON object"),
    **{
        f"{levels} levels": (calls(piece(nested(levels), "look_up", id="a")), told)
        for levels, told in ((65, "deeper than 64 levels"), (300, "deeper than 64 levels"), (5_000, "the arguments"))
    },
    **{
        f"{levels} levels in an object": (
            whole({"tool_calls": [piece(json.loads(nested(levels)), "look_up")]}),
            "deeper",
        )
        for levels in (65, 190)
    },
    "a tool that it has not": (calls(piece(LIFE, "burn it/all", id="a")), "there is no tool 'burn it/all'"),
    "a name of marks alone": (calls(piece(LIFE, "<|call|>", id="a")), "there is no tool"),
}


@pytest.mark.parametrize(("reply", "told"), BROKEN.values(), ids=BROKEN)
async def test_a_call_that_cannot_be_made_is_told_and_the_conversation_stays_well_formed(
    reply: httpx.Response, told: str
) -> None:
    engine = engine_of(reply)
    shelf, (use,), outcome, _ = await answered(engine)
    assert shelf.made == [] and outcome.answered
    assert use.problem is not None and use.problem.code == "refused" and told in use.problem.detail
    assert_well_formed(engine.bodies[-1])


async def test_arguments_of_as_many_levels_as_are_taken_reach_the_tool() -> None:
    shelf, (use,), _, _ = await answered(engine_of(calls(piece(nested(64), "look_up", id="a"))))
    assert shelf.made == [("look_up", json.loads(nested(64)))] and json.loads(use.arguments) == json.loads(nested(64))


def test_a_call_in_a_text_is_read_or_left_at_any_depth() -> None:
    turn = ToolTurn([Tool("shelf", "look_up", "", {"type": "object"}, repeatable=True)], [], 1)
    for levels in range(1, sys.getrecursionlimit() + 20):
        written = turn.written(f'{{"name": "look_up", "arguments": {nested(levels)}}}')
        assert len(written) == 1 or levels > 64, levels


async def test_ids_that_repeat_in_later_replies_are_made_unique() -> None:
    again = [
        calls(piece(LIFE, "look_up", id="call-look_up")),
        calls(piece(LIFE, "look_up")),
        calls(piece(LIFE, "look_up", id="call-look_up")),
    ]
    engine = ScriptedEngine(lambda _, number: again[number - 1] if number <= 3 else streamed(ANSWER))
    _, uses, _, _ = await answered(engine)
    assert [use.tool_call_id for use in uses] == ["call-look_up", "tool00002", "tool00003"]
    assert_well_formed(engine.bodies[-1])


REFUSALS = {
    "a schema": {
        "message": "Invalid schema for function 'look_up': In context=('properties', 'a'), array schema missing items.",
        "param": "tools[0].function.parameters",
        "code": "invalid_function_parameters",
    },
    "the field": {"message": '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'},
    "tools of a template": {"message": "this model does not support tools"},
}  # fmt: skip


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
async def test_an_engine_that_refuses_the_offered_tools_is_offered_them_as_text(error: dict[str, Any]) -> None:
    def script(body: dict[str, Any], number: int) -> httpx.Response:
        if "tools" in body:
            return httpx.Response(400, json={"error": error})
        return streamed(f'{{"tool": "look_up", "arguments": {LIFE}}}') if number == 2 else streamed(ANSWER)

    engine = engine_of(script)
    shelf, _, outcome, _ = await answered(engine)
    assert shelf.made == ONE and outcome.answered and ["tools" in body for body in engine.bodies][:2] == [True, False]


async def test_an_engine_that_takes_no_tool_calls_without_tools_gets_the_results_as_text() -> None:
    refused = "UnsupportedParamsError: Anthropic doesn't support tool calling without `tools=` param specified"

    def script(body: dict[str, Any], number: int) -> httpx.Response:
        if "tools" in body:
            return calls(piece(LIFE, "look_up", id="a")) if number == 1 else streamed("I know enough.")
        if any(message["role"] == "tool" for message in body["messages"]):
            return httpx.Response(400, json={"error": {"message": refused}})
        return streamed(ANSWER)

    engine = engine_of(script)
    _, _, outcome, _ = await answered(engine)
    assert outcome.answered, outcome.problem
    assert [each["role"] for each in engine.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
    assert "result 1" in engine.bodies[-1]["messages"][-1]["content"]


def assert_well_formed(body: dict[str, Any]) -> None:
    """Names, ids and arguments of the conversation's tool calls are such as OpenAI and chat templates take."""
    asked = [each for message in body["messages"] for each in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"]
    assert [each["id"] for each in asked] == results and len(set(results)) == len(results) and all(results)
    assert all(re.fullmatch(TOOL_PATTERN, each["function"]["name"]) for each in asked)
    assert all(isinstance(json.loads(each["function"]["arguments"]), dict) for each in asked)
