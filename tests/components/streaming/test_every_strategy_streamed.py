"""What clients read of a deliberation, at every moment of it, whatever its strategy and whoever fails."""

from random import Random

import pytest

from app.api.schemas import Deliberation
from app.catalog.projection import resource
from app.deliberation.facts import Completed, StageOpened
from app.deliberation.fold import fold
from tests.unit.facts_of import Run, run
from tests.unit.strategies.every_strategy import WAYS, Way, failing, verdict

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def read(ended: Run, facts: int) -> Deliberation:
    """The resource after so many facts."""
    state = fold(enumerate(ended.facts[:facts], start=1))
    assert state is not None
    return resource(state, epoch="e", retention_s=60)


@every_way
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_every_prefix_of_the_facts_renders_and_the_end_shows_the_final_texts(way: Way, rate: float) -> None:
    for size in (2, 3, 5):
        script = failing(way.script(), lambda call: Random(f"told {call.call_id}").random() < rate)
        ended = run(way.asked(size, rounds=2), script)
        told = [read(ended, facts) for facts in range(1, len(ended.facts) + 1)]
        assert [each.revision for each in told] == list(range(1, len(ended.facts) + 1))
        if isinstance(ended.end, Completed):
            texts_stand(ended, told[-1])


def texts_stand(ended: Run, told: Deliberation) -> None:
    found = verdict(ended)
    proposals = {proposal.agent_id: proposal for proposal in told.proposals}
    for standing in found.ranking:
        shown = proposals[standing.agent_id]
        assert (shown.rank, shown.score) == (standing.rank, standing.score)
        assert shown.content is not None
    written_in = {call.call_id: stage.purpose for stage in ended.all(StageOpened) for call in stage.calls}
    # What is fused from several candidates is nobody's version: the best single one stands in its author's place.
    if found.call_id is not None and written_in[found.call_id] != "fuse":
        assert found.winner == told.proposals[0].agent_id
        assert told.proposals[0].content == found.content
