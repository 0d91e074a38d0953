"""An in-memory projection of a few facts of each deliberation, for lists, statistics and admission.

After a lost connection it replays from the last sequence up to which all facts were applied. Unfinished deliberations
are read first: admission opens once they are loaded, while lists need the whole log.
"""

import asyncio
import base64
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from math import ceil
from typing import Self

import structlog
from pydantic import ValidationError

from app.admission.backlog import Backlog, Key
from app.api.schemas import Durations, Stats, Status, Tokens
from app.catalog.entries import Entry, ListFilter
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import TERMINAL_STATUS, Accepted, CancelRequested, Deleted, End, StageOpened, decode
from app.deliberation.ports import Clock, Journal, Record, StreamState
from app.log.projection import Projection

# Tombstones first, so that a replay never shows deleted deliberations. Acceptances last: an ended deliberation would
# count as unfinished until its end is read.
PATTERNS = tuple(f"deliberations.*.*.{tail}" for tail in ("deleted", "end", "stage.1.opened", "cancel", "accepted"))
TASK_CHARS_MAX = 200
CHECK_S = 20.0
# The replay yields to other tasks after so many facts, about every 10 ms.
YIELDS_EVERY = 128

NOT_READ = "The log has not been read yet; it may not be reachable."

log = structlog.get_logger(__name__)


def _sequence(entry: Entry) -> int:
    return entry.sequence


def _page(entries: Iterable[Entry], limit: int) -> tuple[list[Entry], bool]:
    """The first `limit` entries, and whether more follow."""
    found = list(islice(entries, limit + 1))
    return found[:limit], len(found) > limit


def percentile(ordered: list[float], share: float) -> float | None:
    """The nearest-rank percentile of ascending values; None when there are none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def fair_surplus(held: Sequence[Sequence[Entry]], surplus: int) -> list[Entry]:
    """At least `surplus` entries to remove: the oldest of the largest tenants, down to one common size.

    `held` are the removable entries of each tenant, oldest first. Small tenants lose no entries to large ones.
    """
    counts = sorted((len(own) for own in held), reverse=True)
    level, above = 0, 0
    for place, count in enumerate(counts, start=1):
        above += count
        level = max(0, (above - surplus) // place)
        if place == len(counts) or level >= counts[place]:
            break
    return [entry for own in held for entry in own[: max(0, len(own) - level)]]


class Catalog:
    """The projection, kept up to date by `follow`. `epoch` is the incarnation of the log that it was read from.

    `backlog_known` is true once all unfinished deliberations have been read, `caught_up` once all have.
    `retention_s` and `size_max` bound it: beyond them the oldest ended deliberations are removed, those of the largest
    tenants first. `tombstones` are the deletions for `app.lifecycle.sweep` to check.
    """

    def __init__(self, clock: Clock, backlog: Backlog, *, retention_s: int, size_max: int) -> None:
        self.backlog = backlog
        self.epoch = ""
        self.ended_counts: Counter[str] = Counter()
        self.tombstones: deque[Key] = deque(maxlen=size_max)
        self._clock = clock
        self._retention = timedelta(seconds=retention_s)
        self._size_max = size_max
        # A timed-out waiter stays, since others may share it; the deliberation's end or the drain removes it.
        self._waiters: dict[Key, asyncio.Event] = {}
        self._dismissed = False
        self._completion = asyncio.Lock()
        self._clear()

    def _clear(self) -> None:
        self.backlog_known = False
        self.caught_up = False
        self._entries: dict[Key, Entry] = {}
        # By tenant in the order of acceptance, so that the cost of a list does not depend on other tenants.
        self._accepted: dict[str, list[Entry]] = {}
        self._size = 0
        self._active: dict[Key, Entry] = {}
        self._deleted: dict[Key, datetime] = {}
        self.tombstones.clear()
        self.backlog.clear()
        self._applied_to = 0
        self._received_to = 0
        # By pattern, the last sequence read; replaced, never cleared, because a reader of the old log may hold it.
        self._read_to = dict.fromkeys(PATTERNS, 0)

    def require_caught_up(self) -> Self:
        """The catalog itself; raises JournalUnavailable until it has read all of the log."""
        if not self.caught_up:
            raise JournalUnavailable(NOT_READ)
        return self

    async def follow(self, journal: Journal) -> None:
        """Subscribe to the log and replay it, until cancelled; waits for an unavailable log."""
        await Projection(journal, PATTERNS, self.apply, self._catch_up, partial(self._until_resync, journal)).run()

    async def _catch_up(self, journal: Journal) -> None:
        state = await journal.state()
        if state.epoch != self.epoch or state.last_sequence < max(self._applied_to, *self._read_to.values()):
            # Another log, or one that lost its tail, invalidates everything.
            self._clear()
            self.epoch = state.epoch
        if not self.backlog_known:
            await self._read(journal, await journal.ack_floor(), dict.fromkeys(PATTERNS, 0))
            self.backlog.settle()
            self.backlog_known = True
        await self._read_missing(journal, state)
        if self._size > self._size_max:
            self._forget_surplus()
        self.backlog.settle()
        if not self.caught_up:
            log.info("catalog_caught_up", deliberations=self._size, epoch=self.epoch)
        self.caught_up = True

    async def _read_missing(self, journal: Journal, state: StreamState) -> None:
        """Apply the stored facts up to these bounds that may not have been received.

        An interrupted read resumes where it stopped; otherwise a long log could never be read to its end.
        """
        await self._read(journal, self._applied_to, self._read_to)
        self._applied_to = max(self._applied_to, state.last_sequence)

    async def _read(self, journal: Journal, after: int, read_to: dict[str, int]) -> None:
        """Apply the stored facts above `after` and above `read_to` of their pattern, which it advances."""
        applied = 0
        for pattern in PATTERNS:
            async for record in journal.read(pattern, max(after, read_to[pattern])):
                self.apply(record)
                read_to[pattern] = record.sequence
                applied += 1
                if applied % YIELDS_EVERY == 0:
                    await asyncio.sleep(0)

    async def complete(self, journal: Journal, state: StreamState) -> None:
        """Apply everything up to these bounds of the log; raises JournalUnavailable."""
        if state.epoch != self.epoch:
            raise JournalUnavailable("The log was replaced and has not been read yet.")
        async with self._completion:
            if self._applied_to < state.last_sequence:
                await self._read_missing(journal, state)

    async def _until_resync(self, journal: Journal, projection: Projection) -> None:
        """Wait until a replay is needed. After a whole period without a loss, the received facts are complete."""
        received_before = self._applied_to
        while not await projection.stale_within(CHECK_S):
            self._applied_to, received_before = max(self._applied_to, received_before), self._received_to
            self._forget_old()
            with suppress(JournalUnavailable):
                if (await journal.state()).epoch != self.epoch:
                    return

    def observe(self, record: Record) -> None:
        """Apply any event of the log; ignores events that are applied already or that lists do not depend on."""
        if record.sequence <= self._applied_to:
            return
        tail = record.tokens[3:]
        if len(tail) == 1 or tail == ["stage", "1", "opened"]:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Apply one fact, in any order and any number of times; logs and skips a fact that does not decode."""
        self._received_to = max(self._received_to, record.sequence)
        _, tenant, deliberation_id, *tail = record.tokens
        key = (tenant, deliberation_id)
        entry = self._entries.get(key)
        if key in self._deleted or (entry is not None and entry.sequence and tail == ["accepted"]):
            return
        try:
            fact = decode(record.data)
        except ValidationError:
            log.warning("fact_undecodable", subject=record.subject, sequence=record.sequence)
            return
        if entry is None:
            entry = self._entries[key] = Entry(tenant, deliberation_id, first_fact_at=fact.ts)
        over = entry.sequence > 0 and entry.ended is not None
        match fact:
            case Accepted():
                self._accept(entry, fact, record.sequence)
            case StageOpened():
                entry.started_at, entry.started_sequence = fact.ts, record.sequence
            case CancelRequested():
                entry.cancelled_sequence = record.sequence
            case Deleted():
                self._remove_deleted(key, fact.ts)
                return
            case _ if isinstance(fact, End) and entry.ended is None:
                entry.ended_sequence = record.sequence
                self._end(entry, fact)
            case _:
                return
        if entry.sequence and not over:
            self._count(key, entry)

    def _count(self, key: Key, entry: Entry) -> None:
        """Update the backlog, even if the end was received before the acceptance."""
        accepted_at = entry.created_at or entry.first_fact_at
        self.backlog.hold(key, entry.roles, accepted_at, begun_at=entry.started_at)
        if entry.ended is None:
            self._active[key] = entry
        else:
            self._active.pop(key, None)
            self.backlog.drop(key, done_at=entry.ended_at if entry.ended == "completed" else None)

    def _accept(self, entry: Entry, fact: Accepted, sequence: int) -> None:
        specification = fact.specification
        entry.sequence, entry.created_at = sequence, fact.ts
        entry.roles = dict(Counter(agent.role for agent in specification.agents))
        entry.strategy, entry.task = specification.strategy, specification.task[:TASK_CHARS_MAX]
        entry.metadata = specification.metadata
        insort(self._accepted.setdefault(entry.tenant, []), entry, key=_sequence)
        self._size += 1
        # Only ended deliberations can be removed, and a replay from the beginning knows none yet.
        if self._size > self._size_max and self._size > len(self._active) + 1:
            self._forget_surplus()

    async def ended(self, tenant: str, deliberation_id: str, timeout_s: float) -> bool:
        """Whether the deliberation ends within `timeout_s`; returns at once if it has ended.

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

    def _end(self, entry: Entry, fact: End) -> None:
        entry.ended, entry.ended_at = TERMINAL_STATUS[fact.type], fact.ts
        entry.usage = fact.usage
        self.ended_counts[entry.ended] += 1
        waiter = self._waiters.pop((entry.tenant, entry.id), None)
        if waiter is not None:
            waiter.set()

    def _remove_deleted(self, key: Key, at: datetime) -> None:
        """Remove a deleted deliberation and ignore its later facts."""
        entry = self._entries.pop(key, None)
        self._active.pop(key, None)
        self.backlog.drop(key)
        if entry is not None and entry.sequence:
            own = self._accepted[entry.tenant]
            del own[bisect_left(own, entry.sequence, key=_sequence)]
            self._size -= 1
        self._deleted[key] = at
        self.tombstones.append(key)
        while len(self._deleted) > self._size_max:
            del self._deleted[next(iter(self._deleted))]

    def _drop(self, gone: list[Entry]) -> None:
        for entry in gone:
            self._entries.pop((entry.tenant, entry.id), None)
            self._active.pop((entry.tenant, entry.id), None)
            self.backlog.drop((entry.tenant, entry.id))
        sequences = {entry.sequence for entry in gone if entry.sequence}
        for tenant in {entry.tenant for entry in gone if entry.sequence}:
            kept = [entry for entry in self._accepted[tenant] if entry.sequence not in sequences]
            if kept:
                self._accepted[tenant] = kept
            else:
                del self._accepted[tenant]
        self._size -= len(sequences)

    def _forget_old(self) -> None:
        oldest = self._clock.now() - self._retention
        self._drop([entry for entry in self._entries.values() if (entry.created_at or entry.first_fact_at) < oldest])
        self._deleted = {key: at for key, at in self._deleted.items() if at >= oldest}

    def _forget_surplus(self) -> None:
        # A tenth more than needed, so that a full catalog does not remove entries at every acceptance.
        surplus = self._size - self._size_max + max(1, self._size_max // 10)
        ended = [[entry for entry in own if entry.ended is not None] for own in self._accepted.values()]
        self._drop(fair_surplus(ended, surplus))

    def page(
        self, tenant: str, selection: ListFilter, *, limit: int, before: int | None = None
    ) -> tuple[list[Entry], bool]:
        """At most `limit` entries accepted before sequence `before`, newest first, and whether more follow."""
        own = self._accepted.get(tenant, [])
        end = len(own) if before is None else bisect_left(own, before, key=_sequence)
        return _page((own[place] for place in range(end - 1, -1, -1) if selection.shows(own[place])), limit)

    def page_at(
        self, tenant: str, statuses: Collection[Status], sequence: int, *, limit: int
    ) -> tuple[list[Entry], bool]:
        """As `page`, when the log ended at `sequence`; without `statuses` of any status."""
        own = self._accepted.get(tenant, [])
        then = (own[place].at(sequence) for place in range(bisect_right(own, sequence, key=_sequence) - 1, -1, -1))
        return _page((each for each in then if each and (not statuses or each.status in statuses)), limit)

    def cursor(self, sequence: int) -> str:
        """The cursor of a list that continues below this sequence."""
        return base64.urlsafe_b64encode(f"1:{self.epoch}:{sequence}".encode()).decode().rstrip("=")

    def find(self, tenant: str, deliberation_id: str) -> Entry | None:
        """The entry of a deliberation, if any."""
        return self._entries.get((tenant, deliberation_id))

    def knows(self, tenant: str, deliberation_id: str) -> bool:
        """Whether this catalog has the deliberation's acceptance."""
        entry = self._entries.get((tenant, deliberation_id))
        return entry is not None and entry.sequence > 0

    def active_by_status(self) -> dict[str, int]:
        """Accepted and unfinished deliberations of all tenants."""
        counts = Counter[str]({"pending": 0, "in_progress": 0, "cancelling": 0})
        counts.update(entry.status for entry in self._active.values())
        return dict(counts)

    def stats(self, tenant: str) -> Stats:
        """Counts, durations and tokens of a tenant's deliberations in the catalog."""
        own = self._accepted.get(tenant, [])
        counts = Counter(entry.status for entry in own)
        seconds = sorted(
            (entry.ended_at - entry.created_at).total_seconds()
            for entry in own
            if entry.ended == "completed" and entry.ended_at is not None and entry.created_at is not None
        )
        ended = {status: counts[status] for status in ("completed", "failed", "cancelled", "timeout")}
        return Stats(
            total=len(own),
            active=len(own) - sum(ended.values()),
            **ended,
            seconds=Durations(
                mean=sum(seconds) / len(seconds) if seconds else None,
                p50=percentile(seconds, 0.5),
                p95=percentile(seconds, 0.95),
                p99=percentile(seconds, 0.99),
            ),
            tokens=Tokens(
                prompt_tokens=sum(entry.usage.prompt_tokens for entry in own),
                completion_tokens=sum(entry.usage.completion_tokens for entry in own),
                cached_tokens=sum(entry.usage.cached_tokens for entry in own),
            ),
        )
