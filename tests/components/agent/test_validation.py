import json
import time

import pytest

from app.deliberation.calls import Usage
from app.deliberation.errors import InvalidOutput
from serve_deployments.agent.validation import valid_reply
from serve_deployments.engine.replies import EngineReply
from tests.integration.agent.test_agent_replica import ANSWER, call

OTHER = json.dumps({"reasoning": "r", "answer": "forty-three", "confidence": 10})
WITHIN = {
    "a fence": f"```json\n{ANSWER}\n```",
    "words around": f"Here you are:\n{ANSWER}\nI hope that it helps.",
    "a thought": f"<think>{{maybe}} {{so}} {{}}</think>\n{ANSWER}",
    "a draft": f"First I thought {OTHER}, but now: {ANSWER}",
    "another object after it": f"{ANSWER}\n{{}}",
}
WITHOUT = {
    "prose": "The answer is forty-two.",
    "a broken object": ANSWER[:-5] + " and so on",
    "an object within another": f'{{"draft": {ANSWER}}} is the answer',
    "another form": 'Well: {"answer": "forty-two"}',
    "braces": "{" * 100_000,
    "depth": '{"a":' * 20_000,
}


def validated(text: str, finish: str = "stop") -> tuple[str | None, int]:
    ignored: list[EngineReply] = []
    reply = EngineReply(text, finish, Usage(), None, "json_schema")
    try:
        return valid_reply(call(), reply, ignored.append).text, len(ignored)
    except InvalidOutput:
        return None, len(ignored)


def test_a_bare_object_is_the_answer() -> None:
    assert validated(ANSWER) == (ANSWER, 0)


@pytest.mark.parametrize("text", WITHIN.values(), ids=WITHIN)
def test_the_object_within_a_text_is_the_answer_and_the_engine_ignored_the_form(text: str) -> None:
    assert validated(text) == (ANSWER, 1)


@pytest.mark.parametrize("text", WITHOUT.values(), ids=WITHOUT)
def test_a_text_without_a_whole_answer_is_invalid(text: str) -> None:
    began_s = time.process_time()
    assert validated(text) == (None, 1)
    assert time.process_time() - began_s < 1, "no text costs long"


def test_json_that_breaks_the_schema_says_nothing_about_the_engine() -> None:
    assert validated('{"answer": "forty-two"}') == (None, 0)
    assert validated(ANSWER[:20], "length") == (None, 0), "cut off"
    assert validated(" \n") == (None, 0), "no text at all"
