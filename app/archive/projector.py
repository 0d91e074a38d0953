"""Copies deliberations from the log to the archive, and acknowledges each item once the database has committed it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TypeVar

import structlog
from pydantic import ValidationError

from app.admission.backlog import Key
from app.archive.database.rows import microseconds, progress_of
from app.archive.database.store import Copied, Store
from app.archive.database.tables import position
from app.archive.database.writing import Opening, Rows
from app.archive.projected import Projected, project
from app.deliberation.errors import ArchiveRefused, ArchiveUnavailable, InvalidToken, JournalUnavailable
from app.deliberation.facts import StageOpened, decode, is_acceptance
from app.deliberation.ports import Journal, Record
from app.log.journal import JetStreamJournal
from app.log.projection import Projection
from app.log.stream_settings import ARCHIVE_CONSUMER, coordinator_queues
from app.log.streams import WORKER_ACK_WAIT_S
from app.log.work_queue import QueueItem, WorkQueue

BATCH_MAX = 256
# Five batches at most are read, made and written at once. Further items wait.
HELD_MAX = 8 * BATCH_MAX
# After a batch that was not full. A request and a transaction cost as much as some deliberations.
FETCH_EVERY_S = 0.75
# A batch of larger facts is cut. Its rest waits.
BATCH_BYTES_MAX = 16_000_000
READ_AT_ONCE = 64
# The projector remembers the copied position of this many deliberations.
COPIED_MAX = 20_000
RETRY_S = 1.0
# Calls that were cut by the end record their outcomes within this time.
LATE_S = 10.0
# Unreadable facts are read again at this interval, by any projector, until they leave the log.
UNREADABLE_S = 30.0
EXPIRE_EVERY_S = 60.0

# The facts after which no other changes a row, except late outcomes.
_OVER = ".end", ".deleted"
# The facts of which the first are all.
_BEGINNING = {("accepted",), ("stage", "1", "opened")}
# Openings of stages are received live: with a second filter on the queue the server looks at each partial text.
OPENINGS = "deliberations.*.*.stage.*.opened"
# Openings wait so many at most for a round in which the queue is empty.
OPENINGS_MAX = 20_000
# The clocks of two processes differ by less than this.
_SKEW = timedelta(minutes=1)

_Answer = TypeVar("_Answer")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """The facts of some items. `openings` are of deliberations without another fact among them.

    `copied` is how far the log is copied once these are written.
    """

    sequences: Sequence[int]
    facts: Sequence[tuple[Key, Sequence[Record]]]
    log: int
    openings: Sequence[Opening] = ()
    copied: Copied | None = None


class Projector:
    """Takes items in rounds. While one batch is written, rows of the second are made, and the third is read.

    `counts` counts deliberations: `written`, `deleted`, `expired`, and `skipped` for facts that cannot be read, are
    refused by the database, or have left the log. `failure` says why the projector waits.
    """

    def __init__(
        self,
        journal: JetStreamJournal,
        store: Store,
        retention_s: int,
        retentions_s: Mapping[str, int] | None = None,
        clusters: Sequence[str] = (),
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failure = ""
        self._journal = journal
        self._store = store
        self._coordinators = coordinator_queues(clusters)
        self._retention = timedelta(seconds=retention_s)
        self._retentions = {tenant: timedelta(seconds=kept_s) for tenant, kept_s in (retentions_s or {}).items()}
        self._queue = WorkQueue(journal, HELD_MAX, self._on_item, consumer=ARCHIVE_CONSUMER, standing=False)
        self._waiting: dict[int, QueueItem] = {}
        self._writing: dict[int, QueueItem] = {}
        self._read = asyncio.Queue[_Read](maxsize=1)
        self._made = asyncio.Queue[tuple[_Read, Sequence[Projected]]](maxsize=1)
        # The last sequence of deliberations to which nothing more is expected, oldest read first.
        self._copied: dict[Key, int] = {}
        self._epoch = ""
        # Openings that were received and not written, oldest first: of a deliberation the first and the last one.
        self._openings: dict[Key, tuple[Record, ...]] = {}
        # Until an earlier process's items are acknowledged or redelivered, the queue is not all that is missing.
        self._complete = False

    async def run(self) -> None:
        openings = Projection(
            self._journal, (OPENINGS,), self._on_record, self._replay, lambda projection: projection.stale.wait()
        )
        try:
            async with asyncio.TaskGroup() as group:
                await self._queue.start()
                group.create_task(openings.run())
                group.create_task(self._check_complete())
                group.create_task(self._report_progress())
                group.create_task(self._expire())
                group.create_task(self._read_batches())
                group.create_task(self._make_batches())
                group.create_task(self._write_batches())
        finally:
            await self._queue.close()
            for item in [*self._writing.values(), *self._waiting.values()]:
                await self._queue.requeue(item)

    def _on_item(self, item: QueueItem) -> None:
        sequence = item.record.sequence
        held = self._writing if sequence in self._writing else self._waiting
        if sequence in held:
            # Redelivered while in progress, for example after an outage of the log: acknowledge the newer delivery.
            self._queue.drop()
        held[sequence] = item

    def _on_record(self, record: Record) -> None:
        """Keep the opening of a stage until its deliberation's row is written."""
        key = record.tokens[1], record.tokens[2]
        self._openings[key] = (*self._openings.get(key, ())[:1], record)
        if len(self._openings) > OPENINGS_MAX:
            del self._openings[next(iter(self._openings))]

    async def _replay(self, journal: Journal) -> None:
        """Read the openings that were not received. Up to the coordinators' place all deliberations have ended."""
        async for record in journal.read(OPENINGS, (await journal.queue(*self._coordinators)).acknowledged_to):
            self._on_record(record)

    async def _check_complete(self) -> None:
        """Wait for items that a process before this one has taken and not acknowledged."""
        until_s = asyncio.get_running_loop().time() + WORKER_ACK_WAIT_S + RETRY_S
        end = (await self._until_answered(self._journal.state)).last_sequence
        while asyncio.get_running_loop().time() < until_s:
            queue = await self._until_answered(partial(self._journal.queue, ARCHIVE_CONSUMER))
            if not queue.left or queue.acknowledged_to >= end:
                break
            await asyncio.sleep(FETCH_EVERY_S / 3)
        self._complete = True

    async def _read_batches(self) -> None:
        while True:
            state, at = await self._until_answered(self._journal.state), datetime.now(UTC)
            openings = dict(self._openings)
            emptied = await self._queue.fetch() if len(self._waiting) < HELD_MAX // 2 else False
            chosen = list(islice(self._waiting, BATCH_MAX))
            for sequence in chosen:
                self._writing[sequence] = self._waiting.pop(sequence)
            copied = None
            if emptied and not self._waiting and self._complete:
                copied = Copied(state.epoch, state.last_sequence, at)
            if chosen or copied is not None:
                # Of what the queue still has, the acceptance may be missing.
                known = openings if emptied and not self._waiting else {}
                ask = partial(self._read_all, chosen, known, copied)
                await self._read.put(await self._until_answered(ask))
            if not chosen or (emptied is not False and len(chosen) < BATCH_MAX):
                await asyncio.sleep(FETCH_EVERY_S)

    async def _make_batches(self) -> None:
        """Make rows of the facts that were read, in a thread: the event loop answers while a batch is long."""
        while True:
            read = await self._read.get()
            projected = list[Projected]()
            if read.facts:
                projected = await asyncio.to_thread(project, read.facts, read.log, self._store.dialect)
            for projection in projected:
                if projection.fault:
                    log.error("archive_skipped", deliberation_id=projection.key[1], error=projection.fault)
                if projection.unfinished_at is not None or projection.unreadable:
                    self._copied.pop(projection.key, None)
            await self._made.put((read, projected))

    async def _write_batches(self) -> None:
        while True:
            read, projected = await self._made.get()
            made = [projection.rows for projection in projected if projection.rows is not None]
            rows = await self._put(made, read.openings, read.copied)
            deleted = sum(row.words is None for row in rows)
            self.counts["written"] += len(rows) - deleted
            self.counts["deleted"] += deleted
            self.counts["skipped"] += len(projected) - len(rows)
            unfinished_at = {projection.key[1]: projection.unfinished_at for projection in projected}
            unreadable = {projection.key[1] for projection in projected if projection.unreadable}
            for sequence in read.sequences:
                item = self._writing.pop(sequence, None)
                if item is None:
                    continue
                tokens = item.record.tokens
                ended_at = unfinished_at.get(tokens[2]) if tokens[-1] == "end" else None
                # A restart redelivers the item, maybe before late outcomes are recorded. The coordinator's clock may be
                # ahead.
                young = ended_at is not None and abs(datetime.now(UTC) - ended_at) < timedelta(seconds=LATE_S)
                if tokens[2] in unreadable:
                    await self._queue.requeue(item, UNREADABLE_S)
                elif ended_at is not None and (young or item.deliveries == 1):
                    await self._queue.requeue(item, LATE_S)
                else:
                    await self._queue.ack(item)

    async def _put(
        self, rows: Sequence[Rows], openings: Sequence[Opening] = (), copied: Copied | None = None
    ) -> Sequence[Rows]:
        """Write rows together, or one by one when the database refuses a value; returns the written ones."""
        if not rows and not openings and copied is None:
            return rows
        try:
            await self._until_answered(partial(self._store.put, rows, openings, copied))
        except ArchiveRefused as exc:
            if len(rows) > 1 or (rows and (openings or copied)):
                taken = [written for row in rows for written in await self._put([row])]
                await self._put([], openings, copied)
                return taken
            self.failure = ""
            log.error("archive_skipped", deliberation_id=rows[0].key[1] if rows else None, error=str(exc))
            return []
        return rows

    async def _until_answered(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Call `ask` until the log and the database answer, and return its result; raises ArchiveRefused."""
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

    async def _read_all(
        self, sequences: Sequence[int], received: Mapping[Key, Sequence[Record]], copied: Copied | None
    ) -> _Read:
        """Read the deliberations of these items that no earlier round covers, up to BATCH_BYTES_MAX."""
        epoch = (await self._journal.state()).epoch
        number = await self._store.log_number(epoch)
        if epoch != self._epoch:
            replaced, self._epoch = bool(self._epoch), epoch
            self._copied.clear()
            if replaced:
                self._drop_held()
                return _Read((), (), number)
        if copied is not None and copied.epoch != epoch:
            copied = None
        records = [self._writing[sequence].record for sequence in sequences]
        due = self._uncovered(records)
        # A full batch means that later facts are in the log already: each deliberation is read once.
        whole = len(records) == BATCH_MAX
        facts, size, left = list[tuple[Key, Sequence[Record]]](), 0, iter(due.items())
        while size < BATCH_BYTES_MAX and (some := list(islice(left, READ_AT_ONCE))):
            asked = [(key, [*known, *received.get(key, ())]) for key, known in some]
            histories = await asyncio.gather(*(self._facts(key, known, whole) for key, known in asked))
            size += sum(len(record.data) for _, history in histories for record in history)
            facts += histories
        self._note(facts)
        put_back = {record.sequence for _, unread in left for record in unread}
        for sequence in put_back:
            self._waiting[sequence] = self._writing.pop(sequence)
        sequences = [sequence for sequence in sequences if sequence not in put_back]
        read = {key for key, _ in facts}
        alone = [
            _opening(key, record, number) for key, records in received.items() if key not in read for record in records
        ]
        for key, records in received.items():
            if self._openings.get(key) == records:
                del self._openings[key]
        openings = [opening for opening in alone if opening is not None]
        return _Read(sequences, facts, number, openings, None if put_back else copied)

    def _drop_held(self) -> None:
        for _ in range(len(self._writing) + len(self._waiting)):
            self._queue.drop()
        self._writing.clear()
        self._waiting.clear()
        self._openings.clear()

    def _uncovered(self, records: Sequence[Record]) -> dict[Key, list[Record]]:
        due = dict[Key, list[Record]]()
        for record in records:
            key = record.tokens[1], record.tokens[2]
            if record.sequence > self._copied.get(key, 0):
                due.setdefault(key, []).append(record)
        return due

    def _note(self, facts: Sequence[tuple[Key, Sequence[Record]]]) -> None:
        """Remember up to which sequence each ended or deleted deliberation is read."""
        for key, records in facts:
            if any(record.subject.endswith(_OVER) for record in records):
                self._copied[key] = records[-1].sequence
        while len(self._copied) > COPIED_MAX:
            del self._copied[next(iter(self._copied))]

    async def _facts(self, key: Key, records: Sequence[Record], whole: bool) -> tuple[Key, Sequence[Record]]:
        """Returns a tombstone alone, none on a foreign subject, else all facts; `whole` completes beginnings too."""
        tails = {("accepted",) if is_acceptance(record.subject) else tuple(record.tokens[3:]) for record in records}
        if ("deleted",) not in tails and (whole or not {("accepted",)} <= tails <= _BEGINNING):
            try:
                return key, await self._journal.facts(*key, known=records)
            except InvalidToken:
                return key, ()
        return key, records

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(WORKER_ACK_WAIT_S / 3)
            # What was taken later is safe until the next round, and is mostly written before it.
            taken_before_s = asyncio.get_running_loop().time() - WORKER_ACK_WAIT_S / 3
            for item in [*self._writing.values(), *self._waiting.values()]:
                if item.taken_at_s < taken_before_s:
                    await self._queue.working(item)

    async def _expire(self) -> None:
        """Remove rows past their retention, some at a time; then overwrite removed and deleted ones."""
        erased_at, expired = datetime.now(UTC) - self._retention, 0
        while True:
            with suppress(ArchiveUnavailable, ArchiveRefused):
                now = datetime.now(UTC)
                before = {tenant: now - retention for tenant, retention in self._retentions.items()}
                while removed := await self._store.expire(now - self._retention, before):
                    self.counts["expired"] += removed
                    expired += removed
                await self._store.erase_removed(erased_at - _SKEW, expired=expired > 0)
                erased_at, expired = now, 0
            await asyncio.sleep(EXPIRE_EVERY_S)


def _opening(key: Key, record: Record, log: int) -> Opening | None:
    try:
        fact = decode(record.data)
    except ValidationError:
        return None
    if not isinstance(fact, StageOpened):
        return None
    return Opening(key, position(log, record.sequence), microseconds(fact.ts), progress_of(fact))
