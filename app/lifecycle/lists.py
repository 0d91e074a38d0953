"""Lists: pages of the archive, merged with what it may lack."""

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from heapq import merge
from itertools import islice

from app.api.schemas import Stats, StatsGroup
from app.archive.database.pages import PageBounds
from app.archive.database.search_query import Search
from app.archive.database.statistics import StatsFilter
from app.archive.database.store import Store
from app.archive.database.tables import SEQUENCE_BITS, VERSION_MAX, position
from app.catalog.entries import Entry, ListFilter
from app.catalog.index import Catalog, Recent
from app.deliberation.errors import ArchiveUnavailable, InvalidCursor
from app.deliberation.ports import Journal, StreamState

NO_ARCHIVE = (
    "This gateway has no archive, which lists are read from. Set DATABASE_URL, run `deliberate archive migrate` and "
    "`python -m app.archive` with it, and restart the gateway."
)
BEHIND = "The archive has not copied the latest ends yet. Start `python -m app.archive` where none runs; else wait."
_CURSOR = re.compile(r"1:([^:]*):([0-9]{1,19})", re.ASCII)
_SEARCH_CURSOR = re.compile(r"q:([0-9]{1,19})", re.ASCII)


class InvalidListCursor(InvalidCursor):
    """A list's cursor is malformed, or belongs to a log that the archive does not know."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, "cursor", "Take `next_cursor` of a page, or leave it out for the first page.")


@dataclass(frozen=True, slots=True)
class Listed:
    """Entries in order of acceptance, newest first, and the cursor of the next page, if there is one."""

    entries: Sequence[Entry]
    next_cursor: str | None


def list_cursor(epoch: str, sequence: int) -> str:
    """The cursor of a list that continues below this sequence of a log."""
    return base64.urlsafe_b64encode(f"1:{epoch}:{sequence}".encode()).decode().rstrip("=")


def _search_cursor(place: int) -> str:
    """The cursor of a search that continues below this place."""
    return base64.urlsafe_b64encode(f"q:{place}".encode()).decode().rstrip("=")


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except ValueError:
        return ""


def _parsed(cursor: str) -> tuple[str, int]:
    """The epoch and sequence of a cursor; raises InvalidListCursor."""
    found = _CURSOR.fullmatch(_decoded(cursor))
    if found is None:
        raise InvalidListCursor("The cursor does not come from a list.")
    return found[1], int(found[2])


def _parsed_place(cursor: str) -> int:
    """The place of a search's cursor; raises InvalidListCursor."""
    found = _SEARCH_CURSOR.fullmatch(_decoded(cursor))
    if found is None or int(found[1]) > VERSION_MAX:
        raise InvalidListCursor("The cursor does not come from a search; start from the first page.")
    return int(found[1])


@dataclass(frozen=True, slots=True)
class Lists:
    """Pages of a tenant's deliberations."""

    journal: Journal
    catalog: Catalog
    archive: Store | None = None

    async def page(self, tenant: str, asked: ListFilter, *, limit: int, cursor: str | None = None) -> Listed:
        """A page as of now, the same from every gateway.

        Raises InvalidListCursor, JournalUnavailable, and ArchiveUnavailable.
        """
        below = None if cursor is None else _parsed(cursor)
        return await self._page(tenant, asked, await self.journal.state(), limit, below)

    async def search(
        self, tenant: str, search: Search, asked: ListFilter, *, limit: int, cursor: str | None = None
    ) -> Listed:
        """A page of what has the words. What the archive has not copied yet is not found; the status is as of now.

        Raises InvalidListCursor and ArchiveUnavailable.
        """
        before = None if cursor is None else _parsed_place(cursor)
        if self.archive is None:
            raise ArchiveUnavailable(NO_ARCHIVE)
        found, more = list[tuple[int, Entry]](), True
        while more and len(found) <= limit:
            hits = await self.archive.search(tenant, search, asked, limit=limit + 1, before=before)
            more = len(hits) > limit
            before = hits[-1][0] if more else None
            current = ((place, self._current(tenant, entry)) for place, entry in hits)
            found += [(place, entry) for place, entry in current if entry is not None and asked.shows(entry)]
        next_cursor = _search_cursor(found[limit - 1][0]) if len(found) > limit else None
        return Listed([entry for _, entry in found[:limit]], next_cursor)

    def _current(self, tenant: str, entry: Entry) -> Entry | None:
        """The entry as of now: the archive does not copy each change of what runs.

        None for what a lost log left unfinished.
        """
        known = self.catalog.find(tenant, entry.id)
        if known is not None and known.sequence:
            return known
        return entry if entry.ended is not None or not self.catalog.caught_up else None

    async def stats(self, asked: StatsFilter) -> Stats:
        """Statistics of what the archive has; what runs is counted as of now. Raises as `page` does."""
        await self.catalog.complete(self.journal, await self.journal.state())
        if self.archive is None:
            raise ArchiveUnavailable(NO_ARCHIVE)
        active = Counter[str]()
        for entry in self.catalog.running(asked.tenant):
            if entry.created_at is not None and asked.covers(entry.created_at):
                active.update(["", *_groups(entry, asked.by)])
        return await self.archive.stats(asked, active)

    async def newest(self, tenant: str, asked: ListFilter, log: StreamState, *, limit: int) -> Listed:
        """The first page when the log ended there. Without the archive, what is in memory and a cursor of all.

        Raises JournalUnavailable.
        """
        try:
            return await self._page(tenant, asked, log, limit, None)
        except ArchiveUnavailable:
            recent = self.catalog.recent(tenant)
            entries = [entry for _, entry in islice(_of_memory(recent, asked, log.last_sequence, 0), limit)]
            return Listed(entries, list_cursor(log.epoch, log.last_sequence + 1))

    async def _page(
        self, tenant: str, asked: ListFilter, log: StreamState, limit: int, below: tuple[str, int] | None
    ) -> Listed:
        await self.catalog.complete(self.journal, log)
        if self.archive is None:
            raise ArchiveUnavailable(NO_ARCHIVE)
        number = await self.archive.log_number(log.epoch)
        before = VERSION_MAX
        if below is not None:
            epoch, sequence = below
            known = await self.archive.known_log(epoch)
            if known is None:
                raise InvalidListCursor("The cursor belongs to another log; start from the first page.")
            before = min(before, position(known, sequence))
        # Copied before the archive is read: what is forgotten in between is in the archive by then.
        recent = self.catalog.recent(tenant)
        if not recent.whole:
            raise ArchiveUnavailable(BEHIND)
        # What is not in memory has ended before, so that its row is complete but for late outcomes.
        bounds = PageBounds(number, log.last_sequence)
        stored = await self.archive.page(tenant, asked, limit=limit + 1, before=before, bounds=bounds, but=recent.ids)
        held = (each for each in _of_memory(recent, asked, log.last_sequence, number) if each[0] < before)
        found = list(islice(merge(stored, held, key=lambda each: -each[0]), limit + 1))
        if len(found) <= limit:
            return Listed([entry for _, entry in found], None)
        last = found[limit - 1][0]
        epoch = await self.archive.epoch(last >> SEQUENCE_BITS)
        return Listed([entry for _, entry in found[:limit]], list_cursor(epoch, found[limit - 1][1].sequence))


def _groups(entry: Entry, by: StatsGroup | None) -> Iterable[str]:
    """The groups of statistics in which what runs counts; its models are not known yet."""
    match by:
        case None | "model":
            return ()
        case "day":
            assert entry.created_at is not None, "only what was accepted counts"
            return (entry.created_at.astimezone(UTC).date().isoformat(),)
        case "strategy":
            return (entry.strategy,)
        case "role":
            return entry.roles.keys()
        case "tenant":
            return (entry.tenant,)


def _of_memory(recent: Recent, asked: ListFilter, last_sequence: int, number: int) -> Iterator[tuple[int, Entry]]:
    """What is in memory and passes the filter, with its places, newest first, when the log ended there."""
    for entry in reversed(recent.entries):
        then = entry.at(last_sequence)
        if then is not None and asked.shows(then):
            yield position(number, then.sequence), then
