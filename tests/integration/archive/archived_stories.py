"""Stories as the records that a store gets."""

from collections.abc import Sequence

from app.archive.database.rows import Written
from app.deliberation.facts import Fact, encode, prefix, suffix
from app.deliberation.fold import state_of
from app.deliberation.ports import Record
from tests.story import Story

EPOCH = "0a1b2c3d"


def records_of(story: Story, facts: Sequence[Fact], first: int = 1, tenant: str = "acme") -> list[Record]:
    stem = prefix(tenant, story.id)
    return [Record(f"{stem}.{suffix(fact)}", number, encode(fact)) for number, fact in enumerate(facts, first)]


def told(story: Story, text: str = "{}") -> list[Fact]:
    answers = [story.finished(agent, text) for agent in story.agents]
    return [story.accepted(), story.opened(), *answers, story.closed(), story.completed()]


def written(records: Sequence[Record], tenant: str = "acme") -> Written:
    state = state_of(records)
    assert state is not None
    return Written(tenant, state.deliberation_id, at=state.accepted.ts, state=state, records=records)
