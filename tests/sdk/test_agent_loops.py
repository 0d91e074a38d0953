"""Loops of frameworks that nobody here wrote: each turn of the model is a vote of three members."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sdk import build
from tests.sdk.conftest import json_of
from tests.sdk.recorder import Recorded, Recorder

pytestmark = pytest.mark.sdk

LOOPS = Path(__file__).parent / "clients" / "loops"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
# The simulator calls what a line spells out, a line at a time; then it replies.
TASK = """Compute line by line, then say that all is done.
add({"a": 1, "b": 2})
multiply({"a": 3, "b": 4})
divide({"a": 1, "b": 0})
add({"a": 5, "b": 6}) multiply({"a": 7, "b": 8})"""
SINGLE, PARALLEL = [["add", 1, 2], ["multiply", 3, 4], ["divide", 1, 0]], [["add", 5, 6], ["multiply", 7, 8]]
TURNS = 5
WHOLE_AND_STREAMED = {"chat", "chat, streamed"}
OF_BOTH_APIS = {*WHOLE_AND_STREAMED, "responses", "responses, streamed"}
# By program: the environment that has the framework, and its loops.
PROGRAMS = {
    "ag2_loops.py": ("venv", OF_BOTH_APIS),
    "ai_sdk_loops.mjs": ("node", OF_BOTH_APIS),
    "haystack_loops.py": ("venv", OF_BOTH_APIS),
    "langgraph_loops.py": ("venv", {*OF_BOTH_APIS, "chat by LangChain", "responses by LangChain, streamed"}),
    "llama_index_loops.py": ("venv-openai2", OF_BOTH_APIS),
    "openai_agents_loops.py": ("venv", {*OF_BOTH_APIS, "responses after their previous ones"}),
    "pydantic_ai_loops.py": ("venv", OF_BOTH_APIS),
    "smolagents_loops.py": ("venv", WHOLE_AND_STREAMED),
    "strands_loops.py": ("venv-openai2", {"chat, streamed", "responses, streamed"}),
}

# Magentic's chain calls one tool at a time, and an exception of a tool ends it.
CHAIN = """Compute line by line, then say that all is done.
add({"a": 1, "b": 2})
multiply({"a": 3, "b": 4})
add({"a": 5, "b": 6})
multiply({"a": 7, "b": 8})"""

# An answer of a schema is a reply, or a call of a tool that the framework adds and calls `Sum` or `final_result`.
SUM_TASK = """Compute the sum.
add({"a": 1, "b": 2})
Sum({"value": 3, "words": "three"})
final_result({"value": 3, "words": "three"})"""
STRUCTURED = {
    "structured.py": ("venv", 13),
    "structured_openai2.py": ("venv-openai2", 10),
    "structured.mjs": ("node", 4),
}


async def loops_of(program: str, environment: str, *arguments: str) -> dict[str, Any]:
    """What the program's loops called and answered, by name."""
    if environment == "node":
        script = (LOOPS / program).read_text()
        return await json_of([build.NODE, "--input-type=module", "--eval", script, *arguments])
    return await json_of([build.python(environment), "-W", "ignore", LOOPS / program, *arguments])


def check_turns(name: str, requests: Sequence[Recorded]) -> list[dict[str, Any]]:
    """The bodies of a loop's requests, each of which was a deliberation, by the API and in the way that it names."""
    bodies = [json.loads(request.body) for request in requests]
    assert {(request.path, request.status) for request in requests} == {(PATHS[name.partition(",")[0].split()[0]], 200)}
    assert {body.get("stream") or False for body in bodies} == {"streamed" in name}, name
    assert {body["model"] for body in bodies} == {"vote/DEV"}
    return bodies


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_loop_goes_on_through_errors_and_parallel_calls_to_its_end(
    quick_url: str, recorder: Recorder, program: str
) -> None:
    environment, names = PROGRAMS[program]
    before = len(recorder.requests)
    loops = await loops_of(program, environment, quick_url, TASK)
    requests = recorder.requests[before:]
    assert loops.keys() == names and len(requests) == TURNS * len(loops)
    for place, (name, loop) in enumerate(loops.items()):
        assert loop["called"][:3] == SINGLE and sorted(loop["called"][3:]) == PARALLEL, name
        assert isinstance(loop["answer"], str) and loop["answer"].strip(), name
        bodies = check_turns(name, requests[TURNS * place : TURNS * (place + 1)])
        # What the tools returned: the error of the division in the framework's words, and the last product.
        told = [json.dumps(body).lower() for body in bodies]
        assert any(word in told[3] and word not in told[2] for word in ("zero", "error")), name
        assert "56" in told[4], name


async def test_a_chain_of_magentic_goes_to_its_end(quick_url: str, recorder: Recorder) -> None:
    before = len(recorder.requests)
    (loop,) = (await loops_of("magentic_loops.py", "venv", quick_url, CHAIN)).values()
    assert loop["called"] == [*SINGLE[:2], *PARALLEL] and loop["answer"].strip()
    assert len(check_turns("chat, streamed", recorder.requests[before:])) == TURNS


@pytest.mark.parametrize("program", STRUCTURED)
async def test_an_answer_of_a_schema_ends_a_loop(quick_url: str, recorder: Recorder, program: str) -> None:
    environment, count = STRUCTURED[program]
    before = len(recorder.requests)
    loops = await loops_of(program, environment, quick_url, SUM_TASK)
    assert len(loops) == count
    for name, loop in loops.items():
        assert loop["called"] == ([] if "without a loop" in name else [["add", 1, 2]]), name
        value, words = loop["answer"]["value"], loop["answer"]["words"]
        assert isinstance(value, int) and words, name
        assert "by a tool" not in name or "streamed" in name or (value, words) == (3, "three"), name
    assert {request.status for request in recorder.requests[before:]} == {200}
