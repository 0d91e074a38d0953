import pytest

from app.deliberation.announcements import announcement, recorded_responses
from app.deliberation.fold import fold
from app.deliberation.works import winner, works
from tests.unit.strategies.stories import STORIES, read, story


@pytest.mark.parametrize("name", STORIES)
def test_the_works_are_those_of_an_independent_reading(name: str) -> None:
    facts = story(name)
    state = fold(enumerate(facts, start=1))
    assert state is not None and state.end is not None
    expected = {id: (work["status"], work["content"], work["calls_finished"]) for id, work in read(facts).items()}
    found = {each.spec.agent_id: each for each in works(state)}
    shown = {id: (each.status, each.chosen and each.chosen.text, each.calls_finished) for id, each in found.items()}
    assert shown == expected
    told = {each.agent_id: each for each in announcement("acme", state.end, state).results}
    assert {id: (each.status, each.content) for id, each in told.items()} == {
        id: (status, content) for id, (status, content, _) in expected.items()
    }
    assert {id: (each.model, each.problem) for id, each in told.items()} == {
        id: (each.model, each.problem) for id, each in found.items()
    }
    assert len(list(recorded_responses("acme", state))) == len(state.finished)
    won = winner(state)
    assert (won and won.spec.agent_id) == (state.end.verdict and state.end.verdict.winner)
