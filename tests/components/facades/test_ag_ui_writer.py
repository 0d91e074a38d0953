"""Runs of every strategy, in every way that a deliberation may go and end, as the official package reads them."""

import pytest
from pydantic_core import from_json

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Accepted, Fact
from app.deliberation.fold import fold, usage
from app.facades.ag_ui.reader import RunAgentInput
from app.facades.ag_ui.writer import AgUiWriter
from app.facades.moments import Moment, Telling
from app.facades.outcomes import NoVerdict, answers
from tests.components.facades.ag_ui_client import OFFICIAL, Events, client_of
from tests.components.facades.moments_of import told, with_uses
from tests.unit.facts_of import ID
from tests.unit.strategies.stories import STORIES, story

GIVEN = RunAgentInput.model_validate({"threadId": "t", "runId": "r", "messages": [], "state": {"kept": 1}})


def asked(name: str) -> list[Fact]:
    first, *others = story(name)
    assert isinstance(first, Accepted)
    return [first.model_copy(update={"asked": {"ag_ui": {"run_id": "r", "messages": ["m1"]}}}), *others]


def events(moments: list[Moment], behind: int = 0) -> Events:
    writer = AgUiWriter(GIVEN, "request", behind)
    frames = [frame for moment in moments for frame in writer.write(moment)]
    assert all(frame.startswith(b"data: ") and frame.endswith(b"\n\n") and frame.count(b"\n") == 2 for frame in frames)
    found = [from_json(frame.removeprefix(b"data: ")) for frame in frames]
    for event in found:
        assert not (OFFICIAL.validate_python(event).model_extra or {}), event
    return found


@pytest.mark.parametrize("name", STORIES)
def test_a_run_closes_every_part_and_ends_once_by_its_outcome(name: str) -> None:
    facts = asked(name)
    found, state = events(told(facts)), fold(enumerate(facts, start=1))
    assert state is not None and state.end is not None
    client = client_of(found)
    assert client.open == set() and found[0]["type"] == "RUN_STARTED" and found[0]["runId"] == "r"
    assert client.activity["status"] == state.status and len(client.activity["stages"]) == len(state.stages)
    assert client.state == {"kept": 1, "deliberation": {"id": ID, "href": f"/deliberations/{ID}"}}
    last, spent = found[-1], usage(state)
    assert sum(each["totalTokens"] for each in last["usage"]) == spent.tokens
    said = [each["content"] for each in client.messages.values() if each["id"].startswith(f"{ID}.verdict")]
    if state.status == "cancelled":
        assert (last["outcome"], said) == ({"type": "cancelled"}, [])
        return
    try:
        assert said == [*answers(state)] and last["outcome"] == {"type": "success"}
        assert state.end.verdict is not None and last["result"]["winner"] == state.end.verdict.winner
        ranked = [each.agent_id for each in state.end.verdict.ranking]
        assert [each["agent_id"] for each in client.activity["ranking"]] == ranked
    except NoVerdict as none:
        assert (last["type"], last["code"], said) == ("RUN_ERROR", none.problem.code, [])


@pytest.mark.parametrize("name", STORIES)
def test_a_client_that_joins_after_any_fact_has_what_the_first_one_has(name: str) -> None:
    facts = asked(name)
    moments = told(facts)
    whole = client_of(events(moments))
    for behind in {len(told(facts[:length])) for length in range(len(facts), 0, -1 - len(facts) // 8)}:
        found = events(moments, behind)
        joined = client_of(found)
        kinds = [event["type"] for event in found[:4]]
        assert kinds == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "ACTIVITY_SNAPSHOT"]
        wanted = {id: each for id, each in whole.messages.items() if id != "m1"}
        assert {id: each for id, each in joined.messages.items() if id != "m1"} == wanted
        assert joined.messages["m1"]["role"] == "user" and joined.messages["m1"]["content"]
        assert (joined.activity, joined.state, joined.open) == (whole.activity, whole.state, set())
        assert found[-1] == events(moments)[-1]


@pytest.mark.parametrize("name", ["council, all revise: completed", "vote, all differ: completed"])
def test_an_interruption_closes_every_part_and_is_the_runs_error(name: str) -> None:
    facts = asked(name)
    for length in range(len(facts)):
        telling = Telling()
        moments = [*told(facts[:length], telling), *telling.interrupted(JournalUnavailable("the log is away"))]
        for behind in {0, 1, len(told(facts[:length])), len(moments) + 1}:
            found = events(moments, behind)
            assert (found[-1]["type"], found[-1]["code"]) == ("RUN_ERROR", "journal_unavailable")
            client_of(found)


def test_a_use_of_a_tool_is_a_tool_call_with_its_result_also_to_a_client_that_joins() -> None:
    facts = with_uses(asked("single: completed"))
    moments = told(facts)
    found = events(moments)
    kinds = [each["type"] for each in found if each["type"].startswith("TOOL_CALL")]
    assert kinds == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"] * 2
    client = client_of(found)
    calls = [each for each in client.messages.values() if "toolCalls" in each]
    assert [each["toolCalls"][0]["function"] for each in calls] == [
        {"name": "look_up", "arguments": '{"word": "life"}'},
        {"name": "look_up", "arguments": "{}"},
    ]
    results = [each["content"] for each in client.messages.values() if each["role"] == "tool"]
    assert results == ["life is forty-two", "timeout: no result within 2 s"]
    for count in range(1, len(facts)):
        joined = client_of(events(moments, behind=len(told(facts[:count])))).messages
        assert {id: each for id, each in joined.items() if id != "m1"} == client.messages
