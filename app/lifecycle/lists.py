"""Lists and statistics, read from the archive alone."""

import asyncio
import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from app.api.cursor import BEGINNING, Cursor, parse_cursor
from app.api.schemas import Stats
from app.archive.database.search_query import Search
from app.archive.database.statistics import StatsFilter
from app.archive.database.store import Copied, Store
from app.archive.database.tables import SEQUENCE_BITS, VERSION_MAX, position
from app.catalog.entries import Entry, ListFilter
from app.catalog.index import Catalog
from app.deliberation.errors import ArchiveUnavailable, InvalidCursor
from app.deliberation.ports import Clock, Journal, StreamState

NO_ARCHIVE = (
    "This gateway has no archive, which lists are read from. Set DATABASE_URL, run `deliberate archive migrate` and "
    "`python -m app.archive` with it, and restart the gateway."
)
BEHIND = "Repeat the request; start `python -m app.archive` where none runs."
# A client waits so long for its own write: several times the longest lag of an archive that keeps up.
AFTER_S = 5.0
_LOOK_EVERY_S = 0.05
NOW = "now"
# A stream begins with a page of the archive unless the archive is further behind: all later events follow the page.
FRESH = timedelta(seconds=10)
_CURSOR = re.compile(r"1:([^:]*):([0-9]{1,19})", re.ASCII)


class InvalidListCursor(InvalidCursor):
    def __init__(self, detail: str) -> None:
        super().__init__(detail, "cursor", "Take `next_cursor` of a page, or leave it out for the first page.")


@dataclass(frozen=True, slots=True)
class Listed:
    """Entries in order of acceptance, newest first, the cursor of the next page, and how far the archive has come."""

    entries: Sequence[Entry]
    next_cursor: str | None
    behind_s: float | None = None
    copied: Copied | None = None


def list_cursor(epoch: str, sequence: int) -> str:
    return base64.urlsafe_b64encode(f"1:{epoch}:{sequence}".encode()).decode().rstrip("=")


def _parsed(cursor: str) -> tuple[str, int]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
    except ValueError:
        text = ""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise InvalidListCursor("The cursor does not come from a list.")
    return match[1], int(match[2])


@dataclass(frozen=True, slots=True)
class Lists:
    """Pages of deliberations, and their statistics; methods raise ArchiveUnavailable."""

    journal: Journal
    catalog: Catalog
    clock: Clock
    archive: Store | None = None

    async def page(
        self, tenant: str, asked: ListFilter, search: Search | None = None, *, limit: int, cursor: str | None = None
    ) -> Listed:
        archive, before = self._archive(), VERSION_MAX
        if cursor is not None:
            epoch, sequence = _parsed(cursor)
            number = await archive.known_log(epoch)
            if number is None:
                raise InvalidListCursor("The cursor belongs to another log; start from the first page.")
            before = min(before, position(number, sequence))
        placed, copied = await archive.page(tenant, asked, search, limit=limit + 1, before=before)
        entries, next_cursor = [entry for _, entry in placed[:limit]], None
        if len(placed) > limit:
            next_cursor = list_cursor(await archive.epoch(placed[limit - 1][0] >> SEQUENCE_BITS), entries[-1].sequence)
        return Listed(entries, next_cursor, self._behind_s(copied), copied)

    def _archive(self) -> Store:
        if self.archive is None:
            raise ArchiveUnavailable(NO_ARCHIVE)
        return self.archive

    def _behind_s(self, copied: Copied | None) -> float | None:
        return None if copied is None else max(0.0, round((self.clock.now() - copied.at).total_seconds(), 3))

    async def stats(self, asked: StatsFilter) -> Stats:
        figures, copied = await self._archive().stats(asked)
        return figures.model_copy(update={"behind_s": self._behind_s(copied)})

    async def wait_for(self, after: str) -> None:
        """Wait AFTER_S at most until the archive has an event, or with `now` all; raises InvalidCursor."""
        if after == NOW:
            log = await self.journal.state()
            event = Cursor(log.epoch, log.last_sequence)
        else:
            event = parse_cursor(after, "after")
        archive, loop = self._archive(), asyncio.get_running_loop()
        until_s = loop.time() + AFTER_S
        while event != BEGINNING:
            copied = await archive.copied()
            if copied is not None and copied.epoch == event.epoch and copied.sequence >= event.sequence:
                return
            if event.epoch != self.catalog.require_caught_up().epoch:
                if await archive.known_log(event.epoch) is not None:
                    return
                remedy = "Give `last_event_id` of an answer, or the id of an event."
                raise InvalidCursor("The event belongs to another log.", "after", remedy)
            if loop.time() > until_s:
                raise ArchiveUnavailable(f"The archive lacks event {event} after {AFTER_S:.0f} s. {BEHIND}")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def newest(self, tenant: str, asked: ListFilter, log: StreamState, *, limit: int) -> tuple[Listed, int]:
        """Returns the first page, and the sequence after which later events follow.

        Without an archive that is fresher than FRESH, the page has the active deliberations and a cursor of all.
        """
        try:
            listed = await self.page(tenant, asked, limit=limit)
            copied = listed.copied
            if copied is not None and copied.epoch == log.epoch and self.clock.now() - copied.at <= FRESH:
                return listed, min(copied.sequence, log.last_sequence)
        except ArchiveUnavailable:
            pass
        active = sorted(self.catalog.running(tenant), key=lambda entry: -entry.sequence)
        shown = [entry for entry in active if asked.shows(entry)][:limit]
        return Listed(shown, list_cursor(log.epoch, log.last_sequence + 1)), log.last_sequence
