"""The active deliberations of all tenants, in memory.

Admission counts them, requests wait for their ends, and streams ask for the status of each at an event.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Self

import structlog
from pydantic import ValidationError

from app.admission.backlog import Backlog, Key
from app.catalog.entries import Entry
from app.deliberation.errors import InvalidToken, JournalUnavailable
from app.deliberation.facts import Deleted, NewerEvent, acceptance, decode, is_acceptance, prefix
from app.deliberation.ports import Clock, Journal, Record, StreamState
from app.log.projection import Projection
from app.log.stream_settings import coordinator_queues

# Tombstones first, so that a replay never shows deleted deliberations. Acceptances last: an ended deliberation would
# count as active until its end is read.
TAILS = ("deleted", "end", "stage.1.opened", "cancel")
PAST_MAX = 4_096
CHECK_S = 5.0
# A start reads so much of the log at least: recent ends tell how fast work is done.
RECENT_SEQUENCES = 10_000
# The replay yields to other tasks after so many facts, about every 10 ms.
YIELDS_EVERY = 128
LOADED_AT_ONCE = 128

NOT_READ = "The log has not been read yet; it may not be reachable."

log = structlog.get_logger(__name__)


def patterns(clusters: Iterable[str]) -> tuple[str, ...]:
    """The subjects of the facts that a catalog applies, in the order in which it reads them."""
    return tuple(f"deliberations.*.*.{tail}" for tail in (*TAILS, *map(acceptance, (None, *clusters))))


class Catalog:
    """The active deliberations, and the last PAST_MAX ended ones; `epoch` is the incarnation of the log read."""

    def __init__(self, clock: Clock, backlog: Backlog, *, retention_s: int, clusters: Sequence[str] = ()) -> None:
        self.backlog = backlog
        self._patterns = patterns(clusters)
        self._queues = coordinator_queues(clusters)
        self.epoch = ""
        self._clock = clock
        self._retention = timedelta(seconds=retention_s)
        # A timed-out waiter stays, since others may share it; the deliberation's end or the drain removes it.
        self._waiters: dict[Key, asyncio.Event] = {}
        self._dismissed = False
        self._completion = asyncio.Lock()
        self._following: Projection | None = None
        self._clear()

    def _clear(self) -> None:
        self.caught_up = False
        # The active deliberations, and those with a fact that was received without the acceptance.
        self._entries: dict[Key, Entry] = {}
        # Ended deliberations, the oldest first; None for a deleted one.
        self._past: dict[Key, Entry | None] = {}
        self.backlog.clear()
        # All facts up to here were applied; and those up to the second, while no live fact was lost.
        self._applied_to = 0
        self._received_to = 0

    def require_caught_up(self) -> Self:
        if not self.caught_up:
            raise JournalUnavailable(NOT_READ)
        return self

    async def follow(self, journal: Journal) -> None:
        await Projection(
            journal, self._patterns, self._on_record, self._catch_up, partial(self._until_resync, journal)
        ).run()

    async def _catch_up(self, journal: Journal) -> None:
        state = await journal.state()
        if state.epoch != self.epoch or state.last_sequence < self._applied_to:
            # Another log, or one that lost its tail, invalidates everything.
            self._clear()
            self.epoch = state.epoch
        after = self._applied_to
        if not self.caught_up:
            # Every deliberation that was accepted up to the coordinators' place has ended.
            queue = await journal.queue(*self._queues)
            after = min(queue.acknowledged_to, max(0, state.last_sequence - RECENT_SEQUENCES))
        applied = 0
        for pattern in self._patterns:
            async for record in journal.read(pattern, after):
                self.apply(record)
                applied += 1
                if applied % YIELDS_EVERY == 0:
                    await asyncio.sleep(0)
        self._applied_to = max(self._applied_to, state.last_sequence)
        await self._load_missing(journal)
        self.backlog.settle()
        if not self.caught_up:
            log.info("catalog_caught_up", deliberations=len(self._entries), epoch=self.epoch)
        self.caught_up = True

    async def complete(self, journal: Journal, state: StreamState) -> None:
        """Apply everything up to these bounds of the log; raises JournalUnavailable."""
        if state.epoch != self.require_caught_up().epoch:
            raise JournalUnavailable("The log was replaced and has not been read yet.")
        async with self._completion:
            live = self._following is not None and not self._following.stale.is_set()
            known_to = max(self._applied_to, self._received_to if live else 0)
            if known_to < state.last_sequence:
                missed = await asyncio.gather(*(_all(journal.read(pattern, known_to)) for pattern in self._patterns))
                for record in chain.from_iterable(missed):
                    self.apply(record)
                self._applied_to = max(self._applied_to, state.last_sequence)
            await self._load_missing(journal)

    async def _until_resync(self, journal: Journal, projection: Projection) -> None:
        """Wait until a replay is needed. After a whole period without a loss, the received facts are complete."""
        received_to = self._applied_to
        self._following = projection
        try:
            while not await projection.stale_within(CHECK_S):
                settled, received_to = received_to, max(self._applied_to, self._received_to)
                self._applied_to = max(self._applied_to, settled)
                self._forget_expired()
                with suppress(JournalUnavailable):
                    await self._load_missing(journal)
                    if (await journal.state()).epoch != self.epoch:
                        return
        finally:
            self._following = None

    def _on_record(self, record: Record) -> None:
        self._received_to = max(self._received_to, record.sequence)
        self.apply(record)

    def observe(self, record: Record) -> None:
        """Apply any event of the log; ignores events that are applied already or that change no status."""
        if record.sequence <= self._applied_to:
            return
        tail = record.tokens[3:]
        if len(tail) == 1 or tail == ["stage", "1", "opened"]:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Apply one fact, in any order and any number of times; logs and skips a fact that cannot be read."""
        _, tenant, deliberation_id, *_ = record.tokens
        key = (tenant, deliberation_id)
        past, deleted = self._past.get(key), key in self._past and self._past[key] is None
        entry = past or self._entries.get(key)
        # A repeated acceptance of the distant past comes with a repeated request.
        unknown = entry is None and record.sequence <= self._applied_to
        if deleted or unknown or (entry is not None and entry.sequence and is_acceptance(record.subject)):
            return
        try:
            # A foreign writer may use any subject, and none of such a deliberation can be read.
            prefix(*key)
            fact = decode(record.data)
        except (ValidationError, InvalidToken):
            log.warning("fact_undecodable", subject=record.subject, sequence=record.sequence)
            return
        if isinstance(fact, NewerEvent):
            return
        if isinstance(fact, Deleted):
            self._drop(key)
            self._remember(key, None)
            return
        if entry is None:
            entry = self._entries[key] = Entry(tenant, deliberation_id, first_fact_at=fact.ts)
        ended = entry.ended is not None
        entry.apply(fact, record.sequence)
        if past is not None:
            return
        if not ended and entry.ended is not None and (waiter := self._waiters.pop(key, None)):
            waiter.set()
        if entry.sequence:
            self._count(key, entry)

    def _count(self, key: Key, entry: Entry) -> None:
        accepted_at = entry.created_at or entry.first_fact_at
        self.backlog.hold(
            key,
            entry.roles,
            accepted_at,
            begun_at=entry.started_at,
            priority=entry.priority,
            cluster=entry.cluster,
        )
        if entry.ended is not None:
            del self._entries[key]
            self._remember(key, entry)
            self.backlog.drop(key, done_at=entry.ended_at if entry.ended == "completed" else None)

    def _remember(self, key: Key, entry: Entry | None) -> None:
        self._past[key] = entry
        while len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def _drop(self, key: Key) -> None:
        self._entries.pop(key, None)
        self.backlog.drop(key)

    def _forget_expired(self) -> None:
        oldest = self._clock.now() - self._retention
        for key in [key for key, entry in self._entries.items() if (entry.created_at or entry.first_fact_at) < oldest]:
            self._drop(key)

    async def _load_missing(self, journal: Journal) -> None:
        missing = [key for key, entry in self._entries.items() if not entry.sequence]
        for record in await _facts(journal, missing):
            self.apply(record)
        for key in missing:
            if key in self._entries and not self._entries[key].sequence:
                self._drop(key)

    async def recall(self, journal: Journal, tenant: str, ids: Collection[str]) -> None:
        """Have `find` know these deliberations, PAST_MAX at most, as far as the log has them."""
        unknown = [(tenant, id) for id in ids if (tenant, id) not in self._past and (tenant, id) not in self._entries]
        recalled = dict[Key, Entry]()
        for record in await _facts(journal, unknown):
            fact, key = decode(record.data), (tenant, record.tokens[2])
            if isinstance(fact, NewerEvent):
                continue
            recalled.setdefault(key, Entry(*key, first_fact_at=fact.ts)).apply(fact, record.sequence)
        for key, entry in recalled.items():
            if entry.ended is not None:
                self._remember(key, entry)

    async def ended(self, tenant: str, deliberation_id: str, timeout_s: float) -> bool:
        """Returns whether the deliberation ends in time, without asking the log; False once waiters are dismissed."""
        key = (tenant, deliberation_id)
        if self._has_ended(key):
            return True
        if self._dismissed:
            return False
        waiter = self._waiters.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.wait()
        except TimeoutError:
            return False
        return self._has_ended(key)

    def _has_ended(self, key: Key) -> bool:
        entry = self.find(*key)
        return entry is not None and entry.ended is not None

    def dismiss_waiters(self) -> None:
        self._dismissed = True
        for waiter in self._waiters.values():
            waiter.set()
        self._waiters.clear()

    def running(self, tenant: str | None) -> list[Entry]:
        self.require_caught_up()
        return [entry for (of, _), entry in self._entries.items() if entry.sequence and tenant in (None, of)]

    def find(self, tenant: str, deliberation_id: str) -> Entry | None:
        key = (tenant, deliberation_id)
        return self._entries.get(key) or self._past.get(key)

    def active_by_status(self) -> dict[str, int]:
        counts = Counter[str]({"pending": 0, "in_progress": 0, "cancelling": 0})
        counts.update(entry.status for entry in self._entries.values() if entry.sequence)
        return dict(counts)


async def _all(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]


async def _facts(journal: Journal, keys: Sequence[Key]) -> list[Record]:
    records = list[Record]()
    for begin in range(0, len(keys), LOADED_AT_ONCE):
        some = keys[begin : begin + LOADED_AT_ONCE]
        records += await journal.last([f"{prefix(*key)}.{tail}" for key in some for tail in ("*", "stage.1.opened")])
    return records
