"""Facts and views that a journal gets, and all records that it returns."""

from app.deliberation.facts import (
    Accepted,
    CallDelta,
)
from app.deliberation.ports import Journal, Record
from tests.story import Story


def accepted(deliberation_id: str, task: str = "t") -> Accepted:
    return Story(deliberation_id, 1).accepted(task=task)


def delta(deliberation_id: str, offset: int, text: str) -> CallDelta:
    return Story(deliberation_id).delta("dev-001", offset, text)


async def every(journal: Journal, pattern: str, after: int = 0, limit: int | None = None) -> list[Record]:
    return [record async for record in journal.read(pattern, after, limit=limit)]
