"""Inputs for tests of the store."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from app.deliberation.specification import InputRef
from app.log.inputs import InputStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class FixedClock:
    def now(self) -> datetime:
        return NOW


def described(original: bytes, form: bytes | None = None) -> InputRef:
    shown = original if form is None else form
    return InputRef(
        sha256=hashlib.sha256(original).hexdigest(),
        name="a.bin",
        media_type="text/plain",
        bytes=len(original),
        kind="text",
        tokens=1,
        form_sha256=hashlib.sha256(shown).hexdigest(),
        form_bytes=len(shown),
    )


async def put(
    store: InputStore, folder: Path, original: bytes, form: bytes | None = None, tenant: str = "t"
) -> InputRef:
    paths = [folder / "original", folder / "form"]
    for path, content in zip(paths, (original, original if form is None else form), strict=True):
        path.write_bytes(content)
    return (await store.store(tenant, described(original, form), paths[0], paths[1], FixedClock())).file
