"""The archive's process: its settings, the projector, and a port for health checks."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from pydantic import SecretStr

from app.archive.database.connection import Database
from app.archive.database.store import Store
from app.archive.projector import RETRY_S, Projector
from app.deliberation.errors import ArchiveUnavailable
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import ARCHIVE_CONSUMER
from app.observability.process import STARTED_AT, VERSIONS, run_until_stopped
from app.observability.replica_status import PROJECTORS_SUBJECT
from app.process_settings import ClusterRules, LogAccess, setting
from app.settings import DATABASE_URL_DESCRIPTION, ArchiveRetention

log = structlog.get_logger(__name__)


class ArchiveSettings(LogAccess, ArchiveRetention, ClusterRules):
    database_url: SecretStr = setting(..., DATABASE_URL_DESCRIPTION)
    archive_host: str = setting("127.0.0.1", "Address of /healthz.", min_length=1)
    archive_port: int = setting(8082, "Port of /healthz; 0 takes a free one.", ge=0, le=65_535)


async def figures(journal: JetStreamJournal, projector: Projector) -> dict[str, Any]:
    return {
        "replica": f"archive-{os.getpid()}",
        "started_at": STARTED_AT,
        "versions": VERSIONS,
        "counts": dict(projector.counts),
        "failure": projector.failure,
        "pending": (await journal.queue(ARCHIVE_CONSUMER)).left,
    }


@asynccontextmanager
async def projector_of(settings: ArchiveSettings) -> AsyncGenerator[tuple[JetStreamJournal, Projector]]:
    """A connected projector; waits for log and database. Raises JournalUnavailable and InvalidRequest."""
    journal = JetStreamJournal(settings.nats_url, name="archive", signer=LogSigner.of_file(settings.log_key_file))
    database = Database(settings.database_url.get_secret_value())
    try:
        await journal.open()
        await _until_usable(database)
        retention = settings.archive_retention_s, settings.archive_retentions_s
        yield journal, Projector(journal, Store(database), *retention, settings.clusters)
    finally:
        await database.close()
        await journal.close()


async def _until_usable(database: Database) -> None:
    waits_for = ""
    while True:
        try:
            return await database.check()
        except ArchiveUnavailable as exc:
            if str(exc) != waits_for:
                waits_for = str(exc)
                # At a first start the tables are made a moment later.
                log.warning("archive_waits", error=waits_for)
            await asyncio.sleep(RETRY_S)


async def serve(settings: ArchiveSettings) -> None:
    """Copy until SIGTERM or SIGINT. Raises what `projector_of` raises."""
    await run_until_stopped(settings.archive_host, settings.archive_port, "archive_listening", _copy(settings))


async def _copy(settings: ArchiveSettings) -> None:
    async with projector_of(settings) as (journal, projector):
        await journal.answer(PROJECTORS_SUBJECT, lambda _: figures(journal, projector))
        log.info("archive_copying")
        await projector.run()
