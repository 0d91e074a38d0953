"""The stream INPUTS: what clients give beside their tasks, in chunks, by tenant and SHA-256.

On `inputs.<tenant>.<sha256>.` stand `file` (what it is), `original.<n>` and `form.<form_sha256>.<n>` (its chunks),
`used.<user>` (who needs it) and `removed` (its removal has begun). A user is a deliberation, or `upload`: nothing is
removed while its upload goes on. Both kinds of writes, of a use and of a removal, are refused by the server after the
other kind. The same bytes may be read in several ways, so that forms of uploads that broke off differ from a later one.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

from nats.aio.client import Client
from pydantic import AwareDatetime

from app.deliberation.errors import JournalUnavailable
from app.deliberation.ports import Clock
from app.deliberation.specification import InputRef, Token, Value, checked_token
from app.log.connection import request, stored_message
from app.log.direct_get import PAGE_RECORDS, DirectGet
from app.log.erasure import Erasure, gathered
from app.log.first_write import EXPECTED_LAST, EXPECTED_LAST_AMONG, WRONG_LAST_SEQUENCE, FirstWriter
from app.log.signature import LogSigner
from app.log.stream_settings import INPUTS_STREAM

CHUNK_BYTES = 131_072
# Two megabytes are on their way at once.
CHUNKS_AT_ONCE = 16
UPLOAD = "upload"
# The first bytes of an inquiry for the tokens of an input; the rest is a `CountedInput`.
COUNT = b"count "
Part = Literal["original", "form"]


class CountedInput(Value, frozen=True):
    """An input whose tokens a replica is asked for."""

    tenant: str
    file: InputRef


class StoredInput(Value, frozen=True):
    """What is stored of an input, and since when."""

    file: InputRef
    stored_at: AwareDatetime


class _Use(Value, frozen=True):
    """Since when a user needs an input; `storing` while its chunks are written."""

    at: AwareDatetime
    storing: bool = False


@dataclass(frozen=True, slots=True)
class InputUse:
    """A user of an input: a deliberation's id, or `upload`."""

    user: str
    at: datetime
    storing: bool


Needed = Callable[[InputUse], Coroutine[Any, Any, bool]]
"""Whether a use still counts."""


class _Renew(Protocol):
    """Says that an upload goes on, or with `storing=False` that it is whole."""

    async def __call__(self, *, storing: bool) -> None: ...


class InputLost(Exception):
    """An input is not stored, or not whole."""


class InputStore:
    """Methods raise JournalUnavailable while the server does not answer."""

    def __init__(
        self, client: Client, reads: DirectGet, writes: FirstWriter, erasure: Erasure, signer: LogSigner
    ) -> None:
        self._client, self._reads, self._writes, self._erasure = client, reads, writes, erasure
        self._signer = signer

    async def store(self, tenant: str, file: InputRef, original: Path, form: Path, clock: Clock) -> StoredInput:
        """Store both files in chunks, and return what counts: equal bytes keep the name and form of their first upload.

        Raises JournalUnavailable too where a sweep took the upload for one that broke off.
        """
        subject, stored_at = _subject(tenant, file.sha256), clock.now()

        async def renew(*, storing: bool) -> None:
            if not await self._use(subject, UPLOAD, _Use(at=clock.now(), storing=storing)):
                # Chunks that came after the removal stay: with a use a sweep finds them.
                await self._begin_upload(subject, clock)
                raise JournalUnavailable("the input was removed while it was stored")

        await self._begin_upload(subject, clock)
        standing = await self.find(tenant, file.sha256)
        await self._write_chunks(f"{subject}.original", original, renew)
        if file.form_sha256 != file.sha256 and (standing is None or standing.file.form_sha256 == file.form_sha256):
            await self._write_chunks(f"{subject}.form.{file.form_sha256}", form, renew)
        data = _encoded(StoredInput(file=file, stored_at=stored_at))
        appended = await self._writes.write(f"{subject}.file", data, None, None)
        await renew(storing=False)
        return StoredInput.model_validate_json(appended.record.data)

    async def _begin_upload(self, subject: str, clock: Clock) -> None:
        while not await self._use(subject, UPLOAD, _Use(at=clock.now(), storing=True)):
            # Another process removes the same bytes at this moment, or died over it.
            await self._finish_removal(subject)

    async def _write_chunks(self, subject: str, path: Path, renew: _Renew) -> None:
        numbers, waiting = count(), list[Coroutine[Any, Any, object]]()
        with path.open("rb") as chunks:
            while chunk := await asyncio.to_thread(chunks.read, CHUNK_BYTES):
                if len(waiting) == CHUNKS_AT_ONCE:
                    await asyncio.gather(*waiting)
                    waiting.clear()
                    await renew(storing=True)
                waiting.append(self._writes.write(f"{subject}.{next(numbers)}", chunk, None, None))
        await asyncio.gather(*waiting)

    async def find(self, tenant: str, sha256: str) -> StoredInput | None:
        """The input of a tenant; None where it has none, or none any more."""
        subject = _subject(tenant, sha256)
        records = await self._reads.last([f"{subject}.file", f"{subject}.removed"])
        by_name = {record.tokens[-1]: record for record in records.records}
        if "file" not in by_name or "removed" in by_name:
            return None
        return StoredInput.model_validate_json(by_name["file"].data)

    async def stored_of(self, tenant: str) -> list[StoredInput]:
        """All inputs of a tenant, the oldest first."""
        records = (await self._reads.last([f"inputs.{checked_token(tenant, 'tenant')}.*.file"])).records
        return [StoredInput.model_validate_json(record.data) for record in records]

    async def use(self, tenant: str, sha256: str, deliberation_id: str, now: datetime) -> bool:
        """Record that a deliberation needs an input; returns False where it is not stored, or is being removed."""
        used = await self._use(_subject(tenant, sha256), deliberation_id, _Use(at=now))
        # Looked for after the write: from then on nothing removes it.
        return used and await self.find(tenant, sha256) is not None

    async def _use(self, subject: str, user: str, use: _Use) -> bool:
        return await self._write_if(f"{subject}.used.{user}", _encoded(use), 0, among=f"{subject}.removed") is not None

    async def uses(self, tenant: str, sha256: str) -> list[InputUse]:
        records = (await self._reads.last([f"{_subject(tenant, sha256)}.used.*"])).records
        uses = ((record.tokens[-1], _Use.model_validate_json(record.data)) for record in records)
        return [InputUse(user, use.at, use.storing) for user, use in uses]

    async def used_by(self, tenant: str, deliberation_id: str) -> list[str]:
        """The SHA-256 of each input that a deliberation uses."""
        pattern = f"inputs.{checked_token(tenant, 'tenant')}.*.used.{checked_token(deliberation_id, 'id')}"
        return [record.tokens[2] for record in (await self._reads.last([pattern])).records]

    async def all_used(self) -> list[tuple[str, str]]:
        """The tenant and the SHA-256 of each input, also of one that was begun or whose removal was."""
        records = (await self._reads.last(["inputs.*.*.used.*", "inputs.*.*.removed"])).records
        return list(dict.fromkeys((record.tokens[1], record.tokens[2]) for record in records))

    async def remove(self, tenant: str, sha256: str, needed: Needed) -> bool:
        """Overwrite an input that no use needs; returns whether nothing is left of it."""
        subject = _subject(tenant, sha256)
        last = await stored_message(self._client, INPUTS_STREAM, last_by_subj=f"{subject}.>")
        if last is None:
            return True
        if last["subject"] != f"{subject}.removed":
            for use in await self.uses(tenant, sha256):
                if await needed(use):
                    return False
            # Refused where anything was written since the look.
            if await self._write_if(f"{subject}.removed", b"{}", last["seq"], among=f"{subject}.>") is None:
                return False
        await self._finish_removal(subject)
        return True

    async def forget(self, tenant: str, sha256: str, deliberation_id: str) -> None:
        """Remove the use of a deliberation; the input stays for others."""
        subject = f"{_subject(tenant, sha256)}.used.{checked_token(deliberation_id, 'id')}"
        use = await stored_message(self._client, INPUTS_STREAM, last_by_subj=subject)
        if use is not None:
            await self._erasure.erase(INPUTS_STREAM, use["seq"])

    async def finish_removal(self, tenant: str, sha256: str) -> None:
        """Go on with the removal of an input, if one has begun."""
        await self._finish_removal(_subject(tenant, sha256))

    async def _finish_removal(self, subject: str) -> None:
        """Erase everything up to the mark. What is stored again later has other sequences.

        The uses go last, after the mark: a process that repeats an interrupted removal finds the input by its uses.
        """
        mark = await stored_message(self._client, INPUTS_STREAM, last_by_subj=f"{subject}.removed")
        if mark is None:
            return
        uses = set[int]()
        async for batch in self._reads.batches(f"{subject}.>", 0, PAGE_RECORDS):
            stored = [(record.subject, record.sequence) for record in batch.records] + [*batch.refused.items()]
            older = {sequence: name for name, sequence in stored if sequence < mark["seq"]}
            uses |= {sequence for sequence, name in older.items() if name.startswith(f"{subject}.used.")}
            await self._erase(older.keys() - uses)
        await self._erase([mark["seq"]])
        await self._erase(uses)

    async def _erase(self, sequences: Iterable[int]) -> None:
        await gathered(self._erasure.erase(INPUTS_STREAM, sequence) for sequence in sequences)

    async def chunks(self, tenant: str, file: InputRef, part: Part) -> AsyncIterator[bytes]:
        """The bytes of an input or of its form; raises InputLost where some are missing, and at the end for others."""
        subject, digest = _subject(tenant, file.sha256), hashlib.sha256()
        if part == "original" or file.form_sha256 == file.sha256:
            subject, size, sha256 = f"{subject}.original", file.bytes, file.sha256
        else:
            subject, size, sha256 = f"{subject}.form.{file.form_sha256}", file.form_bytes, file.form_sha256
        chunks = -(-size // CHUNK_BYTES)
        for begin in range(0, chunks, CHUNKS_AT_ONCE):
            for chunk in await self._read_chunks(subject, range(begin, min(chunks, begin + CHUNKS_AT_ONCE))):
                digest.update(chunk)
                yield chunk
        if digest.hexdigest() != sha256:
            raise InputLost(f"input {file.sha256} is not what was stored")

    async def _read_chunks(self, subject: str, numbers: Sequence[int]) -> list[bytes]:
        batch = await self._reads.last([f"{subject}.{number}" for number in numbers])
        chunks = {int(record.tokens[-1]): record.data for record in batch.records}
        if missing := [number for number in numbers if number not in chunks]:
            raise InputLost(f"chunk {missing[0]} of {subject} is not stored")
        return [chunks[number] for number in numbers]

    async def _write_if(self, subject: str, data: bytes, expected: int, *, among: str) -> int | None:
        """Write if the last sequence on `among` is the expected one; returns the new sequence, or None."""
        headers = {EXPECTED_LAST: str(expected), EXPECTED_LAST_AMONG: among, **self._signer.headers(subject, data)}
        reply = await request(self._client, subject, data, headers)
        error = reply.get("error")
        if error is None:
            return reply["seq"]
        if error.get("err_code") == WRONG_LAST_SEQUENCE:
            return None
        raise JournalUnavailable(f"the log refused the write: {error.get('description')}")


def _subject(tenant: str, sha256: Token) -> str:
    return f"inputs.{checked_token(tenant, 'tenant')}.{checked_token(sha256, 'sha256')}"


def _encoded(value: Value) -> bytes:
    return value.__pydantic_serializer__.to_json(value)
