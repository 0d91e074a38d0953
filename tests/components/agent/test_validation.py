"""Replies taken from public bug reports, and their right value."""

import asyncio
import json
import re
from typing import Any

import pytest

from app.deliberation.calls import Call, Usage
from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import Output
from serve_deployments.agent.validation import ON_LOOP_CHARS_MAX, valid_reply
from serve_deployments.engine.replies import EngineReply, Meter, StreamedChoice
from tests.integration.agent.scripted_engine import ANSWER
from tests.integration.agent.stage_runs import call
from tests.integration.engine.raw_engine import RECORDED

PLAIN = {"reasoning": "r", "answer": "42", "confidence": 90}
RIGHT: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "1a": (PLAIN, ("thinking",)),
    "9": ({"reasoning": "a\nb", "answer": "x = 1\n\ty = 2", "confidence": 90}, ("control_characters",)),
    "13a": (PLAIN, ("confidence",)),
    "13b": (PLAIN, ("confidence",)),
    "13e": (PLAIN, ("extra_fields",)),
    "13f": (PLAIN, ("text",)),
    "13g": ({**PLAIN, "answer": '{"x": 1}'}, ("json",)),
    "15": (PLAIN, ()),
    "16a": (PLAIN, ()),
}


def reply_of(case: str, number: int = 0) -> EngineReply:
    text, finish = "", ""
    for data in re.findall(r"^data: (\{.*\})$", "".join(RECORDED[case]["replies"][number]["pieces"]), re.MULTILINE):
        choice = json.loads(data)["choices"][0]
        content = choice["delta"].get("content")
        text += content if isinstance(content, str) else ""
        finish = choice.get("finish_reason") or finish
    return EngineReply(text, finish, Usage(), None, "json_schema")


@pytest.mark.parametrize("case", RIGHT)
async def test_a_reply_that_holds_an_answer_is_one(case: str) -> None:
    valid = await valid_reply(call(), reply_of(case))
    assert (json.loads(valid.text), valid.lenient) == RIGHT[case]


async def test_the_case_of_endless_blanks_was_cut_off() -> None:
    assert reply_of("15").finish_reason == "length"
    with pytest.raises(InvalidOutput, match=r"cut off at its limit of [\d,]+ tokens; raise that limit"):
        cut = StreamedChoice(call(), "trace", None, Meter(call()), texts=[ANSWER[:20]], finish_reason="length")
        await valid_reply(call(), cut.reply(None))


@pytest.mark.parametrize(("number", "quoted"), [(0, '"{\\"reasoning\\":\\"abc"'), (1, '"I cannot help with that."')])
async def test_cut_json_and_a_refusal_are_invalid_and_quoted(number: int, quoted: str) -> None:
    with pytest.raises(InvalidOutput) as fault:
        await valid_reply(call(), reply_of("7", number))
    assert f"the reply begins {quoted}" in str(fault.value)


def judge() -> Call:
    output = Output(kind="score", labels=("A", "B", "C"), criteria=("correctness", "clarity"))
    return call().model_copy(update={"output": output})


def ballot(score: object, *criteria: str) -> EngineReply:
    entries = [{"id": each, "rationale": "x", "score": score} for each in criteria or ("correctness", "clarity")]
    text = json.dumps({label: {"criteria": entries} for label in "ABC"})
    return EngineReply(text, "stop", Usage(), None, "prompt")


@pytest.mark.parametrize(("case", "score"), [("13h", 8.5), ("13i", "8"), ("13j", "8/10"), ("13k", 11)])
async def test_a_score_that_is_none_names_its_place(case: str, score: object) -> None:
    assert RECORDED[case]["right"] == "such a score is invalid, with the reason"
    with pytest.raises(InvalidOutput, match=r"^A\.criteria\.0\.score: Input should be "):
        await valid_reply(judge(), ballot(score))


async def test_criteria_in_another_order_or_spelling_are_the_same() -> None:
    assert RECORDED["24a"]["client"].endswith("each judge names the criteria in another order than asked")
    asked, swapped = ballot(8), ballot(8, "clarity", "correctness")
    valid = await valid_reply(judge(), swapped)
    assert (json.loads(valid.text), valid.lenient) == (json.loads(asked.text), ("order",))
    spelt = await valid_reply(judge(), ballot(8, "Correctness", " clarity"))
    assert (json.loads(spelt.text), spelt.lenient) == (json.loads(asked.text), ("spelling",))


@pytest.mark.parametrize("long", [True, False])
async def test_a_long_text_is_read_while_the_event_loop_goes_on(long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop: list[bool] = []

    def read(*_: Any, **__: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            on_loop.append(False)
        else:
            on_loop.append(True)
        raise InvalidOutput("x")

    monkeypatch.setattr("serve_deployments.agent.validation.read_output", read)
    schema = Output(kind="answer").with_answers_of(json.dumps({"type": "object"}))
    for output, text in ((Output(kind="answer"), "x" * (ON_LOOP_CHARS_MAX + long)), (schema, "{}")):
        with pytest.raises(InvalidOutput):
            asked = call().model_copy(update={"output": output})
            await valid_reply(asked, EngineReply(text, "stop", Usage(), None))
    assert on_loop == [not long, False]
