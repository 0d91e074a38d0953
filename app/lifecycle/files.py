"""Files of a tenant: uploads, what deliberations need of them, and their end."""

import asyncio
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from pathlib import Path

import structlog

from app.api.problems import FilesFull, StillLive, ValidationFailed, body_fault
from app.api.requests import (
    EVIDENCE_TOKENS_MAX,
    FILE_ID_PATTERN,
    FILE_ID_PREFIX,
    INLINE_CHARS_MAX,
    DeliberationRequest,
    evidence_tokens,
)
from app.api.schemas import FieldProblem, File
from app.api.upload import SPOOL_PREFIX
from app.catalog.entries import shown_task
from app.deliberation.errors import JournalUnavailable, NotFound
from app.deliberation.facts import is_acceptance, prefix
from app.deliberation.ports import Clock, Journal
from app.deliberation.specification import BYTES_PER_TOKEN, InputRef, Specification
from app.inputs.reading import ReadInput, read_input
from app.lifecycle.context import EVIDENCE_ID
from app.log.inputs import UPLOAD, InputStore, InputUse, StoredInput
from app.tenant_slots import TenantSlots

# A file that no deliberation names.
UNUSED_FOR = timedelta(hours=1)
# The life of a use whose deliberation is not in the log: its acceptance may still be on its way, or never came.
YOUNG = timedelta(minutes=10)
SWEEP_S = 300.0
# Bodies that come, slowly or not, and lie on the disk until they are read.
RECEIVED_AT_ONCE = 64
RECEIVED_OF_TENANT = 4
READ_AT_ONCE = 8
READ_OF_TENANT = 2
_READ_BYTES = 1 << 20
# Patches of 28 pixels, as models that see mostly count; others differ.
_PATCH_PIXELS = 28
NAME_CHARS_MAX = 200

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Bytes of one file, and of all files of a tenant."""

    file_bytes: int
    tenant_bytes: int


class Files:
    """Operations on files; each raises JournalUnavailable while the log cannot be reached.

    `store` is the log's own.
    """

    def __init__(self, journal: Journal, store: InputStore, clock: Clock, limits: FileLimits) -> None:
        self.limits = limits
        self._journal, self._store, self._clock = journal, store, clock
        self.receiving = TenantSlots(RECEIVED_AT_ONCE, RECEIVED_OF_TENANT)
        self._reading = TenantSlots(READ_AT_ONCE, READ_OF_TENANT)

    async def add(self, tenant: str, path: Path, name: str, declared: str | None) -> StoredInput:
        """Read and store a file; raises InputRefused, and FilesFull."""
        async with self._reading.slot(tenant):
            with tempfile.TemporaryDirectory(prefix=SPOOL_PREFIX) as directory:
                known = await read_input(path, name, declared, Path(directory))
                file = await asyncio.to_thread(_described, path, name, known)
                await self._check_share(tenant, file)
                return await self._store.store(tenant, file, path, known.path, self._clock)

    async def add_text(self, tenant: str, name: str, text: str) -> InputRef:
        """Store a text of a request; raises as `add` does."""
        return (await self.add_content(tenant, text.encode(), f"{name}.txt", "text/plain; charset=utf-8")).file

    async def add_content(self, tenant: str, content: bytes, name: str, declared: str | None) -> StoredInput:
        """Store a file of a request; raises as `add` does."""
        with tempfile.TemporaryDirectory(prefix=SPOOL_PREFIX) as directory:
            path = Path(directory) / "content"
            await asyncio.to_thread(path.write_bytes, content)
            return await self.add(tenant, path, name, declared)

    async def _check_share(self, tenant: str, file: InputRef) -> None:
        stored = {kept.file.sha256: kept.file for kept in await self._store.stored_of(tenant)}
        taken = sum(_stored_bytes(kept) for kept in stored.values())
        if file.sha256 not in stored and taken + _stored_bytes(file) > self.limits.tenant_bytes:
            raise FilesFull(f"The files of this tenant take {taken:,} of {self.limits.tenant_bytes:,} bytes.")

    async def find(self, tenant: str, file_id: str) -> StoredInput:
        """Raises NotFound."""
        sha256 = digest_of(file_id)
        stored = None if sha256 is None else await self._store.find(tenant, sha256)
        if stored is None:
            raise NotFound(f"There is no file {file_id[:80]}.")
        return stored

    async def shown(self, tenant: str, stored: StoredInput) -> File:
        uses = await self._store.uses(tenant, stored.file.sha256)
        since = max((use.at for use in uses if use.user == UPLOAD), default=stored.stored_at)
        named = any(use.user != UPLOAD for use in uses)
        return _shown(stored, None if named else since + UNUSED_FOR)

    async def all(self, tenant: str) -> list[StoredInput]:
        return await self._store.stored_of(tenant)

    def content(self, tenant: str, stored: StoredInput, *, as_read: bool) -> AsyncIterator[bytes]:
        return self._store.chunks(tenant, stored.file, "form" if as_read else "original")

    async def text_of(self, tenant: str, file: InputRef) -> str:
        """The text of an input as agents read it; raises InputLost where it is not stored any more."""
        return b"".join([chunk async for chunk in self._store.chunks(tenant, file, "form")]).decode()

    async def delete(self, tenant: str, file_id: str) -> None:
        """Remove a file; raises NotFound, and StillLive while a deliberation in the log names it."""
        try:
            stored = await self.find(tenant, file_id)
        except NotFound:
            # A deletion whose gateway was killed has left a part, and its client asks again.
            if (sha256 := digest_of(file_id)) is not None:
                await self._store.finish_removal(tenant, sha256)
            raise
        if not await self._store.remove(tenant, stored.file.sha256, partial(self._is_named, tenant)):
            raise StillLive(f"Deliberations name {file_id}, or it is being uploaded; delete them first.")

    async def named(self, tenant: str, request: DeliberationRequest) -> dict[str, InputRef]:
        """The inputs that a request names, by id; raises ValidationFailed for unknown ones."""
        inputs, faults = dict[str, InputRef](), list[FieldProblem]()
        for place, document in enumerate(request.evidence):
            if document.file is None:
                continue
            try:
                inputs[document.file] = (await self.find(tenant, document.file)).file
            except NotFound as unknown:
                fault = str(unknown).rstrip(".")
                faults.append(body_fault(f"/evidence/{place}/file", "unknown_file", fault, "Upload it by POST /files."))
        if faults:
            raise ValidationFailed(faults)
        return inputs

    async def with_long_texts_stored(self, tenant: str, asked: Specification) -> Specification:
        """The specification with its long texts as inputs, so that the log stays small; raises as `add` does."""
        changed: dict[str, object] = {}
        if len(asked.task) > INLINE_CHARS_MAX:
            changed["task_file"] = await self.add_text(tenant, "task", asked.task)
            changed["task"] = shown_task(asked.task)
        # The text of a context was cut to what the others leave.
        texts = {
            place: evidence.text
            for place, evidence in enumerate(asked.evidence)
            if evidence.text is not None and evidence.id != EVIDENCE_ID
        }
        left = sum(map(evidence_tokens, texts.values())) - EVIDENCE_TOKENS_MAX
        evidence = list(asked.evidence)
        for place in sorted(texts, key=lambda place: len(texts[place]), reverse=True):
            if left <= 0:
                break
            file = await self.add_text(tenant, evidence[place].id, texts[place])
            evidence[place] = evidence[place].model_copy(update={"text": None, "file": file})
            left -= evidence_tokens(texts[place])
            changed["evidence"] = tuple(evidence)
        return asked.model_copy(update=changed) if changed else asked

    async def hold(self, tenant: str, deliberation_id: str, inputs: Iterable[InputRef]) -> None:
        """Record that a deliberation that is about to be accepted needs inputs; raises ValidationFailed."""
        for file in inputs:
            if not await self._store.use(tenant, file.sha256, deliberation_id, self._clock.now()):
                detail = f"The file {FILE_ID_PREFIX}{file.sha256} is being deleted"
                raise ValidationFailed([body_fault("/evidence", "unknown_file", detail, "Upload it once more.")])

    async def release(self, tenant: str, deliberation_id: str) -> None:
        """Remove the files that only this deliberation has needed. Its tombstone is in the log."""
        for sha256 in await self._store.used_by(tenant, deliberation_id):
            if not await self._store.remove(tenant, sha256, partial(self._is_named, tenant)):
                await self._store.forget(tenant, sha256, deliberation_id)

    async def _is_named(self, tenant: str, use: InputUse) -> bool:
        return use.storing if use.user == UPLOAD else await self._counts(tenant, use)

    async def _counts(self, tenant: str, use: InputUse) -> bool:
        """Whether the deliberation that uses a file is in the log, or may still come; False after its tombstone."""
        records = await self._journal.last([f"{prefix(tenant, use.user)}.*"])
        if any(record.tokens[-1] == "deleted" for record in records):
            return False
        return self._clock.now() - use.at < YOUNG or any(is_acceptance(record.subject) for record in records)

    async def sweep(self) -> None:
        """Remove what nothing needs any more, again and again, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            with suppress(JournalUnavailable):
                await self.sweep_once()

    async def sweep_once(self) -> None:
        await asyncio.to_thread(_remove_spools, (self._clock.now() - UNUSED_FOR).timestamp())
        for tenant, sha256 in await self._store.all_used():

            async def needed(use: InputUse, tenant: str = tenant) -> bool:
                if use.user == UPLOAD:
                    return self._clock.now() - use.at < (YOUNG if use.storing else UNUSED_FOR)
                return await self._counts(tenant, use)

            if await self._store.remove(tenant, sha256, needed):
                log.info("input_removed", sha256=sha256)


def _remove_spools(before_s: float) -> None:
    """Remove temporary files from before a moment: killed gateways left them, since no upload takes so long."""
    for path in Path(tempfile.gettempdir()).glob(f"{SPOOL_PREFIX}*"):
        try:
            status = path.lstat()
            if status.st_uid != os.getuid() or status.st_mtime >= before_s:
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            # Another gateway of this machine has removed it.
            continue
        except OSError as error:
            log.warning("temporary_file_kept", path=str(path), error=str(error))


def digest_of(file_id: str) -> str | None:
    return file_id.removeprefix(FILE_ID_PREFIX) if re.fullmatch(FILE_ID_PATTERN, file_id) else None


def _described(path: Path, name: str, known: ReadInput) -> InputRef:
    sha256 = _sha256(path)
    form_sha256 = sha256 if known.path == path else _sha256(known.path)
    if known.width and known.height:
        tokens = ceil(known.width / _PATCH_PIXELS) * ceil(known.height / _PATCH_PIXELS)
    else:
        tokens = ceil(known.bytes / BYTES_PER_TOKEN)
    return InputRef(
        sha256=sha256,
        name=plain_name(name),
        media_type=known.media_type,
        bytes=path.stat().st_size,
        kind=known.kind,
        tokens=tokens,
        pages=known.pages,
        form_sha256=form_sha256,
        form_bytes=known.bytes,
    )


def plain_name(name: str) -> str:
    """The last part of a path, on one line."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(character for character in last if character.isprintable())[-NAME_CHARS_MAX:] or "file"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while piece := content.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _stored_bytes(file: InputRef) -> int:
    return file.bytes + (0 if file.form_sha256 == file.sha256 else file.form_bytes)


def _shown(stored: StoredInput, expires_at: datetime | None) -> File:
    file = stored.file
    return File(
        id=f"{FILE_ID_PREFIX}{file.sha256}",
        name=file.name,
        media_type=file.media_type,
        kind=file.kind,
        bytes=file.bytes,
        tokens=file.tokens,
        pages=file.pages,
        created_at=stored.stored_at,
        expires_at=expires_at,
    )
