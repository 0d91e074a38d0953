from dataclasses import replace
from typing import Any

import pytest

from app.api.event_schemas import DeliberationSnapshot
from app.api.resource import resource
from app.archive import parquet
from app.archive.database.measures import measures_of
from app.archive.database.words import document, split
from app.deliberation.announcements import announcement, recorded_responses
from app.deliberation.facts import Completed, Fact, encode
from app.deliberation.fold import State, fold, state_of
from app.deliberation.ports import Record
from app.openai.completions import texts
from app.streaming.snapshots import snapshot_at
from tests.unit.strategies.stories import MEMBERS, STORIES, read, story

SHOWN = ("status", "content")


def folded(facts: list[Fact]) -> State:
    state = fold(enumerate(facts, start=1))
    assert state is not None
    return state


def proposals(state: State) -> dict[str, dict[str, Any]]:
    read = resource(state, epoch="e", retention_s=60).model_dump(mode="json")
    return {each["agent_id"]: each for each in read["proposals"]}


@pytest.mark.parametrize("name", STORIES)
def test_every_view_says_the_same_of_each_agent(name: str) -> None:
    facts = story(name)
    state, expected = folded(facts), read(facts)
    assert state.end is not None
    shown = proposals(state)
    for agent_id, work in expected.items():
        found = shown[agent_id]
        found["tokens"] = found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"]
        standing = [] if found["content"] is None else [found["content"]]
        found["texts"] = sorted([*(each["content"] for each in found["revisions"]), *standing])
        assert {key: found[key] for key in work} == {**work, "texts": sorted(work["texts"])}
        assert (found["error"] is not None) is (work["status"] == "failed")

    verdict = state.end.verdict
    forms = {call.call_id: call.output for stage in state.stages for call in stage.opened.calls}
    if verdict is not None and verdict.call_id is not None and forms[verdict.call_id] != "fusion":
        assert expected[str(verdict.winner)]["content"] == verdict.content

    for before in (state, replace(state, end=None)):
        results = {each.agent_id: each for each in announcement("acme", state.end, before).results}
        assert {id: (each.status, each.content) for id, each in results.items()} == {
            id: (work["status"], work["content"]) for id, work in expected.items()
        }
        assert {id: (each.model, each.usage) for id, each in results.items()} == {
            each.agent_id: (each.model, each.usage) for each in resource(state, epoch="e", retention_s=60).proposals
        }

    row = parquet.row_of("acme", state)
    assert {each["agent_id"]: {key: each[key] for key in SHOWN} for each in row["proposals"]} == {
        id: {key: work[key] for key in SHOWN} for id, work in expected.items()
    }
    words = document("acme", state)
    assert all(" ".join(split(work["content"])) in words for work in expected.values() if work["content"])
    won = {row["name"] for row in measures_of("acme", state) if row["won"]}
    winner = verdict and verdict.winner
    assert won == {name for each in MEMBERS if each.agent_id == winner for name in (each.role, each.model)}
    responses = [each.call_id for each in recorded_responses("acme", state)]
    assert sorted(responses) == sorted(state.finished)


@pytest.mark.parametrize("name", STORIES)
def test_a_snapshot_at_any_event_has_the_works_so_far(name: str) -> None:
    facts = story(name)
    records = [Record(f"deliberations.t.d.{n}", n, encode(fact)) for n, fact in enumerate(facts, start=1)]
    assert state_of(records) == folded(facts)
    for last in range(1, len(facts) + 1):
        state = snapshot_at(records, last).state
        event = DeliberationSnapshot(
            deliberation_id=state.deliberation_id,
            ts=facts[0].ts,
            deliberation=resource(state, epoch="e", retention_s=60),
            unfinished=(),
        )
        sent = DeliberationSnapshot.model_validate_json(event.model_dump_json()).deliberation
        assert {each.agent_id: (each.status, each.content, each.calls_finished) for each in sent.proposals} == {
            id: (work["status"], work["content"], work["calls_finished"]) for id, work in read(facts[:last]).items()
        }


def test_openai_clients_get_every_standing_answer_of_an_unranked_council() -> None:
    facts = story("independent: degraded")
    assert list(texts(folded(facts))) == [work["content"] for work in read(facts).values() if work["content"]]


def test_a_relays_winner_answered_although_nothing_is_called_a_proposal() -> None:
    state = folded(story("test-relay: completed"))
    assert isinstance(state.end, Completed) and state.end.verdict is not None
    first = resource(state, epoch="e", retention_s=60).proposals[0]
    assert (first.agent_id, first.status, first.content) == ("dev-003", "answered", state.end.verdict.content)
