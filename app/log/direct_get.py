"""Batched direct gets (NATS ADR-31): one request reads many records, by subject or in stream order."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Record
from app.log.connection import REQUEST_TIMEOUT_S, UNREACHABLE, state_of
from app.log.signature import LogSigner
from app.log.stream_settings import stream_of

# For every page the server counts the rest of the log: a long log is read twice as fast as in pages of 256.
PAGE_RECORDS = 4_000
PAGE_BYTES = 8_000_000
EXTENDS_AFTER_S = 0.1
_NO_KEYS = LogSigner()


class TooManySubjects(Exception):
    """A batched direct get of last records answers for 1,024 subjects at most."""


@dataclass
class Batch:
    """The accepted records of a reply, and by subject the last sequence that is refused.

    Read up to `position`; `pending` further records match. `up_to` is the server's last sequence, 0 without a match.
    """

    records: list[Record] = field(default_factory=list[Record])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    position: int = 0
    pending: int = 0
    up_to: int = 0


@dataclass
class _Reading:
    signer: LogSigner
    done: asyncio.Future[Batch]
    limit: asyncio.Timeout
    batch: Batch = field(default_factory=Batch)

    def add_reply(self, message: Msg) -> None:
        now_s, until_s = asyncio.get_running_loop().time(), self.limit.when() or 0.0
        # Not for every reply: a timer costs as much as the reply.
        if not self.limit.expired() and now_s > until_s - REQUEST_TIMEOUT_S + EXTENDS_AFTER_S:
            self.limit.reschedule(now_s + REQUEST_TIMEOUT_S)
        headers = message.headers or {}
        # Headers of a stored record come back with it, so that one may be named Status.
        if "Nats-Sequence" in headers and "Nats-Subject" in headers:
            self._add(Record(headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data), headers)
        elif "Status" in headers and not self.done.done():
            self._end(headers)

    def _add(self, record: Record, headers: dict[str, str]) -> None:
        self.batch.position = max(self.batch.position, record.sequence)
        if self.signer.is_authentic(record.subject, record.data, headers):
            self.batch.records.append(record)
        else:
            self.batch.refused[record.subject] = record.sequence

    def _end(self, headers: dict[str, str]) -> None:
        match headers["Status"]:
            case "404":
                self.done.set_result(self.batch)
            case "204":
                self.batch.pending = int(headers.get("Nats-Num-Pending", 0))
                self.batch.position = max(self.batch.position, int(headers.get("Nats-Last-Sequence", 0)))
                self.batch.up_to = int(headers.get("Nats-UpTo-Sequence", 0))
                self.done.set_result(self.batch)
            case "413":
                self.done.set_exception(TooManySubjects)
            case status:
                detail = f"the log refused a read: {headers.get('Description', status)}"
                self.done.set_exception(JournalUnavailable(detail))


class DirectGet:
    """Reads over one connection. All replies come to one inbox, which `open` subscribes to."""

    def __init__(self, client: Client, signer: LogSigner) -> None:
        self._client = client
        self._signer = signer
        self._readings: dict[str, _Reading] = {}
        self._inbox = ""
        self._number = 0

    async def open(self) -> None:
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self.on_message)

    async def on_message(self, message: Msg) -> None:
        reading = self._readings.get(message.subject.rpartition(".")[2])
        if reading is not None:
            reading.add_reply(message)

    async def page(self, pattern: str, after: int, size: int, *, signed: bool = True) -> Batch:
        query = {"seq": after + 1, "next_by_subj": pattern, "batch": size, "max_bytes": PAGE_BYTES}
        return await self.get(stream_of(pattern), query, signed=signed)

    async def batches(self, pattern: str, after: int, size: int, *, signed: bool = True) -> AsyncIterator[Batch]:
        """Everything stored above `after`, in order; after the first batch in large ones."""
        while True:
            batch = await self.page(pattern, after, size, signed=signed)
            yield batch
            if batch.pending == 0 or batch.position <= after:
                return
            after, size = batch.position, PAGE_RECORDS

    async def last(self, patterns: Sequence[str]) -> Batch:
        """The last record on each subject of the patterns, all of one stream; raises JournalUnavailable."""
        with suppress(TooManySubjects):
            batch = await self.get(stream_of(patterns[0]), {"multi_last": list(patterns)})
            # The server ends a batch that is larger than what it holds for one client.
            if not batch.pending:
                return batch
        return await self._last_by_scan(patterns)

    async def _last_by_scan(self, patterns: Sequence[str]) -> Batch:
        bound = (await state_of(self._client, stream_of(patterns[0]))).last_sequence
        accepted, refused = dict[str, Record](), set[str]()
        for pattern in patterns:
            async for batch in self.batches(pattern, 0, PAGE_RECORDS):
                accepted |= {record.subject: record for record in batch.records if record.sequence <= bound}
                refused |= batch.refused.keys()
        # Every record was read, so that of the refused subjects none hides an accepted record.
        return Batch(list(accepted.values()), dict.fromkeys(refused - accepted.keys(), 0), bound, up_to=bound)

    async def get(self, stream: str, query: dict[str, Any], *, signed: bool = True) -> Batch:
        """One batch; raises TooManySubjects, and JournalUnavailable once no reply came for `REQUEST_TIMEOUT_S`.

        Without `signed` it accepts each record, for streams that hold no signatures.
        """
        self._number += 1
        token = str(self._number)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S) as limit:
                done = asyncio.get_running_loop().create_future()
                self._readings[token] = _Reading(self._signer if signed else _NO_KEYS, done, limit)
                await self._client.publish(
                    f"$JS.API.DIRECT.GET.{stream}", json.dumps(query).encode(), reply=f"{self._inbox}.{token}"
                )
                return await done
        except UNREACHABLE as exc:
            raise JournalUnavailable(f"the log cannot be reached: {exc!r}") from exc
        finally:
            del self._readings[token]
