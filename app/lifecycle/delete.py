"""A deliberation that is deleted: its tombstone first, so that nobody sees it half removed; then everything else.

Whoever dies in between leaves a tombstone with facts beside it. They are told to nobody, and removed by the next
DELETE of the same id, or by `sweep`, which every gateway runs: after its start, and soon after each tombstone that it
hears of.
"""

import asyncio

import structlog

from app.api.problems import StillLive
from app.catalog.index import Catalog
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import Deleted, prefix
from app.deliberation.ports import Journal
from app.lifecycle.accept import standing
from app.routes.dependencies import Gateway

SWEEP_S = 60.0

log = structlog.get_logger(__name__)


async def delete(gateway: Gateway, tenant: str, deliberation_id: str) -> None:
    """Remove everything that the log has of an ended deliberation. Idempotent: what was deleted is deleted again.

    Raises StillLive while it has not ended, and what `standing` raises of one that is not there.
    """
    journal = gateway["journal"]
    records = await journal.facts(tenant, deliberation_id)
    if not any(record.tokens[-1] == "deleted" for record in records):
        state = standing(gateway, deliberation_id, records)
        if not state.ended:
            raise StillLive(f"Deliberation {deliberation_id} is {state.status}; cancel it first, or await its end.")
        tombstone = Deleted(deliberation_id=deliberation_id, ts=gateway["clock"].now())
        appended = await journal.append(tenant, tombstone)
        gateway["catalog"].apply(appended.record)
    await journal.purge(tenant, deliberation_id)


async def sweep(journal: Journal, catalog: Catalog) -> None:
    """Remove what tombstones were meant to leave alone, until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_S)
        try:
            await swept(journal, catalog)
        except JournalUnavailable:
            continue


async def swept(journal: Journal, catalog: Catalog) -> None:
    """One look at every tombstone that was heard since the last; raises JournalUnavailable, and forgets none then."""
    while catalog.buried:
        tenant, deliberation_id = catalog.buried[0]
        if len(await journal.last([f"{prefix(tenant, deliberation_id)}.>"])) > 1:
            log.info("deletion_completed", deliberation_id=deliberation_id)
            await journal.purge(tenant, deliberation_id)
        if catalog.buried:
            catalog.buried.popleft()
