"""Removes a deleted deliberation once more, since a crash may have interrupted it, or a process have written after it.

Every gateway sweeps once a minute; the next DELETE of the same id completes the deletion too.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import structlog

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import decode, prefix
from app.deliberation.ports import Journal

SWEEP_S = 60.0
# A process that had read the end before the deletion has announced it within this time.
YOUNG = timedelta(seconds=2 * SWEEP_S)

log = structlog.get_logger(__name__)


async def sweep(journal: Journal) -> None:
    """Check every tombstone once, also those of before this start, every SWEEP_S seconds until cancelled."""
    epoch, after = "", 0
    while True:
        await asyncio.sleep(SWEEP_S)
        with suppress(JournalUnavailable):
            found = (await journal.state()).epoch
            after = await sweep_once(journal, after if found == epoch else 0)
            epoch = found


async def sweep_once(journal: Journal, after: int) -> int:
    """Check the tombstones above a sequence, and return that of the last; raises JournalUnavailable."""
    async for tombstone in journal.read("deliberations.*.*.deleted", after):
        _, tenant, deliberation_id, _ = tombstone.tokens
        incomplete = len(await journal.last([f"{prefix(tenant, deliberation_id)}.>"])) > 1
        if incomplete:
            log.info("deletion_completed", deliberation_id=deliberation_id)
        # Without a fact left, an outcome or the end may still have been announced just after the removal.
        if incomplete or datetime.now(UTC) - decode(tombstone.data).ts < YOUNG:
            await journal.purge(tenant, deliberation_id)
        after = tombstone.sequence
    return after
