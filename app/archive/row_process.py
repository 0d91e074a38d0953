"""A second process, which makes rows while this one reads and writes: each of them computes on one core."""

import asyncio
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from threading import Thread

import structlog

from app.admission.backlog import Key
from app.archive.projection import Projected, project
from app.deliberation.ports import Record
from app.observability.process import settle_heap

log = structlog.get_logger(__name__)


class RowProcess:
    """Starts at the first call, and ends with `close` or with this process. `started` is done once it takes calls."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self.started = Future[None]()

    async def project(
        self, found: Sequence[tuple[Key, Sequence[Record]]], number: int, dialect: str
    ) -> list[Projected]:
        """What `projection.project` returns. A thread makes it until the process has started, and if it was killed."""
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
        """End the process, after the batch that it is at."""
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
