"""Inputs in memory, held to the contract of the real store (`tests/integration/log/test_inputs.py`)."""

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from app.deliberation.ports import Clock
from app.deliberation.specification import InputRef
from app.log.inputs import CHUNK_BYTES, UPLOAD, InputLost, InputStore, InputUse, Needed, Part, StoredInput


def _read(original: Path, form: Path) -> dict[Part, bytes]:
    return {"original": original.read_bytes(), "form": form.read_bytes()}


class MemoryInputs(InputStore):
    """`storing` are inputs whose upload goes on, which a test says."""

    def __init__(self) -> None:
        self.storing: set[tuple[str, str]] = set()
        self.files: dict[tuple[str, str], StoredInput] = {}
        self.parts: dict[tuple[str, str], dict[Part, bytes]] = {}
        self.users: dict[tuple[str, str], dict[str, datetime]] = {}

    async def store(self, tenant: str, file: InputRef, original: Path, form: Path, clock: Clock) -> StoredInput:
        key = tenant, file.sha256
        self.parts.setdefault(key, _read(original, form))
        self.users.setdefault(key, {})[UPLOAD] = clock.now()
        return self.files.setdefault(key, StoredInput(file=file, stored_at=clock.now()))

    async def find(self, tenant: str, sha256: str) -> StoredInput | None:
        return self.files.get((tenant, sha256))

    async def stored_of(self, tenant: str) -> list[StoredInput]:
        return [stored for (owner, _), stored in self.files.items() if owner == tenant]

    async def use(self, tenant: str, sha256: str, deliberation_id: str, now: datetime) -> bool:
        if (tenant, sha256) not in self.files:
            return False
        self.users[tenant, sha256][deliberation_id] = now
        return True

    async def uses(self, tenant: str, sha256: str) -> list[InputUse]:
        key = tenant, sha256
        uses = self.users.get(key, {}).items()
        return [InputUse(user, at, storing=user == UPLOAD and key in self.storing) for user, at in uses]

    async def used_by(self, tenant: str, deliberation_id: str) -> list[str]:
        return [sha256 for (owner, sha256), users in self.users.items() if owner == tenant and deliberation_id in users]

    async def all_used(self) -> list[tuple[str, str]]:
        return list(self.users)

    async def remove(self, tenant: str, sha256: str, needed: Needed) -> bool:
        for use in await self.uses(tenant, sha256):
            if await needed(use):
                return False
        for kept in (self.files, self.parts, self.users):
            kept.pop((tenant, sha256), None)
        return True

    async def finish_removal(self, tenant: str, sha256: str) -> None:
        """A removal in memory is never cut."""

    async def forget(self, tenant: str, sha256: str, deliberation_id: str) -> None:
        self.users.get((tenant, sha256), {}).pop(deliberation_id, None)

    async def chunks(self, tenant: str, file: InputRef, part: Part) -> AsyncIterator[bytes]:
        if (tenant, file.sha256) not in self.parts:
            raise InputLost(f"input {file.sha256} is not stored")
        content = self.parts[tenant, file.sha256][part]
        for begin in range(0, len(content), CHUNK_BYTES):
            yield content[begin : begin + CHUNK_BYTES]
