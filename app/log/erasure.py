"""Removes the records of a deliberation, and overwrites them in the server's files."""

import asyncio
import json
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from nats.aio.client import Client

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import is_acceptance, prefix
from app.log.announced_ends import REMEMBERED_FOR, AnnouncedEnds
from app.log.connection import request, stored_message
from app.log.direct_get import PAGE_RECORDS, DirectGet
from app.log.stream_settings import (
    ANNOUNCEMENTS_STREAM,
    COPIES,
    PUBLICATION_STREAMS,
    RESPONSES,
    RESPONSES_STREAM,
    STREAM,
    TASKS_STREAM,
    task_subject,
)

NO_SEQUENCE = 10043
NO_STREAM = 404
# nats-server 2.15.1 answers so where another request erases the message at the same time.
_ERASED = "no message found"
REMOVALS_AT_ONCE = 16


class Erasure:
    def __init__(self, client: Client, reads: DirectGet, ends: AnnouncedEnds) -> None:
        self._client = client
        self._reads = reads
        self._ends = ends

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        """Overwrite and purge; a purge alone leaves bytes in files. Patterns would make the server scan the stream."""
        subject = prefix(tenant, deliberation_id)
        newest = await self._reads.last([f"{subject}.>"])
        subjects = {record.subject for record in newest.records} | newest.refused.keys()
        subjects.discard(f"{subject}.deleted")
        published = await self._published()
        copies = [(name, f"{copied}.{deliberation_id}") for name, copied in COPIES.items() if name in published]
        responses: dict[str, int] = {}
        if RESPONSES_STREAM in published:
            answers = await self._reads.last([f"{RESPONSES}.*.{deliberation_id}.*"])
            responses = {record.subject: record.sequence for record in answers.records} | answers.refused
        await gathered(self.erase(RESPONSES_STREAM, sequence) for sequence in responses.values())
        for copy in copies:
            await self._erase_matching(*copy)
        # A task that no worker has taken holds prompts.
        await self._erase_matching(TASKS_STREAM, task_subject("*", tenant, deliberation_id))
        if subjects:
            accepted = (record.sequence for record in newest.records if is_acceptance(record.subject))
            async for batch in self._reads.batches(f"{subject}.>", next(accepted, 1) - 1, PAGE_RECORDS):
                stored = [(record.subject, record.sequence) for record in batch.records] + [*batch.refused.items()]
                await gathered(self.erase(STREAM, sequence) for name, sequence in stored if name in subjects)
        pending = [(STREAM, name) for name in sorted(subjects)] + copies
        pending += [(RESPONSES_STREAM, name) for name in responses]
        await gathered(self._purge_subject(*target) for target in pending)
        if ANNOUNCEMENTS_STREAM in published:
            await self._withhold(tenant, deliberation_id)

    async def erase_announcement(self, tenant: str, deliberation_id: str, ended_at: datetime) -> None:
        """See `ports.Journal.erase_announcement`."""
        if not await self._published([ANNOUNCEMENTS_STREAM]):
            return
        if datetime.now(UTC) - ended_at >= REMEMBERED_FOR:
            sequence = await self._ends.find(tenant, deliberation_id, ended_at)
            if sequence is not None:
                await self.erase(ANNOUNCEMENTS_STREAM, sequence)
        # After the look-up: otherwise an announcement could be stored between the two.
        await self._withhold(tenant, deliberation_id)

    async def _withhold(self, tenant: str, deliberation_id: str) -> None:
        await self.erase(ANNOUNCEMENTS_STREAM, await self._ends.withhold(tenant, deliberation_id))
        if mark := await self._ends.late_mark(tenant, deliberation_id):
            await self.erase(ANNOUNCEMENTS_STREAM, mark)

    async def _published(self, names: Sequence[str] = tuple(PUBLICATION_STREAMS)) -> set[str]:
        """The streams of messages for other services that exist, also those of an earlier setting."""
        replies = await asyncio.gather(*(request(self._client, f"$JS.API.STREAM.INFO.{name}") for name in names))
        for name, reply in zip(names, replies, strict=True):
            if (error := reply.get("error")) and error.get("code") != NO_STREAM:
                raise JournalUnavailable(f"stream {name}: {error.get('description')}")
        return {name for name, reply in zip(names, replies, strict=True) if "error" not in reply}

    async def _erase_matching(self, stream: str, subject: str) -> None:
        """Overwrite the messages on matching subjects of a stream that allows no direct get."""
        sequence = 0
        while message := await stored_message(self._client, stream, seq=sequence + 1, next_by_subj=subject):
            sequence = message["seq"]
            await self.erase(stream, sequence)

    async def erase(self, stream: str, sequence: int) -> None:
        reply = await request(
            self._client, f"$JS.API.STREAM.MSG.DELETE.{stream}", json.dumps({"seq": sequence}).encode()
        )
        error = reply.get("error")
        if error is None or error.get("description") == _ERASED:
            return
        if error.get("err_code") != NO_SEQUENCE:
            raise JournalUnavailable(f"the log refused to erase message {sequence}: {error.get('description')}")

    async def _purge_subject(self, stream: str, subject: str) -> None:
        reply = await request(self._client, f"$JS.API.STREAM.PURGE.{stream}", json.dumps({"filter": subject}).encode())
        if error := reply.get("error"):
            raise JournalUnavailable(f"the log refused to remove {subject}: {error.get('description')}")


async def gathered(removals: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Make removals, some of them at once."""
    waiting = iter(removals)
    while some := list(islice(waiting, REMOVALS_AT_ONCE)):
        await asyncio.gather(*some)
