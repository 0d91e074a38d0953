import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Accepted, Completed, Fact
from app.deliberation.fold import fold, usage
from app.facades.moments import Moment, Telling
from app.facades.outcomes import NoVerdict, answers
from app.facades.responses.writer import ResponseResource, ResponseWriter, resource_of
from tests.components.facades.moments_of import told, with_uses
from tests.components.facades.response_events import events
from tests.unit.strategies.stories import STORIES, story

OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def detailed(name: str) -> list[Fact]:
    first, *others = story(name)
    assert isinstance(first, Accepted)
    return [first.model_copy(update={"asked": {"responses": {"reasoning": {"summary": "detailed"}}}}), *others]


def frames(moments: list[Moment], after: int = -1) -> list[bytes]:
    writer = ResponseWriter("request", after)
    return [frame for moment in moments for frame in writer.write(moment)]


def resource(facts: list[Fact]) -> ResponseResource:
    moments = told(facts)
    assert moments[-1].state is not None
    return resource_of(moments, moments[-1].state)


@pytest.mark.parametrize("name", STORIES)
def test_events_are_numbered_from_0_and_resume_after_any_of_them(name: str) -> None:
    moments = told(detailed(name))
    whole = frames(moments)
    assert [event["sequence_number"] for event in events(whole)] == [*range(len(whole) - 1)]
    for after in (-1, 0, len(whole) // 3, len(whole) - 3, len(whole) - 2):
        assert frames(moments, after) == whole[after + 1 :]


@pytest.mark.parametrize("name", STORIES)
def test_events_and_response_are_those_of_openais_client(name: str) -> None:
    """Its types are closed unions; a code of ours is none of theirs, and their client takes any."""
    for event in events(frames(told(detailed(name)))):
        if event["type"] == "error" or (event.get("response") or {}).get("error"):
            continue
        parsed = OFFICIAL.validate_python(event)
        assert parsed.type == event["type"]
    found = resource(detailed(name)).model_dump(mode="json")
    if found["error"] is None:
        assert Response.model_validate(found).id == found["id"]


@pytest.mark.parametrize("name", STORIES)
def test_a_client_that_gathers_the_events_has_the_response(name: str) -> None:
    output: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for event in events(frames(told(detailed(name)))):
        place: int = event.get("output_index", -1)
        item: dict[str, Any] = output[place] if 0 <= place < len(output) else {}
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(output)
                output.append(event["item"])
            case "response.reasoning_summary_part.added":
                assert event["summary_index"] == len(item["summary"]) and item["id"] == event["item_id"]
                item["summary"].append(event["part"])
            case "response.reasoning_summary_text.delta":
                item["summary"][event["summary_index"]]["text"] += event["delta"]
            case "response.content_part.added":
                item["content"].append(event["part"])
            case "response.output_text.delta":
                item["content"][event["content_index"]]["text"] += event["delta"]
            case "response.output_text.annotation.added":
                item["content"][event["content_index"]]["annotations"].append(event["annotation"])
            case "response.output_item.done":
                item["status"] = event["item"]["status"]
                assert item == event["item"]
            case _ if "response" in event:
                last = event["response"]
            case _:
                pass
    assert last["output"] == output
    assert last == resource(detailed(name)).model_dump(mode="json")
    assert "in_progress" not in [item["status"] for item in output]


@pytest.mark.parametrize("name", STORIES)
def test_the_response_is_the_deliberations_outcome(name: str) -> None:
    state = fold(enumerate(detailed(name), start=1))
    assert state is not None and state.end is not None
    found = resource(detailed(name)).model_dump(mode="json")
    messages = [item for item in found["output"] if item["type"] == "message"]
    try:
        assert [part["text"] for item in messages for part in item["content"]] == [*answers(state)]
        assert found["status"] == "completed" and found["error"] is None
    except NoVerdict as none:
        assert messages == [] and found["status"] in ("failed", "cancelled")
        assert found["error"] is None or found["error"]["code"] == none.problem.code
    assert sum(item["type"] == "reasoning" for item in found["output"]) == len(state.stages)
    spent = found["usage"]
    assert spent["calls"] == sum(each["calls"] for each in spent["by_agent"]) == usage(state).calls
    assert spent["input_tokens"] == sum(each["prompt_tokens"] for each in spent["by_stage"])
    assert 0 <= spent["output_tokens_details"]["reasoning_tokens"] <= spent["output_tokens"]
    notes = [note["title"] for item in messages for note in item["content"][0]["annotations"]]
    verdict, degraded = state.end.verdict, state.end.degraded
    if isinstance(state.end, Completed) and verdict is not None and messages:
        shortcomings = () if degraded is None else (*degraded.reasons, *degraded.cut)
        assert len(notes) == (len(verdict.dissent) + len(shortcomings)) * len(messages)


def test_a_summary_of_stages_alone_says_nothing_of_members_work() -> None:
    short, whole = (
        json.dumps([item for item in resource(facts).output if item["type"] == "reasoning"])
        for facts in (story("council, all revise: completed"), detailed("council, all revise: completed"))
    )
    assert "dev-001, critique" in whole and "dev-001, critique" not in short and "Asked: " in short


@pytest.mark.parametrize("name", ["council, all revise: completed", "vote, all differ: completed"])
def test_an_interruption_ends_the_stream_with_an_error_and_takes_no_number(name: str) -> None:
    facts = detailed(name)
    whole = events(frames(told(facts)))
    for length in range(1, len(facts)):
        telling = Telling()
        content = frames([*told(facts[:length], telling), *telling.interrupted(JournalUnavailable("the log is away"))])
        *before, error = events(content)
        assert before == whole[: len(before)]
        assert (error["type"], error["error"]["code"]) == ("error", "journal_unavailable")
        assert error["sequence_number"] == before[-1]["sequence_number"]


def test_a_use_of_a_tool_is_a_call_of_mcp_beside_its_stage() -> None:
    facts = with_uses(detailed("single: completed"))
    found = events(frames(told(facts)))
    kinds = [OFFICIAL.validate_python(each).type for each in found]
    assert kinds.count("response.mcp_call.completed") == kinds.count("response.mcp_call.failed") == 1
    done = [each["item"] for each in found if each["type"] == "response.output_item.done"]
    first, second = [item for item in done if item["type"] == "mcp_call"]
    assert (first["server_label"], first["name"], first["arguments"]) == ("shelf", "look_up", '{"word": "life"}')
    assert (first["output"], first["error"], first["status"]) == ("life is forty-two", None, "completed")
    assert (second["output"], second["status"]) == (None, "failed")
    assert second["error"]["content"] == "timeout: no result within 2 s"
    output = resource(facts).model_dump(mode="json")["output"]
    assert [Response.model_validate(resource(facts).model_dump(mode="json")).output[at].type for at in (0, 1, 2)] == [
        "reasoning",
        "mcp_call",
        "mcp_call",
    ]
    bare = resource(detailed("single: completed")).model_dump(mode="json")["output"]
    assert [item for item in output if item["type"] != "mcp_call"] == bare, "the stages and the message stay"
    by_index = {each["output_index"]: each["item"] for each in found if each["type"] == "response.output_item.done"}
    assert [by_index[at] for at in range(len(output))] == output
