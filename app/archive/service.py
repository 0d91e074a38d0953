"""The archive's process: the projector, and a port for health checks."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from app.archive.database.connection import Database
from app.archive.database.store import Store
from app.archive.projector import RETRY_S, Projector
from app.archive.settings import ArchiveSettings
from app.deliberation.errors import ArchiveUnavailable
from app.log.journal import JetStreamJournal
from app.log.seal import LogSeal
from app.log.stream_settings import ARCHIVE_CONSUMER, STREAM
from app.observability.process import health_server, stop_signal
from app.observability.replica_status import PROJECTORS_SUBJECT

log = structlog.get_logger(__name__)


async def figures(journal: JetStreamJournal, projector: Projector) -> dict[str, Any]:
    """The projector's figures, and the queue that all projectors share."""
    found = await journal.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{ARCHIVE_CONSUMER}")
    return {
        "replica": f"archive-{os.getpid()}",
        "counts": dict(projector.counts),
        "failure": projector.failure,
        "pending": found.get("num_pending", 0) + found.get("num_ack_pending", 0),
    }


@asynccontextmanager
async def projector_of(settings: ArchiveSettings) -> AsyncGenerator[tuple[JetStreamJournal, Projector]]:
    """A connected projector. Waits for the log and the database without a limit.

    Raises JournalUnavailable if the log refuses the connection, InvalidRequest for a wrong DATABASE_URL.
    """
    journal = JetStreamJournal(settings.nats_url, name="archive", seal=LogSeal.of_file(settings.log_key_file))
    database = Database(settings.database_url.get_secret_value())
    try:
        await journal.open()
        await _until_usable(database)
        yield journal, Projector(journal, Store(database), retention_s=settings.archive_retention_s)
    finally:
        await database.close()
        await journal.close()


async def _until_usable(database: Database) -> None:
    told = ""
    while True:
        try:
            return await database.check()
        except ArchiveUnavailable as exc:
            if str(exc) != told:
                told = str(exc)
                log.error("archive_unavailable", error=told)
            await asyncio.sleep(RETRY_S)


async def serve(settings: ArchiveSettings) -> None:
    """Copy until SIGTERM or SIGINT. Raises what `projector_of` raises."""
    stopping = stop_signal()
    async with health_server(settings.archive_host, settings.archive_port) as port, asyncio.TaskGroup() as group:
        log.info("archive_listening", host=settings.archive_host, port=port)
        copying = group.create_task(_copy(settings))
        await stopping.wait()
        copying.cancel()


async def _copy(settings: ArchiveSettings) -> None:
    async with projector_of(settings) as (journal, projector):
        await journal.answer(PROJECTORS_SUBJECT, lambda: figures(journal, projector))
        log.info("archive_copying")
        await projector.run()
