"""The growing text of an attempt, published for viewers."""

import asyncio
from datetime import UTC, datetime

from app.deliberation.calls import Call, StageRequest
from app.deliberation.facts import CallDelta
from app.deliberation.ports import Journal

FRAME_S = 0.05


class DeltaPublisher:
    """Publishes an attempt's text as it grows: the first piece at once, later pieces in frames of 50 ms."""

    def __init__(self, journal: Journal, request: StageRequest, call: Call, attempt: int) -> None:
        self._journal = journal
        self._request = request
        self._call = call
        self._attempt = attempt
        self._offset = 0
        self._pending: list[str] = []
        self._due_s = 0.0

    async def add(self, text: str) -> None:
        """Add a piece of text, and publish when a frame is due."""
        self._pending.append(text)
        if asyncio.get_running_loop().time() >= self._due_s:
            await self.flush()

    async def flush(self) -> None:
        """Publish the pending text."""
        if not self._pending:
            return
        text = "".join(self._pending)
        self._pending.clear()
        delta = CallDelta(
            deliberation_id=self._request.deliberation_id,
            ts=datetime.now(UTC),
            call_id=self._call.call_id,
            agent_id=self._call.agent_id,
            attempt=self._attempt,
            offset=self._offset,
            text=text,
        )
        self._offset += len(text)
        self._due_s = asyncio.get_running_loop().time() + FRAME_S
        await self._journal.publish_view(self._request.tenant, delta)
