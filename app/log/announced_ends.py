"""The announcements of ends: each is stored once for ever, on subjects that all deliberations share.

Within the stream's duplicate window the server drops a second message with a `Nats-Msg-Id`. Later a look-up searches
the announcements by their bytes. It reads those of the minutes after the end. It also reads those behind the
deliberation's mark, an empty message that precedes a late announcement. So it reads those of some minutes alone.
`python -m benchmarks.announcements` measures the cost.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
from nats.aio.client import Client
from pydantic import BaseModel, ValidationError

from app.deliberation.announcements import Announcement
from app.deliberation.errors import FactTooLarge, JournalUnavailable
from app.deliberation.facts import prefix
from app.log.connection import request, stored_message
from app.log.direct_get import DirectGet
from app.log.first_write import EXPECTED_LAST, OCCUPIED_TRIES, WRONG_LAST_SEQUENCE
from app.log.stream_settings import (
    ANNOUNCED_END,
    ANNOUNCEMENTS_STREAM,
    DUPLICATE_WINDOW_S,
    ERASED_END,
    LATE_END,
    STREAM,
)

# The clocks of coordinators, gateways and nats-servers may differ by this much.
CLOCKS_APART = timedelta(seconds=30)
# An end that is younger is announced without a look-up: the server drops the second announcement.
PUBLISHED_WITHIN = timedelta(seconds=120)
# A suspended process may send such an announcement later, until nats-server closes its connection after three pings.
STOPPED_FOR = timedelta(seconds=3 * 120)
# While an end is younger, the server remembers the id of its announcement.
REMEMBERED_FOR = timedelta(seconds=DUPLICATE_WINDOW_S) / 2
_FIRST_LOOK_RECORDS = 64
_LAGGING_TRIES = 3


def _headers(tenant: str, deliberation_id: str) -> dict[str, str]:
    return {"Nats-Msg-Id": f"{tenant}.{deliberation_id}"}


class _Named(BaseModel):
    tenant: str
    deliberation_id: str


class AnnouncedEnds:
    def __init__(self, client: Client, reads: DirectGet) -> None:
        self._client = client
        self._reads = reads

    async def publish(self, announced: Announcement) -> None:
        """Store an announcement unless it is stored; raises FactTooLarge and JournalUnavailable."""
        if datetime.now(UTC) - announced.ts < PUBLISHED_WITHIN:
            await self._store(announced)
        else:
            await self._publish_late(announced)

    async def _publish_late(self, announced: Announcement) -> None:
        """Store it unless a look-up finds it. The server refuses it if another one was stored after the look-up."""
        subject, tenant, id = f"{ANNOUNCED_END}.{announced.status}", announced.tenant, announced.deliberation_id
        # A coordinator that was suspended since the end may have missed the deletion.
        if await stored_message(self._client, STREAM, last_by_subj=f"{prefix(tenant, id)}.deleted"):
            return
        after = await self.mark_late(tenant, id)
        last = await self._last(subject)
        if await self._search(subject, *await self._published_in_time(subject, announced.ts), tenant, id):
            return
        for _ in range(OCCUPIED_TRIES):
            if await self._search(subject, after, last, tenant, id):
                return
            if await self._store(announced, {EXPECTED_LAST: str(last)}):
                return
            after, last = last, await self._last(subject)
        raise JournalUnavailable(f"the log refused the announcement {OCCUPIED_TRIES} times: others are announced")

    async def _store(self, announced: Announcement, condition: dict[str, str] | None = None) -> bool:
        """Publish the announcement; the server drops a duplicate. Returns False if `condition` does not hold."""
        subject = f"{ANNOUNCED_END}.{announced.status}"
        data = announced.__pydantic_serializer__.to_json(announced)
        headers = _headers(announced.tenant, announced.deliberation_id)
        try:
            reply = await request(self._client, subject, data, headers | (condition or {}))
        except nats.errors.MaxPayloadError as exc:
            raise FactTooLarge(f"{len(data)} bytes on {subject}") from exc
        return _is_stored(reply)

    async def mark_late(self, tenant: str, deliberation_id: str) -> int:
        """Create the deliberation's mark if need be; returns its sequence. Late announcements follow it."""
        subject = f"{LATE_END}.{tenant}.{deliberation_id}"
        reply = await request(self._client, subject, b"", {EXPECTED_LAST: "0"})
        sequence = reply["seq"] if _is_stored(reply) else await self.late_mark(tenant, deliberation_id)
        if sequence is None:
            raise JournalUnavailable("the mark of a late announcement was erased meanwhile")
        return sequence

    async def late_mark(self, tenant: str, deliberation_id: str) -> int | None:
        subject = f"{LATE_END}.{tenant}.{deliberation_id}"
        mark = await stored_message(self._client, ANNOUNCEMENTS_STREAM, last_by_subj=subject)
        return None if mark is None else mark["seq"]

    async def withhold(self, tenant: str, deliberation_id: str) -> int:
        """Claim the announcement's message id, so that the server drops a later announcement within the window.

        Returns the sequence of the message that has the id: the announcement, or an empty message on `ERASED_END`.
        """
        reply = await request(self._client, ERASED_END, b"", _headers(tenant, deliberation_id))
        _is_stored(reply)
        return reply["seq"]

    async def find(self, tenant: str, deliberation_id: str, ended_at: datetime) -> int | None:
        """Returns the sequence of an announcement, however late it was published."""
        subject = f"{ANNOUNCED_END}.*"
        bounds = await self._published_in_time(subject, ended_at)
        sequence = await self._search(subject, *bounds, tenant, deliberation_id)
        if sequence is None and (mark := await self.late_mark(tenant, deliberation_id)):
            return await self._search(subject, mark, await self._last(subject), tenant, deliberation_id)
        return sequence

    async def _published_in_time(self, subject: str, ended_at: datetime) -> tuple[int, int]:
        """Bounds of the announcements that were published without a look-up: after a sequence, up to another."""
        since = ended_at - CLOCKS_APART
        until = ended_at + PUBLISHED_WITHIN + STOPPED_FOR + CLOCKS_APART
        last = await self._last(subject)
        return await self._before(subject, since, last), await self._before(subject, until, last)

    async def _before(self, subject: str, moment: datetime, last: int) -> int:
        """Returns the last sequence that was stored before `moment`, at most `last`."""
        start = moment.isoformat()
        first = await stored_message(self._client, ANNOUNCEMENTS_STREAM, start_time=start, next_by_subj=subject)
        return last if first is None else min(last, first["seq"] - 1)

    async def _last(self, subject: str) -> int:
        last = await stored_message(self._client, ANNOUNCEMENTS_STREAM, last_by_subj=subject)
        return 0 if last is None else last["seq"]

    async def _search(self, subject: str, after: int, up_to: int, tenant: str, deliberation_id: str) -> int | None:
        quoted, position = f'"{deliberation_id}"'.encode(), after
        for _ in range(_LAGGING_TRIES):
            if position >= up_to:
                return None
            async for batch in self._reads.batches(subject, position, _FIRST_LOOK_RECORDS, signed=False):
                for record in batch.records:
                    if quoted in record.data and _is_of(record.data, tenant, deliberation_id):
                        return record.sequence
                position = max(position, batch.position)
            # The last message was erased meanwhile, or the server that answers lags behind the leader.
            up_to = min(up_to, await self._last(subject))
        raise JournalUnavailable(f"the log's reads lag behind its writes: at {position} of {up_to}")


def _is_of(data: bytes, tenant: str, deliberation_id: str) -> bool:
    with suppress(ValidationError):
        named = _Named.model_validate_json(data)
        return (named.tenant, named.deliberation_id) == (tenant, deliberation_id)
    return False


def _is_stored(reply: dict[str, Any]) -> bool:
    """Whether the server has the message, from this publish or an earlier one; False if its condition fails."""
    error = reply.get("error")
    if error is None:
        return True
    if error.get("err_code") == WRONG_LAST_SEQUENCE:
        return False
    raise JournalUnavailable(f"the log refused the end's announcement: {error.get('description')}")
