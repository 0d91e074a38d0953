"""The deliberations in the database. A write never replaces a newer one, so projectors may write in any order."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakValueDictionary

from sqlalchemy import and_, delete, exists, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.api.schemas import Stats
from app.archive.database import measures, texts
from app.archive.database.connection import Database, StatementTooSlow, insert
from app.archive.database.pages import beginning, placed_entry, selection
from app.archive.database.rows import DELETED, Written, instant, microseconds, unpack_facts
from app.archive.database.search_query import Search, SearchTooSlow
from app.archive.database.statistics import StatsFilter, history, statistics
from app.archive.database.tables import VERSION_MAX, deliberations, labels, logs
from app.archive.database.writing import Opening, Rows, put, put_openings, rows_of
from app.catalog.entries import Entry, ListFilter
from app.deliberation.errors import ArchiveUnavailable, Gone
from app.deliberation.ports import Record
from app.deliberation.quote import QuoteHistory
from app.deliberation.specification import Specification

EXPIRED_AT_ONCE = 1_000
SEARCH_S = 2.0
# Searches of one tenant that run at once.
SEARCHES_MAX = 2
# Pages of the index of words that are written in one transaction.
MERGED_AT_ONCE = 500
# Rows that are in memory at once while all are read.
READ_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Archived:
    epoch: str
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Copied:
    """The place of a copy: the archive has all facts of a log up to a sequence, as of a time."""

    epoch: str
    sequence: int
    at: datetime


@dataclass(frozen=True, slots=True)
class ArchivedRow:
    tenant: str
    deliberation_id: str
    at: datetime
    deleted: bool
    archived: Archived | None


@dataclass(frozen=True, slots=True)
class RowFilter:
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Store:
    """The deliberations in a database; methods raise ArchiveUnavailable, and ArchiveRefused for a value."""

    def __init__(self, database: Database) -> None:
        self.dialect = database.dialect
        self._database = database
        self._log_numbers: dict[str, int] = {}
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()

    async def failure(self) -> str:
        """Why the database does not serve; empty while it does."""
        try:
            await self._database.check()
        except ArchiveUnavailable as exc:
            return str(exc)
        return ""

    async def log_number(self, epoch: str) -> int:
        if epoch not in self._log_numbers:
            async with self._database.begin() as connection:
                await connection.execute(insert(self.dialect, logs).values(epoch=epoch).on_conflict_do_nothing())
            await self._read_logs()
        return self._log_numbers[epoch]

    async def known_log(self, epoch: str) -> int | None:
        if epoch not in self._log_numbers:
            await self._read_logs()
        return self._log_numbers.get(epoch)

    async def epoch(self, number: int) -> str:
        if number not in self._log_numbers.values():
            await self._read_logs()
        return next(epoch for epoch, known in self._log_numbers.items() if known == number)

    async def _read_logs(self) -> None:
        async with self._database.begin() as connection:
            rows = await connection.execute(select(logs.c.epoch, logs.c.number))
            self._log_numbers = {row.epoch: row.number for row in rows}

    async def copied(self) -> Copied | None:
        async with self._database.begin() as connection:
            return (await _copied(connection))[1]

    async def write(self, epoch: str, batch: Sequence[Written]) -> None:
        """Write deliberations of a log in one transaction, each of them once. A tombstone belongs to no log."""
        log = await self.log_number(epoch) if any(written.state is not None for written in batch) else 0
        # In a thread, because the event loop would not answer for as long as a batch of long answers takes.
        await self.put(await asyncio.to_thread(lambda: [rows_of(written, log, self.dialect) for written in batch]))

    async def put(self, batch: Sequence[Rows], openings: Sequence[Opening] = (), copied: Copied | None = None) -> None:
        """Write rows, openings, and how far the log is copied with them, in one transaction."""
        async with self._database.begin() as connection:
            await put(connection, self.dialect, batch)
            await put_openings(connection, openings)
            if copied is not None:
                columns = {"copied_to": copied.sequence, "copied_us": microseconds(copied.at)}
                await connection.execute(update(logs).where(logs.c.epoch == copied.epoch).values(columns))

    async def read(self, tenant: str, deliberation_id: str) -> Archived | None:
        """An ended deliberation, None when there is none; raises Gone for a deleted one."""
        row, epoch = deliberations.c, logs.c.epoch
        statement = (
            select(row.status, row.facts, epoch)
            .select_from(deliberations.outerjoin(logs, row.log == logs.c.number))
            .where(row.tenant == tenant, row.id == deliberation_id)
        )
        async with self._database.begin() as connection:
            archived = (await connection.execute(statement)).one_or_none()
        if archived is None:
            return None
        if archived.status == DELETED:
            raise Gone(f"Deliberation {deliberation_id} has been deleted.")
        if archived.facts is None:
            return None
        return Archived(archived.epoch, unpack_facts(tenant, deliberation_id, archived.facts))

    async def page(
        self, tenant: str, asked: ListFilter, search: Search | None = None, *, limit: int, before: int = VERSION_MAX
    ) -> tuple[list[tuple[int, Entry]], Copied | None]:
        """Returns deliberations accepted before a place, newest first, and how far the log is copied.

        There are `limit` or more, unless the archive has fewer. Raises SearchTooSlow.
        """
        if search is None:
            async with self._database.begin() as connection:
                return await self._page(connection, tenant, asked, None, limit, before)
        async with self._turn(tenant), self._database.begin() as connection:
            try:
                async with self._database.bounded(connection, SEARCH_S):
                    return await self._page(connection, tenant, asked, search, limit, before)
            except StatementTooSlow as exc:
                raise SearchTooSlow(f"The search takes longer than {SEARCH_S:g} s") from exc

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncGenerator[None]:
        """Bounds how many searches of a tenant run at once: they share the processors with all other requests."""
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(SEARCHES_MAX))
        try:
            async with asyncio.timeout(SEARCH_S):
                await turns.acquire()
        except TimeoutError as exc:
            raise SearchTooSlow(f"Other searches of this tenant take longer than {SEARCH_S:g} s") from exc
        try:
            yield
        finally:
            turns.release()

    async def _page(
        self,
        connection: AsyncConnection,
        tenant: str,
        asked: ListFilter,
        search: Search | None,
        limit: int,
        before: int,
    ) -> tuple[list[tuple[int, Entry]], Copied | None]:
        page = list[tuple[int, Entry]]()
        number, copied = await _copied(connection)
        begin = await beginning(connection, tenant, asked) if search is None else None
        while len(page) < limit:
            if search is None:
                rows = (await connection.execute(*selection(tenant, asked, begin, limit=limit, before=before))).all()
            else:
                hits = texts.selection(self.dialect, tenant, search, asked, limit=limit, before=before)
                rows = (await connection.execute(hits)).all()
            # A log that was lost left deliberations without an end.
            entries = (placed_entry(tenant, row) for row in rows if row.ended_us is not None or row.log == number)
            page += [placed for placed in entries if asked.shows(placed[1])]
            if len(rows) < limit:
                break
            before = rows[-1].accepted
        return page, copied

    async def stats(self, asked: StatsFilter) -> tuple[Stats, Copied | None]:
        async with self._database.begin() as connection:
            return await statistics(connection, asked), (await _copied(connection))[1]

    async def history(self, tenant: str, asked: Specification, since: datetime) -> QuoteHistory:
        async with self._database.begin() as connection:
            return await history(connection, tenant, asked, since)

    async def logs(self) -> list[str]:
        async with self._database.begin() as connection:
            return list((await connection.execute(select(logs.c.epoch).order_by(logs.c.number))).scalars())

    async def rows(self, chosen: RowFilter) -> AsyncGenerator[ArchivedRow]:
        """Yields the rows of one moment by tenant and id, with at most READ_AT_ONCE of them in memory."""
        row, epoch = deliberations.c, logs.c.epoch
        statement = (
            select(row.tenant, row.id, row.created_us, row.status, row.facts, epoch)
            .select_from(deliberations.outerjoin(logs, row.log == logs.c.number))
            .order_by(row.tenant, row.id)
            .execution_options(yield_per=READ_AT_ONCE)
        )
        if chosen.tenant is not None:
            statement = statement.where(row.tenant == chosen.tenant)
        if chosen.since is not None:
            statement = statement.where(row.created_us >= microseconds(chosen.since))
        if chosen.until is not None:
            statement = statement.where(row.created_us < microseconds(chosen.until))
        async with self._database.begin() as connection:
            async for tenant, id, created_us, status, facts, log in await connection.stream(statement):
                archived = None if facts is None else Archived(log, unpack_facts(tenant, id, facts))
                yield ArchivedRow(tenant, id, instant(created_us), status == DELETED, archived)

    async def delete(self, tenant: str, deliberation_id: str, at: datetime) -> None:
        await self.write("", [Written(tenant, deliberation_id, at)])

    async def erase_removed(self, since: datetime, *, expired: bool) -> None:
        """Overwrite the deliberations that were deleted since then, or have just expired, in SQLite's files."""
        deleted = exists().where(deliberations.c.status == DELETED, deliberations.c.created_us >= microseconds(since))
        async with self._database.begin() as connection:
            due = self.dialect == "sqlite" and (expired or await connection.scalar(select(deleted)))
        # The index is merged in steps, so that no write waits for the whole.
        pages = -MERGED_AT_ONCE
        while due:
            async with self._database.begin() as connection:
                before = (await connection.execute(select(func.total_changes()))).scalar_one()
                await connection.execute(texts.MERGE, {"pages": pages})
                after = (await connection.execute(select(func.total_changes()))).scalar_one()
                due = after - before >= 2
            pages = MERGED_AT_ONCE
        await self._database.empty_write_ahead_log()

    async def expire(self, before: datetime, tenants: Mapping[str, datetime] | None = None) -> int:
        """Remove at most EXPIRED_AT_ONCE rows from before a time, or a tenant's own; return their count."""
        row, tenants = deliberations.c, tenants or {}
        groups = [
            and_(row.tenant == tenant, row.created_us < microseconds(kept_from))
            for tenant, kept_from in tenants.items()
        ]
        groups.append(and_(row.created_us < microseconds(before), row.tenant.not_in(tenants)))
        old = list[tuple[str, str]]()
        # Before the transaction that writes: what tenants keep for longer is passed over, row by row.
        async with self._database.begin() as connection:
            for group in groups:
                chosen = select(row.tenant, row.id).where(group).limit(EXPIRED_AT_ONCE - len(old))
                old += [(expired.tenant, expired.id) for expired in await connection.execute(chosen)]
        if not old:
            return 0
        async with self._database.begin() as connection:
            removal = delete(deliberations).where(tuple_(row.tenant, row.id).in_(old), or_(*groups))
            gone = (await connection.execute(removal.returning(row.tenant, row.id, row.accepted))).all()
            places = [removed.accepted for removed in gone if removed.accepted is not None]
            await connection.execute(delete(labels).where(labels.c.accepted.in_(places)))
            await connection.execute(texts.removal(places))
            await measures.replace(connection, self.dialect, [(removed.tenant, removed.id) for removed in gone], [])
        return len(gone)


async def _copied(connection: AsyncConnection) -> tuple[int, Copied | None]:
    log = (await connection.execute(select(logs).order_by(logs.c.number.desc()).limit(1))).one_or_none()
    if log is None:
        return 0, None
    copied = None if log.copied_us is None else Copied(log.epoch, log.copied_to, instant(log.copied_us))
    return log.number, copied
