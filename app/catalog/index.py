"""All deliberations at a glance: an in-memory projection of a few facts of each, for lists, statistics and admission.

It hears the log live first and reads what was stored before second; facts are applied in any order and more than once,
so no two of these can disagree. After a lost connection it reads again from where it was certain. What is unfinished is
read before all else: the door waits for no more than that, while lists wait for everything.
"""

import asyncio
import base64
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from math import ceil

import structlog
from pydantic import ValidationError

from app.admission.backlog import Backlog, Key
from app.api.schemas import Durations, Stats, Status, Tokens
from app.catalog.entries import Entry, ListFilter
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import (
    TERMINAL_STATUS,
    Accepted,
    CancelRequested,
    Deleted,
    End,
    StageOpened,
    decode,
)
from app.deliberation.ports import Clock, Journal, Record, StreamState
from app.log.catch_up import subscribe_and_replay

# Tombstones first, so that what they bury is not shown for a moment when all is read again. Acceptances last: what has
# ended long ago would be taken for unfinished until its end is read too.
PATTERNS = tuple(f"deliberations.*.*.{tail}" for tail in ("deleted", "end", "stage.1.opened", "cancel", "accepted"))
TASK_CHARS_MAX = 200
# What failed tells nothing of how long work takes.
CHECK_S = 20.0
# Facts that are applied before others may run: some 10 ms.
YIELDS_EVERY = 128

log = structlog.get_logger(__name__)


def _sequence(entry: Entry) -> int:
    return entry.sequence


def percentile(ordered: list[float], share: float) -> float | None:
    """The nearest-rank percentile of ascending values; None when there are none."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def fair_surplus(held: Sequence[Sequence[Entry]], surplus: int) -> list[Entry]:
    """`surplus` entries to forget, or a few more: the oldest of those tenants who hold the most, down to one level.

    `held` are the entries of each tenant that may go, oldest first. Nobody's are forgotten because others have many.
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
    """The projection; `follow` keeps it. `epoch` is the log's incarnation that it was read from.

    `backlog_known` tells that all that is unfinished has been read, `caught_up` that everything has.
    `retention_s` and `size_max` bound it: what is older, or too many, is forgotten, the oldest ended ones first, and of
    the tenants those first who have the most.
    """

    def __init__(self, clock: Clock, backlog: Backlog, *, retention_s: int, size_max: int) -> None:
        self.backlog = backlog
        self.epoch = ""
        self.ended_heard: Counter[str] = Counter()
        self.buried: deque[Key] = deque(maxlen=size_max)
        self._clock = clock
        self._retention = timedelta(seconds=retention_s)
        self._size_max = size_max
        # Left in place when time is up, since others may wait on it; the end, or the process's, takes it away.
        self._waiters: dict[Key, asyncio.Event] = {}
        self._dismissed = False
        self._completing = asyncio.Lock()
        self._clear()

    def _clear(self) -> None:
        self.backlog_known = False
        self.caught_up = False
        self._entries: dict[Key, Entry] = {}
        # By tenant and in the order of acceptance, so that nobody's lists take longer because of what others have.
        self._accepted: dict[str, list[Entry]] = {}
        self._size = 0
        self._active: dict[Key, Entry] = {}
        self._deleted: dict[Key, datetime] = {}
        self.buried.clear()
        self.backlog.clear()
        self._certain = 0
        self._heard = 0
        # By pattern, up to where the log was read; replaced, never cleared, for whoever still reads the old log.
        self._read_to = dict.fromkeys(PATTERNS, 0)

    async def follow(self, journal: Journal) -> None:
        """Hear the log and read what was missed, until cancelled. Waits for a log that is away."""
        await subscribe_and_replay(journal, PATTERNS, self.apply, self._catch_up, self._certain_until)

    async def _catch_up(self, journal: Journal) -> None:
        state = await journal.state()
        if state.epoch != self.epoch or state.last_sequence < max(self._certain, *self._read_to.values()):
            # Another log, or one that lost its tail: nothing that was heard of the old one holds.
            self._clear()
            self.epoch = state.epoch
        if not self.backlog_known:
            await self._read(journal, await journal.ack_floor(), dict.fromkeys(PATTERNS, 0))
            self.backlog.settle()
            self.backlog_known = True
        await self._read_rest(journal, state)
        if self._size > self._size_max:
            self._forget_surplus()
        self.backlog.settle()
        if not self.caught_up:
            log.info("catalog_caught_up", deliberations=self._size, epoch=self.epoch)
        self.caught_up = True

    async def _read_rest(self, journal: Journal, state: StreamState) -> None:
        """Apply what is stored up to these bounds and may not have been heard.

        What was read before the log went away is not read again: a long log would never be read to its end otherwise.
        """
        await self._read(journal, self._certain, self._read_to)
        self._certain = max(self._certain, state.last_sequence)

    async def _read(self, journal: Journal, after: int, read_to: dict[str, int]) -> None:
        """Apply what is stored above `after`, and above what was read of its pattern; `read_to` goes along."""
        applied = 0
        for pattern in PATTERNS:
            async for record in journal.read(pattern, max(after, read_to[pattern])):
                self.apply(record)
                read_to[pattern] = record.sequence
                applied += 1
                if applied % YIELDS_EVERY == 0:
                    await asyncio.sleep(0)

    async def complete(self, journal: Journal, state: StreamState) -> None:
        """Have everything applied that these bounds of the log hold; raises JournalUnavailable."""
        if state.epoch != self.epoch:
            raise JournalUnavailable("The log has become another one, and has not been read yet.")
        async with self._completing:
            if self._certain < state.last_sequence:
                await self._read_rest(journal, state)

    async def _certain_until(self, journal: Journal, doubted: asyncio.Event) -> None:
        """Wait for a doubt. What was heard a whole period ago is certain: a doubt is told late, but not as late."""
        heard_before = self._certain
        while not doubted.is_set():
            try:
                async with asyncio.timeout(CHECK_S):
                    await doubted.wait()
            except TimeoutError:
                self._certain, heard_before = max(self._certain, heard_before), self._heard
                self._forget_old()
                if await self._replaced(journal):
                    return

    async def _replaced(self, journal: Journal) -> bool:
        try:
            return (await journal.state()).epoch != self.epoch
        except JournalUnavailable:
            return False

    def observe(self, record: Record) -> None:
        """Take any event of the log; what lists do not depend on, or is certainly known, is passed over."""
        if record.sequence <= self._certain:
            return
        tail = record.tokens[3:]
        if len(tail) == 1 or tail == ["stage", "1", "opened"]:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Take one fact; any order, any number of times. What does not decode is logged and left out."""
        self._heard = max(self._heard, record.sequence)
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
            entry = self._entries[key] = Entry(tenant, deliberation_id, heard_at=fact.ts)
        over = entry.sequence > 0 and entry.ended is not None
        match fact:
            case Accepted():
                self._accept(entry, fact, record.sequence)
            case StageOpened():
                entry.started_at, entry.started_sequence = fact.ts, record.sequence
            case CancelRequested():
                entry.cancelled_sequence = record.sequence
            case Deleted():
                self._bury(key, fact.ts)
                return
            case _ if isinstance(fact, End) and entry.ended is None:
                entry.ended_sequence = record.sequence
                self._end(entry, fact)
            case _:
                return
        if entry.sequence and not over:
            self._count(key, entry)

    def _count(self, key: Key, entry: Entry) -> None:
        """Tell the backlog of what is unfinished, and of what has ended, even if its end was heard first."""
        self.backlog.hold(key, entry.roles, entry.created_at or entry.heard_at, begun_at=entry.started_at)
        if entry.ended is None:
            self._active[key] = entry
        else:
            self._active.pop(key, None)
            self.backlog.drop(key, done_at=entry.ended_at if entry.ended == "completed" else None)

    def _accept(self, entry: Entry, fact: Accepted, sequence: int) -> None:
        if entry.sequence:
            return
        specification = fact.specification
        entry.sequence, entry.created_at = sequence, fact.ts
        entry.roles = dict(Counter(agent.role for agent in specification.agents))
        entry.strategy, entry.task = specification.strategy, specification.task[:TASK_CHARS_MAX]
        entry.metadata = specification.metadata
        insort(self._accepted.setdefault(entry.tenant, []), entry, key=_sequence)
        self._size += 1
        # While nothing has ended, as when the log is read from its beginning, nothing can be forgotten.
        if self._size > self._size_max and self._size > len(self._active) + 1:
            self._forget_surplus()

    async def ended(self, tenant: str, deliberation_id: str, timeout_s: float) -> bool:
        """Whether the deliberation's end was heard before `timeout_s` is over; at once when it was before.

        However many wait, the log is not asked: this hears the ends of all deliberations anyway. False at once when the
        waiters are dismissed.
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
        """Let everyone who waits for an end go, now and from now on: the process stops."""
        self._dismissed = True
        for waiter in self._waiters.values():
            waiter.set()
        self._waiters.clear()

    def _end(self, entry: Entry, fact: End) -> None:
        entry.ended, entry.ended_at = TERMINAL_STATUS[fact.type], fact.ts
        entry.usage = fact.usage
        self.ended_heard[entry.ended] += 1
        waiter = self._waiters.pop((entry.tenant, entry.id), None)
        if waiter is not None:
            waiter.set()

    def _bury(self, key: Key, at: datetime) -> None:
        """Forget a deliberation that was deleted, and whatever is heard of it later."""
        entry = self._entries.pop(key, None)
        self._active.pop(key, None)
        self.backlog.drop(key)
        if entry is not None and entry.sequence:
            own = self._accepted[entry.tenant]
            del own[bisect_left(own, entry.sequence, key=_sequence)]
            self._size -= 1
        self._deleted[key] = at
        self.buried.append(key)
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
        self._drop([entry for entry in self._entries.values() if (entry.created_at or entry.heard_at) < oldest])
        self._deleted = {key: at for key, at in self._deleted.items() if at >= oldest}

    def _forget_surplus(self) -> None:
        # A tenth more than needed, so that a full catalog does not sweep on every acceptance.
        surplus = self._size - self._size_max + max(1, self._size_max // 10)
        ended = [[entry for entry in own if entry.ended is not None] for own in self._accepted.values()]
        self._drop(fair_surplus(ended, surplus))

    def page(
        self, tenant: str, selection: ListFilter, *, limit: int, before: int | None = None
    ) -> tuple[list[Entry], bool]:
        """At most `limit` entries accepted before sequence `before`, newest first, and whether more follow."""
        own = self._accepted.get(tenant, [])
        end = len(own) if before is None else bisect_left(own, before, key=_sequence)
        found: list[Entry] = []
        for place in range(end - 1, -1, -1):
            entry = own[place]
            if selection.shows(entry):
                if len(found) == limit:
                    return found, True
                found.append(entry)
        return found, False

    def page_at(
        self, tenant: str, statuses: Collection[Status], sequence: int, *, limit: int
    ) -> tuple[list[Entry], bool]:
        """As `page`, of what there was when the log ended at `sequence`; of any status when none is named."""
        own = self._accepted.get(tenant, [])
        found: list[Entry] = []
        for place in range(bisect_right(own, sequence, key=_sequence) - 1, -1, -1):
            entry = own[place].at(sequence)
            if entry is not None and (not statuses or entry.status in statuses):
                if len(found) == limit:
                    return found, True
                found.append(entry)
        return found, False

    def cursor(self, sequence: int) -> str:
        """The cursor of a list that goes on below this place."""
        return base64.urlsafe_b64encode(f"1:{self.epoch}:{sequence}".encode()).decode().rstrip("=")

    def find(self, tenant: str, deliberation_id: str) -> Entry | None:
        """What is known of a deliberation, if anything."""
        return self._entries.get((tenant, deliberation_id))

    def knows(self, tenant: str, deliberation_id: str) -> bool:
        """Whether the deliberation has been accepted, as far as is known here."""
        entry = self._entries.get((tenant, deliberation_id))
        return entry is not None and entry.sequence > 0

    def active_by_status(self) -> dict[str, int]:
        """Accepted and unfinished deliberations of all tenants."""
        counts = Counter[str]({"pending": 0, "in_progress": 0, "cancelling": 0})
        counts.update(entry.status for entry in self._active.values())
        return dict(counts)

    def stats(self, tenant: str) -> Stats:
        """Counts, durations and tokens over what is remembered of a tenant."""
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
