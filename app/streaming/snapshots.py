"""What a deliberation is at a place of the log: folded once for all who open a stream of it within a moment.

Facts have subjects of their own and do not change, so what the log holds up to a known place is what it held then: a
look is exact, and everything after its place is still to be shown.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from app.api.event_schemas import UnfinishedCall
from app.catalog.projection import state_of
from app.deliberation.facts import CallDelta, CallStarted, decode, prefix
from app.deliberation.fold import State
from app.deliberation.ports import Journal, Record, StreamState
from app.streaming.partial_text import unfinished_calls
from app.streaming.single_flight import KeyedSingleFlightCache, SingleFlightCache

FRESH_S = 0.5
PACE = 3.0

CheckFacts = Callable[[str, Sequence[Record]], None]
"""Raises when the records of a deliberation id are not those of one that is there."""


@dataclass(slots=True, eq=False)
class Snapshot:
    """A deliberation when the log ended at `log.last_sequence`.

    `begin_sequence` is the place of its acceptance, `end_sequence` that of its end, if it is there.
    """

    tenant: str
    deliberation_id: str
    state: State
    log: StreamState
    begin_sequence: int
    end_sequence: int | None
    _views_after: int
    told: SingleFlightCache[bytes] = field(default_factory=lambda: SingleFlightCache[bytes](inf))

    async def unfinished(self, journal: Journal) -> tuple[UnfinishedCall, ...]:
        """The texts of the calls that were under way; raises JournalUnavailable."""
        if self.state.open_stage is None or self.state.ended:
            return ()
        views: list[CallStarted | CallDelta] = []
        pattern = f"{prefix(self.tenant, self.deliberation_id)}.call.*.*"
        async for record in journal.read(pattern, self._views_after):
            if record.sequence > self.log.last_sequence:
                break
            view = decode(record.data) if record.tokens[-1] in ("started", "delta") else None
            if isinstance(view, CallStarted | CallDelta):
                views.append(view)
        return unfinished_calls(self.state, views)


def _place(records: Sequence[Record], suffix: str) -> int | None:
    return next((record.sequence for record in records if record.subject.endswith(suffix)), None)


class SnapshotCache:
    """The looks of the last moment. They take no more than a quarter of the time, however many ask.

    `several` are what others made of many looks, under keys of theirs.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._looks = KeyedSingleFlightCache[tuple[str, str], Snapshot](FRESH_S, PACE)
        self.several = KeyedSingleFlightCache[Hashable, Any](FRESH_S, PACE)

    def doubt(self) -> None:
        """The log may have become another one."""
        self._looks.forget()
        self.several.forget()

    async def look(self, tenant: str, deliberation_id: str, check: CheckFacts, beyond: int = 0) -> Snapshot:
        """A deliberation as it was a moment ago, but not before `beyond` was stored.

        Raises what `check` raises, and JournalUnavailable.
        """

        async def ask() -> Snapshot:
            return await self.look_at(tenant, deliberation_id, check, await self._journal.state())

        shared = self._looks[tenant, deliberation_id]
        return await shared.get(ask, lambda look: look.log.last_sequence >= beyond)

    async def look_at(self, tenant: str, deliberation_id: str, check: CheckFacts, bounds: StreamState) -> Snapshot:
        """A deliberation as it was when the log had these bounds; where it was accepted later, as it is now."""
        records = await self._journal.facts(tenant, deliberation_id)
        check(deliberation_id, records)
        if records[0].sequence > bounds.last_sequence:
            bounds = replace(bounds, last_sequence=records[-1].sequence)
        records = [record for record in records if record.sequence <= bounds.last_sequence]
        state = state_of(records)
        assert state is not None, "an acceptance is there"
        return Snapshot(
            tenant=tenant,
            deliberation_id=deliberation_id,
            state=state,
            log=bounds,
            begin_sequence=records[0].sequence,
            end_sequence=_place(records, ".end"),
            _views_after=_place(records, f".stage.{len(state.stages)}.opened") or 0,
        )

    async def told(self, look: Snapshot, tell: Callable[[Snapshot, Sequence[UnfinishedCall]], bytes]) -> bytes:
        """What `tell` makes of a look and of the texts of the calls under way; once for all who have the same look."""
        loop = asyncio.get_running_loop()

        async def ask() -> bytes:
            began_s = loop.time()
            told = tell(look, await look.unfinished(self._journal))
            self._looks[look.tenant, look.deliberation_id].took(loop.time() - began_s)
            return told

        return await look.told.get(ask)
