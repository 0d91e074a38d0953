"""Checks whether the log holds a call's outcome before an engine is asked."""

import asyncio
from datetime import UTC, datetime

from app.deliberation.calls import Call, StageRequest
from app.deliberation.errors import CallCancelled, JournalUnavailable
from app.deliberation.facts import prefix
from app.deliberation.ports import Journal

# A lookup holds for so long. A replica that waited or hung for longer may have been given up by its coordinator, and
# another replica may have recorded the outcome. After LOOKUPS_MAX lookups in a slow log the last one is trusted.
ABSENT_FOR_S = 0.5
LOOKUPS_MAX = 5
LOOKUP_RETRY_S = 0.2


class OutcomeCheck:
    """Looks for an outcome that another replica has recorded since `absent_at`, when the log held none."""

    def __init__(self, journal: Journal, request: StageRequest, call: Call, absent_at: datetime) -> None:
        self._journal = journal
        self._subject = f"{prefix(request.tenant, request.deliberation_id)}.call.{call.call_id}.finished"
        # None once an attempt was sent: from then on another replica may record an outcome at any time.
        self._absent_at: datetime | None = absent_at

    def expire(self) -> None:
        self._absent_at = None

    async def require_absent(self) -> None:
        """Raise CallCancelled when the log holds an outcome.

        Attempts call it before they begin, and before their request is written: a replica may be stopped between.
        """
        if await self._recorded():
            raise CallCancelled("another replica has recorded its outcome meanwhile")

    async def _recorded(self) -> bool:
        lookups = 0
        while lookups < LOOKUPS_MAX and not self._known_absent():
            looked_up_at = datetime.now(UTC)
            try:
                if await self._journal.last([self._subject]):
                    return True
            except JournalUnavailable:
                # Without the log no replica can record an outcome now, but one may be recorded already.
                await asyncio.sleep(LOOKUP_RETRY_S)
                continue
            self._absent_at = looked_up_at
            lookups += 1
        return False

    def _known_absent(self) -> bool:
        if self._absent_at is None:
            return False
        # The coordinator's clock may be ahead: a lookup in this clock's future proves nothing.
        return 0 <= (datetime.now(UTC) - self._absent_at).total_seconds() < ABSENT_FOR_S
