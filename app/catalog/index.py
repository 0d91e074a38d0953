"""What the archive may lack, in memory: deliberations that run, and those that changed a moment ago.

Admission counts what runs. A list is a page of the archive, merged with this. After a lost connection it is read from
the last sequence up to which all facts were applied.
"""

import asyncio
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Self

import structlog
from pydantic import ValidationError

from app.admission.backlog import Backlog, Key
from app.catalog.entries import Entry
from app.deliberation.errors import InvalidToken, JournalUnavailable
from app.deliberation.facts import Deleted, decode, prefix
from app.deliberation.ports import Clock, Journal, Record, StreamState
from app.log.projection import Projection
from app.log.stream_settings import ARCHIVE_CONSUMER, CONSUMER

# Tombstones first, so that a replay never shows deleted deliberations. Acceptances last: an ended deliberation would
# count as unfinished until its end is read.
TAILS = ("deleted", "end", "stage.1.opened", "cancel", "accepted")
PATTERNS = tuple(f"deliberations.*.*.{tail}" for tail in TAILS)
SIZE_MAX = 20_000
PAST_MAX = 4_096
CHECK_S = 5.0
# A start reads so much of the log at least: recent ends tell how fast work is done.
RECENT_SEQUENCES = 10_000
# The replay yields to other tasks after so many facts, about every 10 ms.
YIELDS_EVERY = 128
LOADED_AT_ONCE = 128

NOT_READ = "The log has not been read yet; it may not be reachable."

log = structlog.get_logger(__name__)


def _sequence(entry: Entry) -> int:
    return entry.sequence


@dataclass(frozen=True, slots=True)
class Recent:
    """What the archive may lack of a tenant: what runs, and whatever has changed since it was copied.

    `entries` are in the order of acceptance. `ids` are theirs, and those of deleted deliberations. It is not `whole`
    while something was forgotten that the archive lacks.
    """

    whole: bool
    entries: Sequence[Entry]
    ids: Collection[str]


class Catalog:
    """It is kept up to date by `follow`. `epoch` is the incarnation of the log that it was read from.

    `caught_up` is true once everything that runs has been read. What has ended is forgotten when the archive has it, or
    at once without an archive (`archived`). Beyond `size_max` the oldest is forgotten before that; then lists have to
    wait for the archive.
    """

    def __init__(
        self, clock: Clock, backlog: Backlog, *, retention_s: int, archived: bool = False, size_max: int = SIZE_MAX
    ) -> None:
        self.backlog = backlog
        self.epoch = ""
        self.ended_counts: Counter[str] = Counter()
        self._clock = clock
        self._retention = timedelta(seconds=retention_s)
        self._archived = archived
        self._size_max = size_max
        # A timed-out waiter stays, since others may share it; the deliberation's end or the drain removes it.
        self._waiters: dict[Key, asyncio.Event] = {}
        self._dismissed = False
        self._completion = asyncio.Lock()
        self._following: Projection | None = None
        self._clear()

    def _clear(self) -> None:
        self.caught_up = False
        self._entries: dict[Key, Entry] = {}
        # By tenant in the order of acceptance, so that the cost of a list does not depend on other tenants.
        self._accepted: dict[str, list[Entry]] = {}
        self._active: dict[Key, Entry] = {}
        self._deleted: dict[Key, int] = {}
        self._past: dict[Key, Entry] = {}
        self.backlog.clear()
        # All facts up to here were applied; and those up to the second, while no live fact was lost.
        self._applied_to = 0
        self._heard_to = 0
        # The archive has all facts up to here. What was forgotten before that had facts up to `_lost_to`.
        self._archived_to = 0
        self._lost_to = 0

    def require_caught_up(self) -> Self:
        """The catalog itself; raises JournalUnavailable until it has read what runs."""
        if not self.caught_up:
            raise JournalUnavailable(NOT_READ)
        return self

    async def follow(self, journal: Journal) -> None:
        """Subscribe to the log and read it, until cancelled; waits for an unavailable log."""
        await Projection(journal, PATTERNS, self._hear, self._catch_up, partial(self._until_resync, journal)).run()

    async def _catch_up(self, journal: Journal) -> None:
        state = await journal.state()
        if state.epoch != self.epoch or state.last_sequence < self._applied_to:
            # Another log, or one that lost its tail, invalidates everything.
            self._clear()
            self.epoch = state.epoch
        await self._read(journal, self._applied_to if self.caught_up else await self._beginning(journal, state))
        self._applied_to = max(self._applied_to, state.last_sequence)
        await self._forget_archived(journal, state.last_sequence)
        await self._load_missing(journal)
        self.backlog.settle()
        if not self.caught_up:
            log.info("catalog_caught_up", deliberations=len(self._entries), epoch=self.epoch)
        self.caught_up = True

    async def _beginning(self, journal: Journal, state: StreamState) -> int:
        """The sequence after which everything has to be read at a start."""
        work = await journal.queue(CONSUMER)
        after = min(work.acknowledged_to, max(0, state.last_sequence - RECENT_SEQUENCES))
        if not self._archived:
            return after
        archive = await journal.queue(ARCHIVE_CONSUMER)
        if archive.left > self._size_max:
            self._lost_to = state.last_sequence
            return after
        return min(after, archive.acknowledged_to)

    async def _read(self, journal: Journal, after: int) -> None:
        """Apply the stored facts above `after`."""
        applied = 0
        for pattern in PATTERNS:
            async for record in journal.read(pattern, after):
                self.apply(record)
                applied += 1
                if applied % YIELDS_EVERY == 0:
                    await asyncio.sleep(0)

    async def complete(self, journal: Journal, state: StreamState) -> None:
        """Apply everything up to these bounds of the log; raises JournalUnavailable."""
        if state.epoch != self.require_caught_up().epoch:
            raise JournalUnavailable("The log was replaced and has not been read yet.")
        async with self._completion:
            heard = self._following is not None and not self._following.stale.is_set()
            known_to = max(self._applied_to, self._heard_to if heard else 0)
            if known_to < state.last_sequence:
                found = await asyncio.gather(*(_all(journal.read(pattern, known_to)) for pattern in PATTERNS))
                for record in chain.from_iterable(found):
                    self.apply(record)
                self._applied_to = max(self._applied_to, state.last_sequence)
            await self._load_missing(journal)

    async def _until_resync(self, journal: Journal, projection: Projection) -> None:
        """Wait until a replay is needed. After a whole period without a loss, the received facts are complete."""
        heard_to = self._applied_to
        self._following = projection
        try:
            while not await projection.stale_within(CHECK_S):
                # What changed within the last period stays, because a page may be as of a moment ago.
                settled, heard_to = heard_to, max(self._applied_to, self._heard_to)
                self._applied_to = max(self._applied_to, settled)
                self._forget_old()
                with suppress(JournalUnavailable):
                    await self._forget_archived(journal, settled)
                    await self._load_missing(journal)
                    if (await journal.state()).epoch != self.epoch:
                        return
        finally:
            self._following = None

    def _hear(self, record: Record) -> None:
        """Apply a live fact; they come in order."""
        self._heard_to = max(self._heard_to, record.sequence)
        self.apply(record)

    def observe(self, record: Record) -> None:
        """Apply any event of the log; ignores events that are applied already or that lists do not depend on."""
        if record.sequence <= self._applied_to:
            return
        tail = record.tokens[3:]
        if len(tail) == 1 or tail == ["stage", "1", "opened"]:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Apply one fact, in any order and any number of times; logs and skips a fact that cannot be read."""
        _, tenant, deliberation_id, *tail = record.tokens
        key = (tenant, deliberation_id)
        entry = self._entries.get(key)
        if (
            key in self._deleted
            or (entry is None and record.sequence <= self._archived_to)
            or (entry is not None and entry.sequence and tail == ["accepted"])
        ):
            return
        try:
            # A foreign writer may use any subject, and none of such a deliberation can be read.
            prefix(*key)
            fact = decode(record.data)
        except (ValidationError, InvalidToken):
            log.warning("fact_undecodable", subject=record.subject, sequence=record.sequence)
            return
        if isinstance(fact, Deleted):
            self._remove_deleted(key, record.sequence)
            return
        if entry is None:
            entry = self._entries[key] = Entry(tenant, deliberation_id, first_fact_at=fact.ts)
        known, ended = entry.sequence > 0, entry.ended is not None
        entry.take(fact, record.sequence)
        if not known and entry.sequence:
            insort(self._accepted.setdefault(tenant, []), entry, key=_sequence)
        if not ended and entry.ended is not None:
            self._announce_end(key, entry.ended)
        if entry.sequence and not (known and ended):
            self._count(key, entry)
        self._forget_surplus()

    def _announce_end(self, key: Key, status: str) -> None:
        self.ended_counts[status] += 1
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            waiter.set()

    def _count(self, key: Key, entry: Entry) -> None:
        """Update the backlog, even if the end was received before the acceptance."""
        accepted_at = entry.created_at or entry.first_fact_at
        self.backlog.hold(key, entry.roles, accepted_at, begun_at=entry.started_at, priority=entry.priority)
        if entry.ended is None:
            self._active[key] = entry
        else:
            self._active.pop(key, None)
            self.backlog.drop(key, done_at=entry.ended_at if entry.ended == "completed" else None)

    async def ended(self, tenant: str, deliberation_id: str, timeout_s: float) -> bool:
        """Whether the deliberation ends within `timeout_s`; returns at once if its end is in memory.

        Waiting costs no request to the log. False at once when the waiters are dismissed.
        """
        key = (tenant, deliberation_id)
        entry = self._entries.get(key)
        if entry is not None and entry.ended is not None:
            return True
        if self._dismissed:
            return False
        waiter = self._waiters.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.wait()
        except TimeoutError:
            return False
        entry = self._entries.get(key)
        return entry is not None and entry.ended is not None

    def dismiss_waiters(self) -> None:
        """Release all present and future waiters, because the process stops."""
        self._dismissed = True
        for waiter in self._waiters.values():
            waiter.set()
        self._waiters.clear()

    def _remove_deleted(self, key: Key, sequence: int) -> None:
        """Remove a deleted deliberation and ignore its later facts."""
        entry = self._entries.pop(key, None)
        self._past.pop(key, None)
        self._active.pop(key, None)
        self.backlog.drop(key)
        if entry is not None and entry.sequence:
            own = self._accepted[entry.tenant]
            del own[bisect_left(own, entry.sequence, key=_sequence)]
        self._deleted[key] = sequence
        self._forget_surplus()

    async def _forget_archived(self, journal: Journal, known_to: int) -> None:
        """Forget what the archive has, of what has ended. All facts up to `known_to` were applied."""
        archived_to = known_to
        if self._archived:
            archive = await journal.queue(ARCHIVE_CONSUMER)
            archived_to = min(known_to, archive.acknowledged_to)
            if not archive.left:
                self._lost_to = 0
        self._archived_to = max(self._archived_to, archived_to)
        self._drop(
            key
            for key, entry in self._entries.items()
            if key not in self._active and entry.last_sequence <= self._archived_to
        )
        self._deleted = {key: sequence for key, sequence in self._deleted.items() if sequence > self._archived_to}

    def _forget_old(self) -> None:
        """Forget what has left the log."""
        oldest = self._clock.now() - self._retention
        self._drop(key for key, entry in self._entries.items() if (entry.created_at or entry.first_fact_at) < oldest)

    def _forget_surplus(self) -> None:
        """Beyond the bound, forget the oldest ends and deletions, a tenth more so that not every fact does this."""
        if len(self._entries) - len(self._active) + len(self._deleted) <= self._size_max:
            return
        ends = [(entry.last_sequence, key) for key, entry in self._entries.items() if key not in self._active]
        gone = sorted([*ends, *((sequence, key) for key, sequence in self._deleted.items())])
        del gone[max(1, self._size_max // 10) :]
        self._lost_to = max(self._lost_to, gone[-1][0])
        self._drop(key for _, key in gone)
        for _, key in gone:
            self._deleted.pop(key, None)

    def _drop(self, gone: Iterable[Key]) -> None:
        dropped = {key: self._entries[key] for key in gone if key in self._entries}
        for key in dropped:
            del self._entries[key]
            self._active.pop(key, None)
            self.backlog.drop(key)
        for tenant in {entry.tenant for entry in dropped.values() if entry.sequence}:
            kept = [entry for entry in self._accepted[tenant] if (tenant, entry.id) not in dropped]
            if kept:
                self._accepted[tenant] = kept
            else:
                del self._accepted[tenant]

    async def _load_missing(self, journal: Journal) -> None:
        """Load what was heard of without its acceptance: it was forgotten, or accepted before a start's first fact."""
        missing = [key for key, entry in self._entries.items() if not entry.sequence]
        for record in await _facts(journal, missing):
            self.apply(record)
        self._drop(key for key in missing if key in self._entries and not self._entries[key].sequence)

    async def recall(self, journal: Journal, tenant: str, ids: Collection[str]) -> None:
        """Have `find` know these deliberations, PAST_MAX at most, as far as the log has them."""
        unknown = [(tenant, id) for id in ids if self.find(tenant, id) is None]
        for record in await _facts(journal, unknown):
            fact, key = decode(record.data), (tenant, record.tokens[2])
            self._past.setdefault(key, Entry(*key, first_fact_at=fact.ts)).take(fact, record.sequence)
        while len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def recent(self, tenant: str) -> Recent:
        """What is in memory of a tenant now; raises JournalUnavailable until what runs was read."""
        self.require_caught_up()
        entries = tuple(self._accepted.get(tenant, ()))
        deleted = {id for of, id in self._deleted if of == tenant}
        whole = self._lost_to <= self._archived_to
        return Recent(whole, entries, {each.id for each in entries} | deleted)

    def running(self, tenant: str | None) -> list[Entry]:
        """What has not ended, of a tenant or of all; raises JournalUnavailable until it was read."""
        self.require_caught_up()
        return [entry for (of, _), entry in self._active.items() if tenant in (None, of)]

    def follows(self, tenant: str, deliberation_id: str) -> bool:
        """Whether the deliberation is in memory with all of its facts: a recalled one may have changed since."""
        return (tenant, deliberation_id) in self._entries

    def find(self, tenant: str, deliberation_id: str) -> Entry | None:
        """The entry of a deliberation that is in memory, if any."""
        key = (tenant, deliberation_id)
        return self._entries.get(key) or self._past.get(key)

    def active_by_status(self) -> dict[str, int]:
        """Accepted and unfinished deliberations of all tenants."""
        counts = Counter[str]({"pending": 0, "in_progress": 0, "cancelling": 0})
        counts.update(entry.status for entry in self._active.values())
        return dict(counts)


async def _all(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]


async def _facts(journal: Journal, keys: Sequence[Key]) -> list[Record]:
    """The facts of these deliberations that lists depend on."""
    found = list[Record]()
    for begin in range(0, len(keys), LOADED_AT_ONCE):
        some = keys[begin : begin + LOADED_AT_ONCE]
        found += await journal.last([f"{prefix(*key)}.{tail}" for key in some for tail in TAILS])
    return found
