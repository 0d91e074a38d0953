"""The resource of a deliberation renders after every fact, for every strategy and with failing calls."""

from random import Random

import pytest

from app.api.resource import resource
from app.api.schemas import Deliberation
from app.deliberation.facts import Completed, StageOpened
from app.deliberation.fold import fold
from tests.unit.facts_of import Run, run
from tests.unit.strategies.every_strategy import WAYS, Way, failing, verdict

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def read(ended: Run, facts: int) -> Deliberation:
    """The resource after the first `facts` facts."""
    state = fold(enumerate(ended.facts[:facts], start=1))
    assert state is not None
    return resource(state, epoch="e", retention_s=60)


@every_way
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_every_prefix_of_the_facts_renders_and_the_end_shows_the_final_texts(way: Way, rate: float) -> None:
    for size in (2, 3, 5):
        script = failing(way.script(), lambda call: Random(f"streamed {call.call_id}").random() < rate)
        ended = run(way.asked(size, rounds=2), script)
        resources = [read(ended, facts) for facts in range(1, len(ended.facts) + 1)]
        assert [each.revision for each in resources] == list(range(1, len(ended.facts) + 1))
        if isinstance(ended.end, Completed):
            assert_final_texts(ended, resources[-1])


def assert_final_texts(ended: Run, resource: Deliberation) -> None:
    found = verdict(ended)
    proposals = {proposal.agent_id: proposal for proposal in resource.proposals}
    for standing in found.ranking:
        proposal = proposals[standing.agent_id]
        assert (proposal.rank, proposal.score) == (standing.rank, standing.score)
        assert proposal.content is not None
    written_in = {call.call_id: stage.purpose for stage in ended.all(StageOpened) for call in stage.calls}
    # A fused text has no author among the agents, so the winner keeps its own version.
    if found.call_id is not None and written_in[found.call_id] != "fuse":
        assert found.winner == resource.proposals[0].agent_id
        assert resource.proposals[0].content == found.content
