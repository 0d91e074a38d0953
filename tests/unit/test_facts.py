import json
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field, TypeAdapter, ValidationError

from app.deliberation.calls import Usage
from app.deliberation.errors import InvalidToken
from app.deliberation.facts import (
    FACT_SUFFIXES,
    TERMINAL_STATUS,
    AgentUsage,
    CallWaiting,
    Cancelled,
    Completed,
    Degraded,
    Deleted,
    Dissent,
    Event,
    Failed,
    NewerEvent,
    StageUsage,
    Standing,
    StrategyRef,
    TimedOut,
    ToolStarted,
    ToolUsed,
    TotalUsage,
    UnreachableEngine,
    Verdict,
    decode,
    encode,
    event_type,
    prefix,
    suffix,
)
from app.deliberation.fold import fold
from tests.fakes import subject_matches
from tests.story import Story
from tests.unit.facts_of import BROKEN, ID, NOW, accepted, cancelling, closed, finished, opened, taken_over, use

VERDICT = Verdict(
    winner="dev-001",
    content='Ultramarine «quoted " \\ \u2028».',
    ranking=(Standing(agent_id="dev-001", score=0.75, rank=1), Standing(agent_id="dev-002", score=None, rank=2)),
    margin=0.1,
    tie=False,
    dissent=(Dissent(agent_id="dev-003", preferred="dev-002"),),
    agreement=-0.5,
    strategy=StrategyRef(name="council", version=1),
    calls=3,
)
USAGE = TotalUsage(
    prompt_tokens=1,
    calls=1,
    by_stage=(StageUsage(stage=1, purpose="propose", prompt_tokens=1, calls=1),),
    by_agent=(AgentUsage(agent_id="dev-001", prompt_tokens=1, calls=1),),
)
EVENTS: list[tuple[Event, str]] = [
    (accepted(), "accepted"),
    (opened(), "stage.1.opened"),
    (Story(ID).started("dev-001", attempt=2), "call.s1-dev-001.started"),
    (Story(ID).delta("dev-001", 3, "é\n"), "call.s1-dev-001.delta"),
    (
        CallWaiting(
            deliberation_id=ID,
            ts=NOW,
            call_id="s1-dev-001",
            agent_id="dev-001",
            role="DEV",
            engines=(UnreachableEngine(url="http://e:8000", since=NOW, cause="connection refused"),),
            gives_up_at=NOW,
            detail="engine http://e:8000 cannot be connected to",
        ),
        "call.s1-dev-001.waiting",
    ),
    (finished(usage=Usage(prompt_tokens=5, calls=1)), "call.s1-dev-001.finished"),
    (finished(text=None), "call.s1-dev-001.finished"),
    (finished().model_copy(update={"tools_away": ("shelf",)}), "call.s1-dev-001.finished"),
    (use(ToolStarted), "call.s1-dev-001.tool.1.started"),
    (use(ToolUsed, 2, text="é", failed=True, problem=BROKEN, bytes=2), "call.s1-dev-001.tool.2.used"),
    (closed(12, seen=["dev-001"]), "stage.12.closed"),
    (cancelling("enough"), "cancel"),
    (taken_over(3), "takeover.3"),
    (
        Completed(deliberation_id=ID, ts=NOW, verdict=VERDICT, usage=USAGE, degraded=Degraded(reasons=("budget",))),
        "end",
    ),
    (Failed(deliberation_id=ID, ts=NOW, problem=BROKEN), "end"),
    (Cancelled(deliberation_id=ID, ts=NOW), "end"),
    (TimedOut(deliberation_id=ID, ts=NOW, problem=BROKEN), "end"),
    (Deleted(deliberation_id=ID, ts=NOW), "deleted"),
]
IDS = [f"{event.type}-{tail}" for event, tail in EVENTS]
VIEWS = {"call.started", "call.delta", "call.waiting"}


@pytest.mark.parametrize(("event", "_"), EVENTS, ids=IDS)
def test_an_event_survives_its_bytes(event: Event, _: str) -> None:
    data = encode(event)
    assert decode(data) == event
    assert encode(decode(data)) == data


@pytest.mark.parametrize(("event", "_"), EVENTS, ids=IDS)
def test_an_events_bytes_begin_with_its_type(event: Event, _: str) -> None:
    data = encode(event)
    assert event_type(data) == event.type
    assert list(json.loads(data))[:3] == ["type", "deliberation_id", "ts"]
    assert b"\n" not in data, "one line of a stream"


@pytest.mark.parametrize(("event", "tail"), EVENTS, ids=IDS)
def test_each_event_has_a_subject_of_its_own_and_the_patterns_know_facts_from_views(event: Event, tail: str) -> None:
    assert suffix(event) == tail
    assert any(subject_matches(pattern, tail) for pattern in FACT_SUFFIXES) == (event.type not in VIEWS)


def test_every_type_of_event_is_tried_and_described_by_the_schema() -> None:
    schema = TypeAdapter(Annotated[Event, Field(discriminator="type")]).json_schema(mode="serialization")
    assert {event.type for event, _ in EVENTS} == set(schema["discriminator"]["mapping"])
    validator = Draft202012Validator(schema)
    for event, _ in EVENTS:
        validator.validate(json.loads(encode(event)))
    assert set(TERMINAL_STATUS) == {event.type for event, tail in EVENTS if tail == "end"}


def test_fields_of_a_newer_writer_are_dropped() -> None:
    document = json.loads(encode(finished()))
    document["colour"] = "blue"
    document["usage"]["joules"] = 3
    assert decode(json.dumps(document).encode()) == finished()


def test_an_event_of_a_type_that_a_newer_writer_added_decides_nothing() -> None:
    document = {"type": "deliberation.noted", "deliberation_id": "d1", "ts": "2026-01-01T00:00:00Z", "note": "later"}
    event = decode(json.dumps(document).encode())
    assert isinstance(event, NewerEvent) and event.type == "deliberation.noted"
    facts = [Story("d1").accepted(), Story("d1").opened()]
    assert fold([(1, facts[0]), (2, event), (3, facts[1])]) == fold([(1, facts[0]), (3, facts[1])])


@pytest.mark.parametrize("data", [b'{"type":"deliberation.noted"}', b'{"type":"stage.closed"}', b'{"no":"type"}', b"["])
def test_bytes_without_the_fields_of_an_event_are_none(data: bytes) -> None:
    with pytest.raises(ValidationError):
        decode(data)


@pytest.mark.parametrize("data", [b"", b'{"ts":"x","type":"call.delta"}', b'{"type": "call.delta"}', b'{"type":"call'])
def test_bytes_that_do_not_begin_with_a_type_have_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"begins with its type|not found"):
        event_type(data)


HOSTILE = ["", "*", ">", "..", "a.b", "a b", "A", "é", "a\n", "\n", "a" * 65, "a" * 10_000, "a\x00", "$js", "a*"]


@pytest.mark.parametrize("token", HOSTILE)
def test_no_hostile_token_becomes_part_of_a_subject(token: str) -> None:
    for tenant, deliberation_id, field in ((token, "d1", "tenant"), ("t", token, "id")):
        with pytest.raises(InvalidToken) as caught:
            prefix(tenant, deliberation_id)
        assert caught.value.field == field
    for name in ("call_id", "agent_id", "deliberation_id"):
        with pytest.raises(ValidationError):
            finished().model_validate({**finished().model_dump(), name: token})


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=70))
def test_a_token_accepts_exactly_the_allow_list(token: str) -> None:
    allowed = 1 <= len(token) <= 64 and set(token) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    try:
        subject = prefix("t", token)
    except InvalidToken:
        assert not allowed
    else:
        assert allowed
        assert subject == f"deliberations.t.{token}"
