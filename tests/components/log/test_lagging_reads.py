"""A read of what follows known facts is refused from a server that lags behind them."""

from collections.abc import Sequence

import pytest

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import encode
from app.deliberation.ports import Record
from app.log.direct_get import Batch, DirectGet
from app.log.journal import JetStreamJournal
from tests.story import Story

STORY = Story("a")
FACTS = [
    Record(f"deliberations.acme.a.{tail}", sequence, encode(fact))
    for sequence, (tail, fact) in enumerate(
        [("accepted", STORY.accepted()), ("stage.1.opened", STORY.opened()), ("end", STORY.completed())], start=8
    )
]
ACCEPTED, OPENED, END = FACTS


class Servers:
    """Servers of which each answers one read, and has the log up to a sequence."""

    def __init__(self, *up_to: int) -> None:
        self._up_to = list(up_to)

    async def last(self, patterns: Sequence[str]) -> Batch:
        up_to = self._up_to.pop(0)
        tails = {pattern.partition("acme.a.")[2] for pattern in patterns}
        stored = [each for each in FACTS if each.sequence <= up_to]
        found = [each for each in stored if each.subject.endswith(".opened") or each.tokens[-1] in tails]
        return Batch(found, up_to=up_to if found else 0)


@pytest.mark.parametrize(("up_to", "expected"), [((10,), FACTS), ((8, 10), FACTS), ((9, 8), None), ((8, 9), None)])
async def test_facts_are_complete_or_refused(
    up_to: tuple[int, ...], expected: list[Record] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(*up_to)
    monkeypatch.setattr(DirectGet, "last", lambda _, patterns: servers.last(patterns))
    journal = JetStreamJournal("nats://127.0.0.1:1", name="tests")
    if expected is not None:
        assert await journal.facts("acme", "a", known=[ACCEPTED, END]) == expected
        return
    with pytest.raises(JournalUnavailable, match="lags behind fact 10"):
        await journal.facts("acme", "a", known=[ACCEPTED, END])
