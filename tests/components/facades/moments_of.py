"""The moments that events tell, and facts with uses of tools."""

from collections.abc import Iterable, Sequence

from app.deliberation.calls import FactProblem
from app.deliberation.facts import Event, Fact, StageOpened, ToolUsed
from app.facades.moments import (
    Moment,
    Telling,
)
from tests.unit.facts_of import use


def told(events: Iterable[Event], telling: Telling | None = None) -> list[Moment]:
    telling = telling or Telling()
    return [moment for sequence, event in enumerate(events, start=1) for moment in telling.tell(event, sequence)]


def with_uses(facts: Sequence[Fact]) -> list[Fact]:
    """The facts with two uses of tools by the first call, the second one without a result."""
    place = next(at for at, fact in enumerate(facts, start=1) if isinstance(fact, StageOpened))
    first = facts[place - 1]
    assert isinstance(first, StageOpened)
    call = first.calls[0]
    about = {"call_id": call.call_id, "agent_id": call.agent_id, "role": call.role}
    lost = FactProblem(code="timeout", detail="no result within 2 s", retryable=False)
    answered = use(ToolUsed, text="life is forty-two", bytes=17, duration_ms=30, arguments='{"word": "life"}', **about)
    failed = use(ToolUsed, 2, failed=True, problem=lost, duration_ms=2_000, **about)
    return [*facts[:place], answered, failed, *facts[place:]]
