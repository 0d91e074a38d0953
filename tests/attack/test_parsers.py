"""Texts of models, tenants and engines against each parser of the core: bytes in, time out."""

import asyncio
import json
import random
import time
from collections.abc import Callable

import httpx
import pytest

from app.api.cursor import parse_cursor
from app.api.request_body import parsed_body
from app.api.requests import DeliberationRequest
from app.api.webhook_targets import UnfitUrl, parsed
from app.deliberation.answer_schema import SchemaRefused, rebuilt_schema
from app.deliberation.answers import normalise
from app.deliberation.choice.anonymity import fence
from app.deliberation.errors import DeliberationError
from app.deliberation.facts import decode
from app.deliberation.json_objects import mended, objects, reasoning
from app.deliberation.outputs import Output, parse_output
from app.deliberation.readings import read_output
from app.deliberation.roles import EngineSpec
from serve_deployments.agent.validation import ON_LOOP_CHARS_MAX
from serve_deployments.engine.client import Engines
from tests.fuzz.replies import read_by_agent

BYTES = 100_000
ON_LOOP_WITHIN_S = 0.05
# A reading leaves the event loop; its steps are bounded, so that its thread ends soon.
READ_WITHIN_S = 1.5
# Fourfold work for fourfold text, and room for a noisy machine; quadratic work is sixteenfold.
FOURFOLD_MAX = 8.0
MEASURABLE_S = 0.001

ATOMS = [
    *" \t\n.,:;!?*_`~#>-+()[]{}\"'\\/01$%^|<aA", "```\n", "~~~", "\\boxed{", "answer is ", "answer: ", "option ", "(A",
    "1,", "1.", "1e", "10^", "²", "×", "<<<", "# Task\n", "candidate ", "- ", "def ", "…", "。", "1/2", "−", "\u200b<",
    '{"a":', '{"', '{"{', '{"\\"', '{"a":{},', '{"a":"{",', '{"a":"{",":"{",', '["', "{}", '{"answer":', "{}</think>",
    '{"answer":1}', "data: x\n", "data: []\n", "data: {\n", ": x\n",
    "<think>", "</think>", "<think>{}", '{"answer":{"answer":', "\\u", "<|channel|>", "\ud83d", "[[",
    '{"reasoning":"","answer":{},"confidence":1,"x":', '{"A":{"criteria":[{"score":8.5}]},"x":', "answer======", "1.5,",
    "答案是", "B、", "A或", "选", "１", "万", "C:\\\\a", "\\\\n", "\\\\theta", "\\\\a", "\u0301", "\u3000",
]  # fmt: skip
OPTIONS = tuple(f"option {number}, {'x' * number}" for number in range(64))
SCORE = Output(kind="score", labels=("A", "B"), criteria=("right", "clear"))
ANSWER = Output(kind="answer")
BRANCHES = {"anyOf": [{"type": "integer", "minimum": 10**6 + number} for number in range(250)]}
OF_BRANCHES = Output(kind="answer").with_answers_of(
    json.dumps(rebuilt_schema({"type": "object", "properties": {"x": {"type": "array", "items": BRANCHES}}}))
)


# Contents of an engine's answer to a request for a completion, and for its models.
FROM_ENGINE: dict[str, Callable[[str], str]] = {
    "a stream": lambda text: f"data: {text}\n\n",
    "events": lambda text: "data: " + text.replace("}", "}\n\ndata: "),
    "a choice": lambda text: f'data: {{"choices": [{text}]}}\n\n',
    "a delta": lambda text: f'data: {{"choices": [{{"delta": {{"content": {json.dumps(text)}}}}}]}}\n\n',
    "a completion": lambda text: f'{{"choices": [{text}',
    "a list of models": lambda text: f'{{"data": [{text}]}}',
}


def held_s(content: str, status: int) -> float:
    """The longest CPU time for which the loop serves nobody else while an answer of an engine is read."""
    longest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s
        while True:
            began_s = time.process_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.process_time() - began_s)

    async def read() -> None:
        sent = content.encode(errors="replace")
        transport = httpx.MockTransport(lambda _: httpx.Response(status, content=sent))
        engines = Engines([EngineSpec(url="http://engine")], transport=transport)
        ticking = asyncio.create_task(tick())
        await read_by_agent(engines)
        await engines.probe()
        ticking.cancel()

    asyncio.run(read())
    return longest_s


ON_LOOP: dict[str, Callable[[str], object]] = {
    **{
        form: lambda text, form=form: normalise(text, form, ())
        for form in ("text", "number", "choice", "json", "exact")
    },
    "an option": lambda text: normalise(text, "choice", OPTIONS),
    "a recorded answer": lambda text: parse_output(ANSWER, text),
    "a recorded answer of a schema": lambda text: parse_output(OF_BRANCHES, f'{{"answer": {{"x": [{text}]}}}}'),
    "a recorded ballot": lambda text: parse_output(SCORE, text),
    "a fence": lambda text: fence(text, "0123456789ab"),
    "a fact": lambda text: decode(text.encode(errors="replace")),
    "a cursor": lambda text: parse_cursor(text, "after"),
    "a URL": lambda text: parsed(f"https://{text}"),
    "a body": lambda text: parsed_body(text.encode(errors="replace"), DeliberationRequest),
    "a council": lambda text: parsed_body(
        f'{{"task": "t", "agents": [{text}]}}'.encode(errors="replace"), DeliberationRequest
    ),
    "a schema": lambda text: rebuilt_schema(
        {"type": "object", "required": [text], "properties": {text: {"enum": [text]}}}
    ),
}
OFF_LOOP: dict[str, Callable[[str], object]] = {
    "an answer": lambda text: read_output(ANSWER, text),
    "an answer in an object": lambda text: read_output(ANSWER, json.dumps({"x": text, "answer": text})),
    "an answer of a schema": lambda text: read_output(OF_BRANCHES, f'{{"answer": {{"x": [{text}1]}}}}'),
    "a ballot": lambda text: read_output(SCORE, text),
    "objects": objects,
    "mended": mended,
    "reasoning": reasoning,
}
REFUSALS = (DeliberationError, UnfitUrl, SchemaRefused, ValueError)


def seconds(parser: Callable[[str], object], text: str) -> float:
    began_s = time.process_time()
    try:
        parser(text)
    except REFUSALS:
        pass
    finally:
        normalise.cache_clear()
    return time.process_time() - began_s


def at_best(parser: Callable[[str], object], text: str, enough_s: float, tries: int = 5) -> float:
    """The least time of some tries, or the first one that is short enough: others work on this machine too."""
    least_s = seconds(parser, text)
    for _ in range(tries):
        if least_s <= enough_s:
            break
        least_s = min(least_s, seconds(parser, text))
    return least_s


@pytest.mark.parametrize("name", [*ON_LOOP, *OFF_LOOP])
def test_fourfold_text_takes_fourfold_time_at_most(name: str, record_property: Callable[[str, object], None]) -> None:
    parser, worst = {**ON_LOOP, **OFF_LOOP}[name], (0.0, "")
    for atom in ATOMS:
        small, large = (atom * (chars // len(atom)) + "\x00" for chars in (BYTES // 8, BYTES // 2))
        small_s = max(MEASURABLE_S, min(seconds(parser, small) for _ in range(2)))
        large_s = at_best(parser, large, FOURFOLD_MAX * small_s)
        worst = max(worst, (large_s / small_s, atom))
    record_property("time for fourfold text", f"{worst[0]:.1f} ({worst[1]!r})")
    assert worst[0] <= FOURFOLD_MAX, worst


def inputs(chance: random.Random) -> str:
    """Up to three atoms in some proportion, repeated, within some beginning and end."""
    piece = "".join(atom * chance.choice((1, 1, 1, 2, 7)) for atom in chance.sample(ATOMS, chance.randint(1, 3)))
    begin, end = (
        chance.choice(("", "", '{"answer": "', "[", '{"x": [', "<think>")),
        chance.choice(("", "", '"}', "]", "1")),
    )
    return begin + piece * (BYTES // len(piece.encode(errors="surrogatepass"))) + end


@pytest.mark.parametrize("name", ON_LOOP)
def test_no_text_of_100_kb_holds_an_event_loop_up(name: str, record_property: Callable[[str, object], None]) -> None:
    chance, worst = random.Random(name), (0.0, "")
    for _ in range(60):
        text = inputs(chance)
        worst = max(worst, (at_best(ON_LOOP[name], text, ON_LOOP_WITHIN_S), text[:60]))
    record_property("slowest text ms", f"{worst[0] * 1_000:.0f} ({worst[1]!r})")
    assert worst[0] <= ON_LOOP_WITHIN_S, worst


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("name", FROM_ENGINE)
def test_no_reply_of_100_kb_holds_an_event_loop_up(
    name: str, status: int, record_property: Callable[[str, object], None]
) -> None:
    chance, worst = random.Random(name), (0.0, "")
    for _ in range(60):
        text = inputs(chance)
        content = FROM_ENGINE[name](text)
        worst = max(worst, (min(held_s(content, status) for _ in range(2)), text[:60]))
    record_property("slowest text ms", f"{worst[0] * 1_000:.0f} ({worst[1]!r})")
    assert worst[0] <= ON_LOOP_WITHIN_S, worst


@pytest.mark.parametrize("name", OFF_LOOP)
def test_a_reply_is_read_soon_and_a_short_one_at_once(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    chance, longest, shorter = random.Random(name), (0.0, ""), (0.0, "")
    for _ in range(60):
        text = inputs(chance)
        longest = max(longest, (at_best(OFF_LOOP[name], text, READ_WITHIN_S), text[:60]))
        if "schema" not in name:
            short = text[:ON_LOOP_CHARS_MAX]
            shorter = max(shorter, (at_best(OFF_LOOP[name], short, ON_LOOP_WITHIN_S), short[:60]))
    record_property("slowest text ms", f"{longest[0] * 1_000:.0f} ({longest[1]!r})")
    assert longest[0] <= READ_WITHIN_S, longest
    assert shorter[0] <= ON_LOOP_WITHIN_S, shorter
