"""Completes deletions that a crash interrupted between the tombstone and the removal of the other facts.

Every gateway sweeps once a minute; the next DELETE of the same id completes the deletion too.
"""

import asyncio
from contextlib import suppress

import structlog

from app.catalog.index import Catalog
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import prefix
from app.deliberation.ports import Journal

SWEEP_S = 60.0

log = structlog.get_logger(__name__)


async def sweep(journal: Journal, catalog: Catalog) -> None:
    """Run `sweep_once` every SWEEP_S seconds until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_S)
        with suppress(JournalUnavailable):
            await sweep_once(journal, catalog)


async def sweep_once(journal: Journal, catalog: Catalog) -> None:
    """Check every tombstone since the last sweep; on JournalUnavailable, which it raises, it forgets none."""
    while catalog.tombstones:
        tenant, deliberation_id = catalog.tombstones[0]
        if len(await journal.last([f"{prefix(tenant, deliberation_id)}.>"])) > 1:
            log.info("deletion_completed", deliberation_id=deliberation_id)
            await journal.purge(tenant, deliberation_id)
        if catalog.tombstones:
            catalog.tombstones.popleft()
