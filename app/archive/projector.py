"""Copies deliberations from the log to the archive, and acknowledges each item once the database has committed it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TypeVar

import structlog

from app.admission.backlog import Key
from app.archive.database.rows import Written
from app.archive.database.store import Store
from app.archive.database.writing import Rows
from app.catalog.projection import state_of
from app.deliberation.errors import ArchiveUnavailable, Gone, JournalUnavailable, UnexpectedFact
from app.deliberation.facts import decode
from app.deliberation.fold import State
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ARCHIVE_CONSUMER
from app.log.streams import WORKER_ACK_WAIT_S
from app.log.work_queue import QueueItem, WorkQueue

BATCH_MAX = 256
HELD_MAX = 8 * BATCH_MAX
# After a batch that was not full. A request and a transaction cost as much as some deliberations.
FETCH_EVERY_S = 0.75
# What has begun waits so long for its end: most deliberations are read and written once.
BEGUN_S = 5.0
# Of so many deliberations it is known how far they were copied.
COPIED_MAX = 20_000
RETRY_S = 1.0
# Calls that were cut by the end record their outcomes within this time.
LATE_S = 10.0
EXPIRE_EVERY_S = 60.0

# The last tokens of facts after which nothing waits.
_OVER = "end", "deleted"
# The clocks of two processes differ by less than this.
_SKEW = timedelta(minutes=1)

_Answer = TypeVar("_Answer")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the log has of some items. `unfinished` ended at a time, before all of their calls had an outcome."""

    sequences: Sequence[int]
    written: Sequence[Written]
    rows: Sequence[Rows]
    unfinished: Mapping[str, datetime]
    skipped: int


class Projector:
    """Takes items in batches of at most BATCH_MAX. While a batch is written, the next one is read.

    Ends and deletions are written at once, and what has begun after BEGUN_S, or with its end.

    Batches are written in order, so that an item that an earlier one covers is only acknowledged, after its write.

    `counts` counts deliberations by what was done: `written`, `deleted`, `expired`, and `skipped` for facts that are
    damaged or have left the log. `failure` says what the projector waits for, empty while it works. `retentions_s`
    are those of tenants for which `retention_s` does not hold.
    """

    def __init__(
        self, journal: JetStreamJournal, store: Store, retention_s: int, retentions_s: Mapping[str, int] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failure = ""
        self._journal = journal
        self._store = store
        self._retention = timedelta(seconds=retention_s)
        self._retentions = {tenant: timedelta(seconds=each) for tenant, each in (retentions_s or {}).items()}
        self._queue = WorkQueue(journal, HELD_MAX, self._take, consumer=ARCHIVE_CONSUMER, standing=False)
        self._waiting: dict[int, QueueItem] = {}
        self._writing: dict[int, QueueItem] = {}
        self._read = asyncio.Queue[_Batch](maxsize=1)
        # The last sequence of deliberations to which nothing more is expected, oldest write first.
        self._copied: dict[Key, int] = {}
        self._epoch = ""

    async def run(self) -> None:
        """Copy until cancelled, then give the items in progress back to the queue."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._queue.start()
                group.create_task(self._report_progress())
                group.create_task(self._expire())
                group.create_task(self._read_batches())
                group.create_task(self._write_batches())
        finally:
            await self._queue.close()
            for item in [*self._writing.values(), *self._waiting.values()]:
                await self._queue.requeue(item)

    def _take(self, item: QueueItem) -> None:
        sequence = item.record.sequence
        held = self._writing if sequence in self._writing else self._waiting
        if sequence in held:
            # Redelivered while in progress, for example after an outage of the log: acknowledge the newer delivery.
            self._queue.drop()
        held[sequence] = item

    async def _read_batches(self) -> None:
        """Read one batch ahead of the one that is being written."""
        while True:
            behind = len(self._waiting) >= HELD_MAX // 2 or not await self._queue.fetch()
            chosen = list(islice(self._waiting if behind else self._due(), BATCH_MAX))
            for sequence in chosen:
                self._writing[sequence] = self._waiting.pop(sequence)
            if chosen:
                await self._read.put(await self._until_answered(partial(self._project_all, chosen)))
            if not behind and len(chosen) < BATCH_MAX:
                await asyncio.sleep(FETCH_EVERY_S)

    def _due(self) -> Iterator[int]:
        """The sequences of what ended or was deleted, and of what began a while ago."""
        over = {item.record.tokens[2] for item in self._waiting.values() if item.record.tokens[-1] in _OVER}
        long_ago_s = asyncio.get_running_loop().time() - BEGUN_S
        for sequence, item in self._waiting.items():
            if item.record.tokens[2] in over or item.taken_at_s < long_ago_s:
                yield sequence

    async def _write_batches(self) -> None:
        while True:
            batch = await self._read.get()
            if batch.rows:
                await self._until_answered(partial(self._store.put, batch.rows))
            self.counts["written"] += sum(each.state is not None for each in batch.written)
            self.counts["deleted"] += sum(each.state is None for each in batch.written)
            self.counts["skipped"] += batch.skipped
            for sequence in batch.sequences:
                item = self._writing.pop(sequence)
                ended_at = batch.unfinished.get(item.record.tokens[2]) if item.record.tokens[-1] == "end" else None
                # A restart redelivers too, maybe before late outcomes are recorded.
                young = ended_at is not None and datetime.now(UTC) - ended_at < timedelta(seconds=LATE_S)
                if ended_at is not None and (young or item.deliveries == 1):
                    await self._queue.requeue(item, LATE_S)
                else:
                    await self._queue.ack(item)

    async def _until_answered(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """What `ask` returns once the log and the database answer."""
        while True:
            try:
                answer = await ask()
            except (JournalUnavailable, ArchiveUnavailable) as exc:
                if str(exc) != self.failure:
                    self.failure = str(exc)
                    log.warning("archive_waits", error=self.failure)
                await asyncio.sleep(RETRY_S)
            else:
                self.failure = ""
                return answer

    async def _project_all(self, sequences: Sequence[int]) -> _Batch:
        """Read these items' deliberations and make their rows, but for those that an earlier batch covers."""
        records = [self._writing[sequence].record for sequence in sequences]
        epoch = (await self._journal.state()).epoch
        due = self._uncovered(epoch, records)
        # A full batch means that later facts are in the log already: each deliberation is read once.
        whole = len(records) == BATCH_MAX
        projected = await asyncio.gather(*(self._project(key, found, whole) for key, found in due.items()))
        written = [each for each in projected if each is not None]
        rows = await self._store.rows_of(epoch, written)
        return _Batch(sequences, written, rows, self._note(written), len(projected) - len(written))

    def _uncovered(self, epoch: str, records: Sequence[Record]) -> dict[Key, list[Record]]:
        """The records of this log that no batch covers yet, by deliberation."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._copied.clear()
        due = dict[Key, list[Record]]()
        for record in records:
            key = record.tokens[1], record.tokens[2]
            if record.sequence > self._copied.get(key, 0):
                due.setdefault(key, []).append(record)
        return due

    def _note(self, written: Sequence[Written]) -> Mapping[str, datetime]:
        """Remember what is complete; the ends by id of those that ended before all of their calls had an outcome."""
        unfinished = dict[str, datetime]()
        for each in written:
            if each.state is not None and each.state.end is not None:
                if _unfinished(each.state):
                    unfinished[each.deliberation_id] = each.state.end.ts
                else:
                    self._copied[each.tenant, each.deliberation_id] = each.state.last_sequence
        while len(self._copied) > COPIED_MAX:
            del self._copied[next(iter(self._copied))]
        return unfinished

    async def _project(self, key: Key, records: Sequence[Record], whole: bool) -> Written | None:
        """The deliberation as of its newest fact; None when its facts are damaged or have left the log.

        An acceptance alone is all that there is of it, unless the `whole` is asked for.
        """
        tombstone = next((record for record in records if record.tokens[-1] == "deleted"), None)
        if tombstone is not None:
            return Written(*key, at=decode(tombstone.data).ts)
        if whole or any(record.tokens[-1] != "accepted" for record in records):
            records = await self._journal.facts(*key)
        try:
            state = state_of(records)
        except Gone:
            # Its tombstone comes as an item of its own.
            return None
        except UnexpectedFact as exc:
            log.error("archive_fact_damaged", deliberation_id=key[1], error=str(exc))
            return None
        if state is None:
            log.error("archive_too_late", deliberation_id=key[1], error="its facts have left the log")
            return None
        return Written(*key, at=state.accepted.ts, state=state, records=records)

    async def _report_progress(self) -> None:
        """Keep the server from redelivering items that are in progress."""
        while True:
            await asyncio.sleep(WORKER_ACK_WAIT_S / 3)
            for item in [*self._writing.values(), *self._waiting.values()]:
                await self._queue.working(item)

    async def _expire(self) -> None:
        """Remove what is past its retention, some rows at a time; then overwrite what was removed or deleted."""
        erased_at, expired = datetime.now(UTC) - self._retention, 0
        while True:
            with suppress(ArchiveUnavailable):
                now = datetime.now(UTC)
                before = {tenant: now - each for tenant, each in self._retentions.items()}
                while removed := await self._store.expire(now - self._retention, before):
                    self.counts["expired"] += removed
                    expired += removed
                await self._store.erase_removed(erased_at - _SKEW, expired=expired > 0)
                erased_at, expired = now, 0
            await asyncio.sleep(EXPIRE_EVERY_S)


def _unfinished(state: State) -> bool:
    planned = {call.call_id for stage in state.stages for call in stage.opened.calls}
    return state.ended and not planned <= state.finished.keys()
