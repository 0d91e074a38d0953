"""Rows made of facts, in a second process while this one reads and writes: each computes on one core."""

import asyncio
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import datetime
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import NamedTuple

import structlog
from pydantic import ValidationError

from app.admission.backlog import Key
from app.archive.database.rows import Written
from app.archive.database.writing import Rows, rows_of
from app.deliberation.errors import UnexpectedFact, UnreadableFact
from app.deliberation.facts import decode
from app.deliberation.fold import State, state_of
from app.deliberation.ports import Record
from app.observability.process import settle_heap

log = structlog.get_logger(__name__)


class Projected(NamedTuple):
    """The rows of facts, or a `fault`. After an end at `unfinished_at` outcomes of calls may follow.

    A newer version may read `unreadable` facts.
    """

    key: Key
    rows: Rows | None = None
    unfinished_at: datetime | None = None
    fault: str = ""
    unreadable: bool = False


def project(found: Sequence[tuple[Key, Sequence[Record]]], log: int, dialect: str) -> list[Projected]:
    return [_project(key, records, log, dialect) for key, records in found]


def _project(key: Key, records: Sequence[Record], log: int, dialect: str) -> Projected:
    tombstone = next((record for record in records if record.tokens[-1] == "deleted"), None)
    if tombstone is not None:
        return _deleted(key, tombstone, log, dialect)
    try:
        state = state_of(records)
    except UnexpectedFact as exc:
        return Projected(key, fault=str(exc), unreadable=isinstance(exc, UnreadableFact))
    if state is None:
        return Projected(key, fault="its facts have left the log")
    written = Written(*key, at=state.accepted.ts, state=state, records=records)
    return Projected(key, rows_of(written, log, dialect), _unfinished_at(state))


def _deleted(key: Key, tombstone: Record, log: int, dialect: str) -> Projected:
    try:
        at = decode(tombstone.data).ts
    except ValidationError:
        return Projected(key, fault="its tombstone cannot be read")
    return Projected(key, rows_of(Written(*key, at=at), log, dialect))


def _unfinished_at(state: State) -> datetime | None:
    planned = {call.call_id for stage in state.stages for call in stage.opened.calls}
    return None if state.end is None or planned <= state.finished.keys() else state.end.ts


class RowProcess:
    """Starts at the first call, and ends with `close` or with this process. `started` is done once it takes calls."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self.started = Future[None]()

    async def project(
        self, found: Sequence[tuple[Key, Sequence[Record]]], number: int, dialect: str
    ) -> list[Projected]:
        """Returns the result of `project`. A thread makes it until the process has started, or after it was killed."""
        try:
            if self._pool is None:
                # `fork` would copy this process while its threads hold locks.
                self._pool = ProcessPoolExecutor(1, get_context("spawn"), _serve_parent)
                self.started = self._pool.submit(_greet)
            if self.started.done():
                return await asyncio.get_running_loop().run_in_executor(self._pool, project, found, number, dialect)
        except (BrokenProcessPool, OSError) as exc:
            log.warning("archive_row_process_lost", error=repr(exc))
            self.close()
        return await asyncio.to_thread(project, found, number, dialect)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _serve_parent() -> None:
    """Leave signals to the parent, and end when it ends, even by a kill."""
    settle_heap()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _greet() -> None:
    """Do nothing. A result proves that the process has started."""


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)
