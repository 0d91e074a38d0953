"""Snapshots of deliberations at a position of the log, loaded once for all viewers that open a stream of them at once.

Facts never change, so the fold of what the log held up to a position stays exact; a stream sends everything above it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from app.api.event_schemas import UnfinishedCall
from app.api.partial_text import Texts
from app.api.schemas import Status
from app.deliberation.errors import Gone, NotFound
from app.deliberation.facts import CallDelta, CallStarted, decode, prefix
from app.deliberation.fold import State, state_of
from app.deliberation.ports import Journal, Record, StreamState
from app.streaming.single_flight import KeyedSingleFlightCache, SingleFlightCache
from app.tenant_slots import TenantSlots

FRESH_S = 0.5
PACE = 3.0
SETS_MAX = 128
# A gateway that starts again has thousands of viewers at once. Reads that begin together time out together.
READS_AT_ONCE = 16

CheckFacts = Callable[[str, str, Sequence[Record]], None]
"""Raises NotFound or Gone unless the records are those of a tenant's deliberation, from its acceptance on."""


class SnapshotKey(NamedTuple):
    """The deliberations of a set, each of which must exist if `strict`; `answers` replace raw texts in frames."""

    tenant: str
    ids: frozenset[str]
    statuses: frozenset[Status]
    strict: bool
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    deliberation_id: str
    state: State
    begin_sequence: int
    end_sequence: int | None
    stage_sequence: int


@dataclass(slots=True, eq=False)
class SnapshotSet:
    """Snapshots of the named deliberations when the log ended at `log.last_sequence`.

    Without a name, `listed_to` is the sequence of the log that the list of the newest has reached. `frames` caches both
    as SSE frames.
    """

    log: StreamState
    snapshots: Sequence[Snapshot]
    listed_to: int | None = None
    frames: SingleFlightCache[tuple[bytes, ...]] = field(
        default_factory=lambda: SingleFlightCache[tuple[bytes, ...]](inf)
    )


def _sequence(records: Sequence[Record], suffix: str) -> int | None:
    return next((record.sequence for record in records if record.subject.endswith(suffix)), None)


def snapshot_at(records: Sequence[Record], last_sequence: int) -> Snapshot:
    records = [record for record in records if record.sequence <= last_sequence]
    state = state_of(records)
    assert state is not None, "the facts begin with the acceptance"
    return Snapshot(
        deliberation_id=state.deliberation_id,
        state=state,
        begin_sequence=records[0].sequence,
        end_sequence=_sequence(records, ".end"),
        stage_sequence=_sequence(records, f".stage.{len(state.stages)}.opened") or 0,
    )


def unfinished_calls(state: State, views: Iterable[CallStarted | CallDelta]) -> tuple[UnfinishedCall, ...]:
    """One entry for each call of the open stage that has begun and has no outcome: its newest attempt's text.

    `views` are in stream order. The text begins at `offset - len(text)`, which is 0 unless deltas were lost.
    """
    stage = state.open_stage
    if stage is None or state.ended:
        return ()
    pending = {planned.call_id for planned in stage.opened.calls} - state.finished.keys()
    texts = Texts()
    for view in views:
        if view.call_id in pending:
            texts.apply(view)
    return tuple(
        UnfinishedCall(
            call_id=text.call_id, agent_id=text.agent_id, attempt=text.attempt, text=text.text, offset=text.end
        )
        for text in texts.values()
    )


class SnapshotCache:
    def __init__(self, journal: Journal, check: CheckFacts) -> None:
        self._journal = journal
        self._check = check
        self._reads = TenantSlots(READS_AT_ONCE)
        self._sets = KeyedSingleFlightCache[SnapshotKey, SnapshotSet](FRESH_S, PACE, SETS_MAX)

    def clear(self) -> None:
        self._sets.clear()

    async def get(self, key: SnapshotKey, at_least: int) -> SnapshotSet:
        """A set of the last moment, not below the position `at_least`; raises NotFound, Gone and JournalUnavailable."""
        return await self._sets[key].get(lambda: self._load(key), lambda known: known.log.last_sequence >= at_least)

    def charge(self, key: SnapshotKey, spent_s: float) -> None:
        self._sets[key].charge(spent_s)

    async def _load(self, key: SnapshotKey) -> SnapshotSet:
        async with self._reads.slot(key.tenant):
            return await self._read(key)

    async def _read(self, key: SnapshotKey) -> SnapshotSet:
        while True:
            log = await self._journal.state()
            histories = await asyncio.gather(*(self._facts(key.tenant, id) for id in sorted(key.ids)))
            present = [records for records in histories if not isinstance(records, NotFound | Gone)]
            missing = [refusal for refusal in histories if isinstance(refusal, NotFound | Gone)]
            unknown = [refusal for refusal in missing if isinstance(refusal, NotFound)]
            if missing and (not present or (unknown and key.strict)):
                raise (unknown or missing)[0]
            if all(records[0].sequence <= log.last_sequence for records in present):
                return SnapshotSet(log, [snapshot_at(records, log.last_sequence) for records in present])
            # A deliberation was accepted after the log's state was read.

    async def _facts(self, tenant: str, deliberation_id: str) -> Sequence[Record] | NotFound | Gone:
        records = await self._journal.facts(tenant, deliberation_id)
        try:
            self._check(tenant, deliberation_id, records)
        except (NotFound, Gone) as exc:
            return exc
        return records

    async def unfinished(self, tenant: str, snapshot: Snapshot, last_sequence: int) -> tuple[UnfinishedCall, ...]:
        if snapshot.state.open_stage is None or snapshot.state.ended:
            return ()
        views: list[CallStarted | CallDelta] = []
        pattern = f"{prefix(tenant, snapshot.deliberation_id)}.call.*.*"
        async with self._reads.slot(tenant):
            async for record in self._journal.read(pattern, snapshot.stage_sequence):
                if record.sequence > last_sequence:
                    break
                view = decode(record.data) if record.tokens[-1] in ("started", "delta") else None
                if isinstance(view, CallStarted | CallDelta):
                    views.append(view)
        return unfinished_calls(snapshot.state, views)
