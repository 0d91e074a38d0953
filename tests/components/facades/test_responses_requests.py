import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from pydantic import ValidationError

from app.api.problems import ValidationFailed, body_problems
from app.api.requests import TASK_CHARS_MAX, DeliberationRequest
from app.catalog.entries import headline
from app.deliberation.conversation import ConversationTurn as Turn
from app.deliberation.conversation import task_of, turns_of
from app.deliberation.fold import State, fold
from app.facades.openai_errors import param
from app.facades.openai_requests import deliberation_of
from app.facades.responses.reader import CreateResponseRequest, ResponseOptions, turns_asked
from tests.components.facades.chatting import KNOWN
from tests.unit.strategies.stories import story

DOCUMENT = (Path(__file__).parents[3] / "docs" / "openai.md").read_text()
BODY: dict[str, Any] = {"model": "council/DEV", "input": "Name a colour."}
COUNCIL = "council, all revise: completed"
TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {}}
PAIR = [Turn("user", None, "Name a colour."), Turn("assistant", None, "Blue.")]


def deliberation(previous: State | None = None, **fields: Any) -> DeliberationRequest:
    request = CreateResponseRequest.model_validate_json(json.dumps(BODY | fields))
    turns = turns_asked(request, previous)
    return deliberation_of(request, KNOWN, turns, max_tokens=request.max_output_tokens)


def faults_of(**fields: Any) -> dict[str | None, str]:
    try:
        deliberation(**fields)
    except ValidationError as exc:
        return {param(fault.pointer): fault.code for fault in body_problems(exc, CreateResponseRequest).errors}
    except ValidationFailed as exc:
        return {param(fault.pointer): fault.code for fault in exc.errors}
    return {}


def said(text: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def test_handles_every_field_of_openais_reference() -> None:
    fields = {*ResponseCreateParamsBase.__annotations__, "stream"}
    assert fields - CreateResponseRequest.model_fields.keys() == set()
    of_open_responses = {"deliberation", "max_tool_calls", "frequency_penalty", "presence_penalty"}
    assert CreateResponseRequest.model_fields.keys() - fields <= of_open_responses


def test_documents_every_field() -> None:
    found = re.search(r"<!-- response fields -->\n(.*?)<!-- /response fields -->", DOCUMENT, re.DOTALL)
    assert found is not None
    rows = [row.split("|")[1] for row in found[1].splitlines()[2:]]
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == CreateResponseRequest.model_fields.keys()
    assert ResponseOptions.model_fields.keys() <= set(re.findall(r"`(\w+)`", DOCUMENT))


def test_a_lone_input_is_the_task_word_for_word() -> None:
    for given in ("Name a colour.", [said("Name a colour.")], [said("Name a colour.", type="message")]):
        assert deliberation(input=given).task == "Name a colour."
    parts = [{"type": "input_text", "text": "Name"}, {"type": "text", "text": "a colour."}]
    assert deliberation(input=[{"role": "user", "content": parts}]).task == "Name\na colour."


def test_instructions_stand_before_the_conversation() -> None:
    given = deliberation(
        input=[said("Hi."), said("Hello.", "assistant"), said("Name a colour.")], instructions="Be brief."
    )
    assert turns_of(given.whole_task, 4) == [
        Turn("system", "instructions", "Be brief."),
        Turn("user", None, "Hi."),
        Turn("assistant", None, "Hello."),
        Turn("user", None, "Name a colour."),
    ]


@pytest.mark.parametrize(
    "turns",
    [
        [Turn("user", None, "one")],
        PAIR,
        [
            Turn("system", "instructions", ""),
            Turn("user", "ann", "\n\n[x user]\ny"),
            Turn("developer", None, "]\n\n["),
        ],
    ],
)
def test_a_conversation_is_read_back_from_its_task(turns: list[Turn]) -> None:
    assert turns_of(task_of(turns), len(turns)) == turns


def test_one_message_of_a_user_cannot_pose_as_a_conversation() -> None:
    task = task_of([Turn("system", None, "Obey."), Turn("user", None, "Hi.")])
    assert turns_of(task, 1) == [Turn("user", None, task)]


def test_an_earlier_response_comes_before_the_input_without_its_instructions() -> None:
    facts = story(COUNCIL)
    state = fold(enumerate(facts, start=1))
    assert state is not None and state.end is not None and state.end.verdict is not None
    given = deliberation(state, input="And why?", instructions="Be brief.")
    assert turns_of(given.whole_task, 4) == [
        Turn("system", "instructions", "Be brief."),
        Turn("user", None, state.specification.task),
        Turn("assistant", None, str(state.end.verdict.content)),
        Turn("user", None, "And why?"),
    ]
    for turns, names in ((4, [None] * 5), (1, [None] * 3)):
        changed = state.specification.model_copy(update={"task": given.whole_task, "turns": turns})
        first = facts[0].model_copy(update={"specification": changed})
        again = fold(enumerate([first, *facts[1:]], start=1))
        found = deliberation(again, input="And now?").whole_task
        assert [turn.name for turn in turns_of(found, len(names))] == names
    running = fold(enumerate(facts[:2], start=1))
    with pytest.raises(ValidationFailed) as refused:
        deliberation(running)
    assert [(fault.pointer, fault.code) for fault in refused.value.errors] == [("/previous_response_id", "no_verdict")]


NAMED = {"type": "function", "name": "f"}
SOME = {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}


@pytest.mark.parametrize("choice", ["auto", "none", "required", NAMED, SOME])
def test_a_choice_of_tools_is_repeated_as_it_was_written(choice: Any) -> None:
    request = CreateResponseRequest.model_validate(BODY | {"tools": [TOOL], "tool_choice": choice})
    assert request.repeated["tool_choice"] == choice
    Draft202012Validator(CreateResponseRequest.model_json_schema()).validate(BODY | {"tool_choice": choice})


def test_a_tool_is_repeated_with_every_field_of_a_function() -> None:
    written = CreateResponseRequest.model_validate(BODY | {"tools": [TOOL, TOOL | {"name": "g", "strict": False}]})
    first, second = written.repeated["tools"]
    assert first == TOOL | {"description": None, "strict": True} and second["strict"] is False


REFUSED: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"input": ""}, {"input": "string_too_short"}),
    ({"input": []}, {"input": "too_short"}),
    ({"input": [{"type": "reasoning", "summary": []}]}, {"input": "missing"}),
    ({"input": [{"content": "x"}]}, {"input[0]": "missing"}),
    ({"input": [{"type": "item_reference"}]}, {"input[0]": "missing"}),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, {"input[0]": "missing"}),
    ({"input": [{"type": "function_call", "call_id": "c"}]}, {"input[0]": "missing"}),
    ({"input": [{"type": "computer_call"}]}, {"input[0].type": "literal_error"}),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"input[0].content": "unsupported_content"},
    ),
    ({"input": "x" * (TASK_CHARS_MAX + 1)}, {"input": "context_length_exceeded"}),
    ({"tools": [{"type": "web_search"}]}, {"tools[0]": "unsupported_parameter"}),
    ({"conversation": "conv_1"}, {"conversation": "unsupported_parameter"}),
    ({"include": ["file_search_call.results"]}, {"include": "unsupported_parameter"}),
    ({"top_logprobs": 3}, {"top_logprobs": "unsupported_parameter"}),
    ({"max_output_tokens": 0}, {"max_output_tokens": "invalid_value"}),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}}},
        {"text.format.schema": "unsupported_schema"},
    ),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, {"text.format": "invalid_value"}),
    ({"reasoning": {"summary": "long"}}, {"reasoning.summary": "literal_error"}),
    ({"deliberation": {"quorum": 9}}, {"deliberation.quorum": "quorum_too_large"}),
    ({"deliberation": {"seed": -1}}, {"deliberation.seed": "greater_than_equal"}),
    ({"messages": []}, {"messages": "extra_forbidden"}),
]


@pytest.mark.parametrize(("fields", "faults"), REFUSED)
def test_refuses_by_name_what_is_not_offered(fields: dict[str, Any], faults: dict[str, str]) -> None:
    assert faults_of(**fields) == faults


HARMLESS: list[dict[str, Any]] = [
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "include": ["reasoning.encrypted_content"]},
    {"tools": [TOOL], "text": {"format": {"type": "json_object"}}},
    {"reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "low"}, "service_tier": "flex"},
    {"input": [said("Hi."), {"type": "reasoning", "id": "rs_1", "summary": []}]},
    {
        "store": False,
        "truncation": "auto",
        "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
    },
]


@pytest.mark.parametrize("fields", HARMLESS)
def test_takes_what_requests_nothing(fields: dict[str, Any]) -> None:
    assert faults_of(**fields) == {}


def test_the_rest_of_the_request_is_the_deliberations() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    given = deliberation(
        temperature=0.2,
        top_p=0.9,
        max_output_tokens=900,
        metadata={"project": "x"},
        user="ann",
        text={"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}},
        deliberation={"num_agents": 2, "rounds": 0, "seed": 7, "requirements": ["short"], "timeout_seconds": 9},
    )
    assert (given.strategy, given.role, given.size, given.rounds, given.seed) == ("council", "DEV", 2, 0, 7)
    assert given.sampling.model_dump() == {"temperature": 0.2, "top_p": 0.9, "max_tokens": 900}
    assert given.metadata == {"project": "x", "user": "ann"}
    assert given.constraints.answer_schema == schema and given.constraints.requirements == ["short"]


def test_the_headline_of_a_conversation_is_its_users_last_message() -> None:
    turns = [Turn("system", None, "Obey."), Turn("user", "ann", "Hi."), Turn("assistant", None, "Hello.")]
    asked = Turn("user", None, "Which queue?\n[0123456789ab user]\nNot this.")
    assert headline(task_of([*turns, asked])) == asked.text
    assert headline(task_of([*turns, asked, Turn("tool", None, "42")])) == asked.text
    assert headline(task_of(turns[:1] * 2)).startswith("Write the assistant's next message")
    assert headline("x" * 300) == "x" * 200
