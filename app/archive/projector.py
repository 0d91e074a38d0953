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
from app.archive.database.store import Store
from app.archive.database.writing import Rows
from app.archive.projection import Projected, project
from app.archive.row_process import RowProcess
from app.deliberation.errors import ArchiveRefused, ArchiveUnavailable, InvalidToken, JournalUnavailable
from app.deliberation.ports import Record
from app.log.journal import JetStreamJournal
from app.log.stream_settings import ARCHIVE_CONSUMER
from app.log.streams import WORKER_ACK_WAIT_S
from app.log.work_queue import QueueItem, WorkQueue

BATCH_MAX = 256
# Five batches at most are read, made and written at once. Further items wait.
HELD_MAX = 8 * BATCH_MAX
# After a batch that was not full. A request and a transaction cost as much as some deliberations.
FETCH_EVERY_S = 0.75
# What has begun waits so long for its end: most deliberations are read and written once.
BEGUN_S = 5.0
# A batch of larger facts is cut. Its rest waits.
BATCH_BYTES_MAX = 16_000_000
READ_AT_ONCE = 64
# Of so many deliberations it is known how far they were copied.
COPIED_MAX = 20_000
RETRY_S = 1.0
# Calls that were cut by the end record their outcomes within this time.
LATE_S = 10.0
EXPIRE_EVERY_S = 60.0

# The subjects of facts after which nothing waits end so.
_OVER = ".end", ".deleted"
# The clocks of two processes differ by less than this.
_SKEW = timedelta(minutes=1)

_Answer = TypeVar("_Answer")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """What the log with this number has of some items; `behind`: it has many more."""

    sequences: Sequence[int]
    facts: Sequence[tuple[Key, Sequence[Record]]]
    log: int
    behind: bool


@dataclass(frozen=True, slots=True)
class _Batch:
    """What is written of some items."""

    sequences: Sequence[int]
    projected: Sequence[Projected]


class Projector:
    """Takes items in batches of at most BATCH_MAX. While one is written, rows of the next are made, and one is read.

    Ends and deletions are written at once, and what has begun after BEGUN_S, or with its end.

    Batches are written in order, so that an item that an earlier one covers is only acknowledged, after its write.

    `counts` counts deliberations by what was done: `written`, `deleted`, `expired`, and `skipped` for facts that are
    damaged, refused by the database, or have left the log. `failure` says what the projector waits for, empty while it
    works. `retentions_s` are those of tenants for which `retention_s` does not hold.
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
        self._row_process = RowProcess()
        self._read = asyncio.Queue[_Read](maxsize=1)
        self._made = asyncio.Queue[_Batch](maxsize=1)
        # The last sequence of deliberations to which nothing more is expected, oldest read first.
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
                group.create_task(self._make_batches())
                group.create_task(self._write_batches())
        finally:
            self._row_process.close()
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
        while True:
            behind = len(self._waiting) >= HELD_MAX // 2 or not await self._queue.fetch()
            chosen = list(islice(self._waiting if behind else self._due(), BATCH_MAX))
            for sequence in chosen:
                self._writing[sequence] = self._waiting.pop(sequence)
            if chosen:
                await self._read.put(await self._until_answered(partial(self._read_all, chosen, behind)))
            if not chosen or (not behind and len(chosen) < BATCH_MAX):
                await asyncio.sleep(FETCH_EVERY_S)

    def _due(self) -> Iterator[int]:
        """The sequences of what ended or was deleted, and of what began a while ago."""
        over = {item.record.tokens[2] for item in self._waiting.values() if item.record.subject.endswith(_OVER)}
        long_ago_s = asyncio.get_running_loop().time() - BEGUN_S
        for sequence, item in self._waiting.items():
            if item.taken_at_s < long_ago_s or item.record.tokens[2] in over:
                yield sequence

    async def _make_batches(self) -> None:
        """Make the rows of what was read, in the second process while this one is behind."""
        while True:
            read = await self._read.get()
            given = read.facts, read.log, self._store.dialect
            if read.behind:
                projected = await self._row_process.project(*given)
            else:
                # In a thread, because the event loop would not answer for as long as a batch of long answers takes.
                projected = await asyncio.to_thread(project, *given)
            for each in projected:
                if each.fault:
                    log.error("archive_skipped", deliberation_id=each.key[1], error=each.fault)
                if each.unfinished_at is not None:
                    self._copied.pop(each.key, None)
            await self._made.put(_Batch(read.sequences, projected))

    async def _write_batches(self) -> None:
        while True:
            batch = await self._made.get()
            made = [each.rows for each in batch.projected if each.rows is not None]
            rows = await self._put(made) if made else made
            deleted = sum(each.words is None for each in rows)
            self.counts["written"] += len(rows) - deleted
            self.counts["deleted"] += deleted
            self.counts["skipped"] += len(batch.projected) - len(rows)
            unfinished_at = {each.key[1]: each.unfinished_at for each in batch.projected}
            for sequence in batch.sequences:
                item = self._writing.pop(sequence, None)
                if item is None:
                    continue
                tokens = item.record.tokens
                ended_at = unfinished_at.get(tokens[2]) if tokens[-1] == "end" else None
                # A restart redelivers too, maybe before late outcomes are recorded. Another clock may be ahead.
                young = ended_at is not None and abs(datetime.now(UTC) - ended_at) < timedelta(seconds=LATE_S)
                if ended_at is not None and (young or item.deliveries == 1):
                    await self._queue.requeue(item, LATE_S)
                else:
                    await self._queue.ack(item)

    async def _put(self, rows: Sequence[Rows]) -> Sequence[Rows]:
        """Write rows together, or one by one when the database refuses a value of them; returns what it took."""
        try:
            await self._until_answered(partial(self._store.put, rows))
        except ArchiveRefused as exc:
            if len(rows) > 1:
                return [taken for each in rows for taken in await self._put([each])]
            self.failure = ""
            log.error("archive_skipped", deliberation_id=rows[0].key[1], error=str(exc))
            return []
        return rows

    async def _until_answered(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """What `ask` returns once the log and the database answer; raises ArchiveRefused."""
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

    async def _read_all(self, sequences: Sequence[int], behind: bool) -> _Read:
        """Read these items' deliberations, but for those that an earlier batch covers, up to BATCH_BYTES_MAX."""
        epoch = (await self._journal.state()).epoch
        number = await self._store.log_number(epoch)
        if epoch != self._epoch:
            replaced, self._epoch = bool(self._epoch), epoch
            self._copied.clear()
            if replaced:
                self._drop_held()
                return _Read((), (), number, behind)
        records = [self._writing[sequence].record for sequence in sequences]
        due = self._uncovered(records)
        # A full batch means that later facts are in the log already: each deliberation is read once.
        whole = len(records) == BATCH_MAX
        facts, size, left = list[tuple[Key, Sequence[Record]]](), 0, iter(due.items())
        while size < BATCH_BYTES_MAX and (some := list(islice(left, READ_AT_ONCE))):
            found = await asyncio.gather(*(self._facts(key, known, whole) for key, known in some))
            size += sum(len(record.data) for _, each in found for record in each)
            facts += found
        self._note(facts)
        put_back = {record.sequence for _, unread in left for record in unread}
        for sequence in put_back:
            self._waiting[sequence] = self._writing.pop(sequence)
        return _Read([sequence for sequence in sequences if sequence not in put_back], facts, number, behind)

    def _drop_held(self) -> None:
        """Forget all items: they belong to a log that was replaced. Those of the new one are delivered again."""
        for _ in range(len(self._writing) + len(self._waiting)):
            self._queue.drop()
        self._writing.clear()
        self._waiting.clear()

    def _uncovered(self, records: Sequence[Record]) -> dict[Key, list[Record]]:
        """The records that no batch covers yet, by deliberation."""
        due = dict[Key, list[Record]]()
        for record in records:
            key = record.tokens[1], record.tokens[2]
            if record.sequence > self._copied.get(key, 0):
                due.setdefault(key, []).append(record)
        return due

    def _note(self, facts: Sequence[tuple[Key, Sequence[Record]]]) -> None:
        """Remember how far what has ended, or was deleted, is read."""
        for key, records in facts:
            if any(record.subject.endswith(_OVER) for record in records):
                self._copied[key] = records[-1].sequence
        while len(self._copied) > COPIED_MAX:
            del self._copied[next(iter(self._copied))]

    async def _facts(self, key: Key, records: Sequence[Record], whole: bool) -> tuple[Key, Sequence[Record]]:
        """All facts of a deliberation, or none when its subject is foreign. A tombstone is returned alone.

        An acceptance alone is completed from the log only if the `whole` is asked for.
        """
        kinds = {record.tokens[-1] for record in records}
        if "deleted" not in kinds and (whole or kinds != {"accepted"}):
            try:
                return key, await self._journal.facts(*key, known=records)
            except InvalidToken:
                return key, ()
        return key, records

    async def _report_progress(self) -> None:
        """Keep the server from redelivering items that are in progress."""
        while True:
            await asyncio.sleep(WORKER_ACK_WAIT_S / 3)
            # What was taken later is safe until the next round, and is mostly written before it.
            taken_before_s = asyncio.get_running_loop().time() - WORKER_ACK_WAIT_S / 3
            for item in [*self._writing.values(), *self._waiting.values()]:
                if item.taken_at_s < taken_before_s:
                    await self._queue.working(item)

    async def _expire(self) -> None:
        """Remove what is past its retention, some rows at a time; then overwrite what was removed or deleted."""
        erased_at, expired = datetime.now(UTC) - self._retention, 0
        while True:
            with suppress(ArchiveUnavailable, ArchiveRefused):
                now = datetime.now(UTC)
                before = {tenant: now - each for tenant, each in self._retentions.items()}
                while removed := await self._store.expire(now - self._retention, before):
                    self.counts["expired"] += removed
                    expired += removed
                await self._store.erase_removed(erased_at - _SKEW, expired=expired > 0)
                erased_at, expired = now, 0
            await asyncio.sleep(EXPIRE_EVERY_S)
