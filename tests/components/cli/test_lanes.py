import json
from typing import Any

import pytest

from app.api.event_schemas import DeliberationSnapshot
from app.api.resource import resource
from app.cli.render.lanes import CouncilView, expected_stages
from app.cli.render.text import prose
from app.client.sse import Frame
from app.deliberation.calls import Call, FactProblem
from app.deliberation.facts import CallDelta, CallFinished, CallStarted, StageOpened, encode
from app.deliberation.fold import fold
from app.deliberation.strategies import STRATEGIES
from tests.components.cli.council_run import ID, MODEL, Script, answer_text, council_of, specification
from tests.unit.facts_of import NOW
from tests.unit.strategies.stories import STORIES, events_of, read, story


def folded(frames: list[Frame]) -> CouncilView:
    view = CouncilView()
    for frame in frames:
        view.apply(frame)
    return view


@pytest.mark.parametrize(
    ("strategy", "rounds", "stages"),
    [
        ("council", 0, ["propose", "score"]),
        ("council", 2, ["propose", "critique", "revise", "critique", "revise", "score"]),
        ("debate", 2, ["propose", "debate", "debate"]),
        ("not known here", 2, []),
    ],
)
def test_expected_stages_of_each_strategy(strategy: str, rounds: int, stages: list[str]) -> None:
    assert [purpose for purpose, _ in expected_stages(strategy, rounds)] == stages


def test_a_strategy_that_escalates_has_the_stages_of_its_target() -> None:
    assert expected_stages("auto", 2, {"escalate_to": "best_of_n"}) == [("propose", None), ("score", None)]
    assert expected_stages("auto", 2, {"escalate_to": "unheard of"}) == expected_stages("auto", 2)


def failing_after(stage: int) -> Script:
    return lambda call: answer_text(call) if int(call.call_id[1:].partition("-")[0]) <= stage else None


def every_other(call: Call) -> str | None:
    return None if call.agent_id in ("dev-002", "dev-004") else answer_text(call)


SCRIPTS: dict[str, Script] = {
    "all": answer_text,
    "every_other": every_other,
    "first_stage_alone": failing_after(1),
    "none": lambda _: None,
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("agents", [1, 2, 5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_progress_never_decreases_and_reaches_1_only_at_the_end(strategy: str, agents: int, script: str) -> None:
    council = council_of(specification(strategy, agents, 2), SCRIPTS[script])
    view = CouncilView()
    before: dict[str, float] = {}
    for frame in council.frames:
        view.apply(frame)
        for lane in view.lanes.values():
            share = lane.progress
            assert before.get(lane.agent_id, 0.0) <= share, frame.event
            assert (share == 1.0) is view.ended, frame.event
            assert lane.calls_done <= lane.calls_opened <= view.planned(lane)
            before[lane.agent_id] = share
    assert len(before) == agents
    assert view.tokens == sum(council.resource["usage"][side] for side in ("prompt_tokens", "completion_tokens"))


def test_an_accepted_draft_needs_fewer_planned_calls() -> None:
    def accept_every_draft(call: Call) -> str:
        return json.dumps({"issues": [], "verdict": "accept"}) if call.output.kind == "critique" else answer_text(call)

    council = council_of(script=accept_every_draft)
    view = CouncilView()
    planned: list[int] = []
    for event, frame in zip(council.events, council.frames, strict=True):
        view.apply(frame)
        if isinstance(event, StageOpened):
            planned.append(view.planned(view.lanes["dev-001"]))
    assert planned == [4, 4, 3]


def test_a_failed_call_shows_its_problem_and_counts_as_done() -> None:
    council = council_of(script=lambda call: None if call.agent_id == "dev-002" else answer_text(call))
    view = CouncilView()
    for event, frame in zip(council.events, council.frames, strict=True):
        view.apply(frame)
        if isinstance(event, CallFinished) and event.agent_id == "dev-002":
            break
    lane = view.lanes["dev-002"]
    assert (lane.state, lane.problem, lane.calls_done) == ("failed", "engine_unavailable", 1)


def test_an_engine_that_refuses_is_told_with_its_remedy() -> None:
    council = council_of(script=lambda call: None if call.agent_id == "dev-002" else answer_text(call))
    view = CouncilView()
    failed = next(event for event in council.events if isinstance(event, CallFinished) and event.problem is not None)
    detail = "engine hosted (http://e) answered 401: it refuses the key of api_key_file /k; correct the key in /k"
    problem = FactProblem(code="engine_rejected", detail=detail, retryable=False)
    view.apply(Frame("call.finished", encode(failed.model_copy(update={"problem": problem})).decode()))
    assert view.notice == detail


def test_lanes_show_prose_while_a_call_streams() -> None:
    council = council_of()
    view = CouncilView()
    for event, frame in zip(council.events, council.frames, strict=True):
        view.apply(frame)
        if isinstance(event, CallDelta) and event.offset > 20:
            break
    lane = view.lanes["dev-001"]
    assert (lane.state, lane.purpose, lane.model) == ("writing", "propose", MODEL)
    assert prose(view.text(lane)) == "dev-001 thinks."
    assert 0 < lane.progress < 0.25


def test_repeated_deltas_leave_the_recorded_text() -> None:
    council = council_of()
    view = CouncilView()
    for event, frame in zip(council.events, council.frames, strict=True):
        view.apply(frame)
        view.apply(frame)
        if isinstance(event, CallFinished):
            assert view.text(view.lanes[event.agent_id]) == event.text


def test_a_snapshot_after_a_gap_restores_lanes_and_texts() -> None:
    council = council_of()
    started = next(event for event in council.events if isinstance(event, CallStarted))
    snapshot = {
        "type": "deliberation.snapshot",
        "deliberation_id": ID,
        "ts": "2026-01-01T00:00:00Z",
        "deliberation": council.resource
        | {
            "status": "in_progress",
            "ended_at": None,
            "progress": {"stage": 2, "purpose": "critique", "round": 1, "calls_finished": 1, "calls_total": 3},
        },
        "unfinished": [
            {"call_id": started.call_id, "agent_id": "dev-001", "attempt": 1, "text": '{"answer":"half', "offset": 15}
        ],
    }
    gap = Frame("stream.gap", json.dumps({"type": "stream.gap", "reason": "epoch"}))
    view = CouncilView()
    view.apply(gap)
    assert view.notice == "the cursor is of another log; the state now takes its place"
    view.apply(Frame("deliberation.snapshot", json.dumps(snapshot)))
    assert (view.stage, view.purpose, view.calls_seen, view.status) == (2, "critique", 1, "in_progress")
    assert prose(view.text(view.lanes["dev-001"])) == "half"
    about: dict[str, Any] = {"deliberation_id": ID, "ts": started.ts, "call_id": started.call_id}
    delta = CallDelta(**about, agent_id="dev-001", attempt=1, offset=15, text=" done")
    view.apply(Frame(delta.type, delta.model_dump_json()))
    assert prose(view.text(view.lanes["dev-001"])) == "half done"


@pytest.mark.parametrize("data", ["", "{}", "not json", '{"type":"deliberation.postponed","deliberation_id":"x"}'])
@pytest.mark.parametrize("event", ["deliberation.postponed", "deliberation.snapshot", "stream.gap", "stream.opened"])
def test_ignores_unknown_events(event: str, data: str) -> None:
    view = CouncilView()
    assert view.apply(Frame(event, data)) is None
    assert view.lanes == {}


@pytest.mark.parametrize("name", STORIES)
def test_lanes_count_what_the_core_reads_live_and_after_a_snapshot(name: str) -> None:
    facts = story(name)
    view = CouncilView()
    for event in events_of(facts):
        view.apply(Frame(event.type, encode(event).decode()))
    restored = CouncilView()
    state = fold(enumerate(facts, start=1))
    assert state is not None
    found = resource(state, epoch="e", retention_s=60)
    snapshot = DeliberationSnapshot(deliberation_id=found.id, ts=NOW, deliberation=found, unfinished=())
    restored.apply(Frame(snapshot.type, snapshot.model_dump_json()))
    for agent_id, work in read(facts).items():
        for lane in (view.lanes[agent_id], restored.lanes[agent_id]):
            counts = {"calls_total": lane.calls_opened, "calls_finished": lane.calls_done, "tokens": lane.tokens}
            assert counts == {name: work[name] for name in counts}
    assert (view.status, view.ended_at) == (restored.status, restored.ended_at) == (state.status, found.ended_at)
