"""Removes a deleted deliberation once more, since a crash may have interrupted it, or a process have written after it.

Every gateway sweeps once a minute; the next DELETE of the same id completes the deletion too.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import structlog
from pydantic import ValidationError

from app.deliberation.errors import InvalidToken, JournalUnavailable
from app.deliberation.facts import decode, prefix
from app.deliberation.ports import Journal

SWEEP_S = 60.0
# A process that had read the end before the deletion has announced it within this time.
YOUNG = timedelta(seconds=2 * SWEEP_S)

log = structlog.get_logger(__name__)


async def sweep(journal: Journal) -> None:
    epoch, after = "", 0
    while True:
        await asyncio.sleep(SWEEP_S)
        with suppress(JournalUnavailable):
            found = (await journal.state()).epoch
            after = await sweep_once(journal, after if found == epoch else 0)
            epoch = found


async def sweep_once(journal: Journal, after: int) -> int:
    async for tombstone in journal.read("deliberations.*.*.deleted", after):
        after = tombstone.sequence
        _, tenant, deliberation_id, _ = tombstone.tokens
        try:
            subject, deleted_at = prefix(tenant, deliberation_id), decode(tombstone.data).ts
        except (ValidationError, InvalidToken):
            log.warning("fact_undecodable", subject=tombstone.subject, sequence=after)
            continue
        incomplete = len(await journal.last([f"{subject}.>"])) > 1
        if incomplete:
            log.info("deletion_completed", deliberation_id=deliberation_id)
        # Without a fact left, an outcome or the end may still have been announced just after the removal.
        if incomplete or datetime.now(UTC) - deleted_at < YOUNG:
            await journal.purge(tenant, deliberation_id)
    return after
