"""Removes the records of a deliberation, and overwrites them in the server's files."""

import asyncio
import json
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any

from nats.aio.client import Client

from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import is_acceptance, prefix
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
    def __init__(self, client: Client, reads: DirectGet) -> None:
        self._client = client
        self._reads = reads

    async def purge(self, tenant: str, deliberation_id: str) -> None:
        """Overwrite and purge; a purge alone leaves bytes in files. Patterns would make the server scan the stream."""
        subject = prefix(tenant, deliberation_id)
        found = await self._reads.last([f"{subject}.>"])
        subjects = {record.subject for record in found.records} | found.refused.keys()
        subjects.discard(f"{subject}.deleted")
        published = await self._published()
        copies = [(name, f"{copied}.{deliberation_id}") for name, copied in COPIES.items() if name in published]
        responses: dict[str, int] = {}
        if RESPONSES_STREAM in published:
            answers = await self._reads.last([f"{RESPONSES}.*.{deliberation_id}.*"])
            responses = {record.subject: record.sequence for record in answers.records} | answers.refused
        await _gathered(self.erase(RESPONSES_STREAM, sequence) for sequence in responses.values())
        for each in copies:
            await self._erase_matching(*each)
        # A task that no worker has taken holds prompts.
        await self._erase_matching(TASKS_STREAM, task_subject("*", tenant, deliberation_id))
        if subjects:
            accepted = (record.sequence for record in found.records if is_acceptance(record.subject))
            async for batch in self._reads.batches(f"{subject}.>", next(accepted, 1) - 1, PAGE_RECORDS):
                stored = [(each.subject, each.sequence) for each in batch.records] + [*batch.refused.items()]
                await _gathered(self.erase(STREAM, sequence) for name, sequence in stored if name in subjects)
        pending = [(STREAM, each) for each in sorted(subjects)] + copies
        pending += [(RESPONSES_STREAM, each) for each in responses]
        await _gathered(self._purge_subject(*each) for each in pending)
        if ANNOUNCEMENTS_STREAM in published:
            await self._purge_announcement(f"announced.{tenant}.{deliberation_id}")

    async def _published(self) -> set[str]:
        """The streams of messages for other services that exist, also those of an earlier setting."""
        names = list(PUBLICATION_STREAMS)
        replies = await asyncio.gather(*(request(self._client, f"$JS.API.STREAM.INFO.{name}") for name in names))
        for name, reply in zip(names, replies, strict=True):
            if (error := reply.get("error")) and error.get("code") != NO_STREAM:
                raise JournalUnavailable(f"stream {name}: {error.get('description')}")
        return {name for name, reply in zip(names, replies, strict=True) if "error" not in reply}

    async def _purge_announcement(self, mark: str) -> None:
        """Remove a mark and the announcement after it; the mark last, so that a crash leaves a way to both."""
        if found := await stored_message(self._client, ANNOUNCEMENTS_STREAM, last_by_subj=mark):
            await self.erase(ANNOUNCEMENTS_STREAM, found["seq"] + 1)
            await self.erase(ANNOUNCEMENTS_STREAM, found["seq"])

    async def _erase_matching(self, stream: str, subject: str) -> None:
        """Overwrite the messages on matching subjects of a stream that allows no direct get."""
        sequence = 0
        while found := await stored_message(self._client, stream, seq=sequence + 1, next_by_subj=subject):
            sequence = found["seq"]
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


async def _gathered(removals: Iterable[Coroutine[Any, Any, None]]) -> None:
    waiting = iter(removals)
    while some := list(islice(waiting, REMOVALS_AT_ONCE)):
        await asyncio.gather(*some)
