import pytest

from app.deliberation.announcements import announcement, recorded_responses
from app.deliberation.contributions import contributions, winner
from app.deliberation.fold import fold
from tests.unit.facts_of import CouncilScript, run, specification
from tests.unit.strategies.stories import STORIES, read, story


@pytest.mark.parametrize("name", STORIES)
def test_the_contributions_are_those_of_an_independent_reading(name: str) -> None:
    facts = story(name)
    state = fold(enumerate(facts, start=1))
    assert state is not None and state.end is not None
    expected = {
        id: (contribution["status"], contribution["content"], contribution["calls_finished"])
        for id, contribution in read(facts).items()
    }
    members = {member.spec.agent_id: member for member in contributions(state)}
    shown = {
        id: (member.status, member.chosen and member.chosen.text, member.calls_finished)
        for id, member in members.items()
    }
    assert shown == expected
    told = {each.agent_id: each for each in announcement("acme", state.end, state).results}
    assert {id: (each.status, each.content) for id, each in told.items()} == {
        id: (status, content) for id, (status, content, _) in expected.items()
    }
    assert {id: (each.model, each.problem) for id, each in told.items()} == {
        id: (each.model, each.problem) for id, each in members.items()
    }
    assert len(list(recorded_responses("acme", state))) == len(state.finished)
    won = winner(state)
    assert (won and won.spec.agent_id) == (state.end.verdict and state.end.verdict.winner)


def test_an_end_says_who_took_part_and_who_stalled_where() -> None:
    """`dev-003` writes no answer, `dev-001` fails as a critic, and `dev-002` is silent when it should score."""
    script = CouncilScript(failing=("s1-dev-003", "s2-dev-001"), silent=("s4-dev-002",))
    found = run(specification(3, quorum=2), script).end.participation
    assert found is not None
    assert (found.took_place, found.members, found.counted) == (True, 3, 2)
    assert [(each.agent_id, each.purpose, each.round, each.calls, each.code) for each in found.stalled] == [
        ("dev-003", "propose", 0, 1, "engine_unavailable"),
        ("dev-001", "critique", 1, 1, "engine_unavailable"),
        ("dev-002", "score", 2, 1, None),
    ]


def test_calls_that_one_member_lacks_in_a_stage_are_one_stall() -> None:
    found = run(
        specification(4, strategy="tournament"), CouncilScript(failing=[f"s2-dev-001-{n}" for n in range(1, 9)])
    )
    assert found.end.participation is not None
    (stall,) = found.end.participation.stalled
    assert (stall.agent_id, stall.purpose, stall.calls) == ("dev-001", "judge", 3)


def test_one_answer_is_no_council() -> None:
    alone = run(specification(3), CouncilScript(failing=("s1-dev-002", "s1-dev-003"))).end.participation
    assert alone is not None and (alone.took_place, alone.counted) == (False, 1)
