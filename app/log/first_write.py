"""First writes by JetStream's expected last sequence of a subject: a record is stored once, whoever writes it."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass

import nats.errors
import stamina
from nats.aio.client import Client

from app.deliberation.errors import FactTooLarge, JournalUnavailable
from app.deliberation.ports import Appended, Record
from app.log.connection import REQUEST_TIMEOUT_S, UNREACHABLE, stored_message
from app.log.direct_get import PAGE_RECORDS, DirectGet
from app.log.signature import LogSigner
from app.log.stream_settings import stream_of

WRONG_LAST_SEQUENCE = 10071
# Writers of refused records may occupy a subject again between a look and a write.
OCCUPIED_TRIES = 20
# The end of the last look is kept for so many subjects, so that a flooded subject is not read from its beginning.
REMEMBERED_MAX = 10_000

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_AMONG = "Nats-Expected-Last-Subject-Sequence-Subject"
# An honest record mostly stands before those of foreign writers on its subject.
_FIRST_LOOK_RECORDS = 8

Accepts = Callable[[Record], bool]
"""Whether a stored record is what an honest process wrote."""


@dataclass(frozen=True, slots=True)
class _Write:
    subject: str
    data: bytes
    alone: str | None
    accepts: Accepts | None


def _headers_of(block: bytes) -> dict[str, str]:
    """The headers of a stored message, as nats-py parses those of a received one: the last of equal names counts."""
    lines = (line.partition(b":") for line in block.split(b"\r\n"))
    return {name.strip().decode("latin-1"): value.strip().decode("latin-1") for name, _, value in lines}


class FirstWriter:
    """Writes, each retried for `timeout_s`. `last_failed` is True from a failed attempt until a record is created."""

    def __init__(self, client: Client, signer: LogSigner, reads: DirectGet, timeout_s: float) -> None:
        self.last_failed = False
        self._client, self._signer, self._reads, self._timeout_s = client, signer, reads, timeout_s
        self._nothing_accepted_to: dict[str, int] = {}

    async def write(self, subject: str, data: bytes, alone: str | None, accepts: Accepts | None) -> Appended:
        """Write unless `subject`, or the pattern `alone`, has an accepted record; return the record that counts.

        Raises FactTooLarge, and JournalUnavailable when nothing was stored within the timeout.
        """
        write = _Write(subject, data, alone, accepts)
        try:
            return await self._attempt(write)
        except JournalUnavailable as exc:
            failures = [exc]
        # Entered only after a failed first attempt, which it counts: building the context costs 0.1 ms.
        retries = stamina.retry_context(
            on=JournalUnavailable, attempts=None, timeout=self._timeout_s, wait_initial=0.05, wait_max=1.0
        )
        async for attempt in retries:
            with attempt:
                if failures:
                    raise failures.pop()
                return await self._attempt(write)
        raise AssertionError("a retry context ends by returning or raising")

    async def _attempt(self, write: _Write) -> Appended:
        try:
            appended = await self._append(write)
        except JournalUnavailable:
            self.last_failed = True
            raise
        if appended.created:
            self.last_failed = False
        return appended

    async def _append(self, write: _Write) -> Appended:
        expected = 0
        for _ in range(OCCUPIED_TRIES):
            appended = await self._append_once(write, expected)
            if appended is not None:
                return appended
            stored, expected = await self._standing(write.subject, write.accepts)
            if stored is None and write.alone:
                stored, expected = await self._standing(write.alone, write.accepts)
            if stored is not None:
                return Appended(stored, created=stored.data == write.data)
        raise JournalUnavailable(f"the log refused the write {OCCUPIED_TRIES} times: others write on its subject")

    async def _append_once(self, write: _Write, expected: int) -> Appended | None:
        headers = {EXPECTED_LAST: str(expected), **self._signer.headers(write.subject, write.data)}
        if write.alone is not None:
            headers[EXPECTED_LAST_AMONG] = write.alone
        try:
            message = await self._client.request(write.subject, write.data, timeout=REQUEST_TIMEOUT_S, headers=headers)
        except nats.errors.MaxPayloadError as exc:
            raise FactTooLarge(f"{len(write.data)} bytes on {write.subject}") from exc
        except UNREACHABLE as exc:
            # Whether it is stored is unknown. The subject decides: while it is empty, the write may be repeated.
            stored, _ = await self._standing(write.subject, write.accepts)
            if stored is None:
                detail = f"the log did not acknowledge the write; it may be away, or its store full: {exc!r}"
                raise JournalUnavailable(detail) from exc
            return Appended(stored, created=stored.data == write.data)
        reply = json.loads(message.data)
        error = reply.get("error")
        if error is None:
            return Appended(Record(write.subject, reply["seq"], write.data), created=True)
        if error.get("err_code") == WRONG_LAST_SEQUENCE:
            return None
        raise JournalUnavailable(f"the log refused the write: {error.get('description')}")

    async def _standing(self, pattern: str, accepts: Accepts | None) -> tuple[Record | None, int]:
        """Returns the record that counts, and the last sequence; read from the leader, as a follower may lag."""
        stored = await stored_message(self._client, stream_of(pattern), last_by_subj=pattern)
        if stored is None:
            return None, 0
        record = Record(stored["subject"], stored["seq"], base64.b64decode(stored.get("data", "")))
        headers = _headers_of(base64.b64decode(stored.get("hdrs", "")))
        if self._signer.is_authentic(record.subject, record.data, headers) and (accepts is None or accepts(record)):
            return record, record.sequence
        return await self.first_accepted(pattern, record.sequence, accepts), record.sequence

    async def first_accepted(self, pattern: str, up_to: int, accepts: Accepts | None = None) -> Record | None:
        """Returns the first accepted record of a pattern whose last record, at `up_to`, is refused; None without any.

        Without `accepts` only records since the last look are read.
        """
        after, size = 0 if accepts else self._nothing_accepted_to.get(pattern, 0), _FIRST_LOOK_RECORDS
        while after < up_to:
            batch = await self._reads.page(pattern, after, size)
            accepted = next((record for record in batch.records if accepts is None or accepts(record)), None)
            if accepted is not None:
                return accepted
            if batch.position <= after:
                raise JournalUnavailable("the log's reads lag behind its writes")
            after, size = batch.position, PAGE_RECORDS
        if accepts is None:
            self._nothing_accepted_to[pattern] = after
            if len(self._nothing_accepted_to) > REMEMBERED_MAX:
                del self._nothing_accepted_to[next(iter(self._nothing_accepted_to))]
        return None
