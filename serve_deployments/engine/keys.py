"""The key of an engine in memory: read from the environment or a file, and never shown."""

import asyncio
import os
from pathlib import Path

import structlog

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import EngineSpec, api_key

ROLES_FILE = "roles file"

log = structlog.get_logger(__name__)


def read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


class EngineKey:
    """An engine's key. `refresh` reads a key file anew; what was read before is kept while the file is unusable."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._key = self._read()
        self._usable = True

    def _read(self) -> str | None:
        return api_key(self._spec, os.environ, read_text, ROLES_FILE)

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [] if self._key is None else [("Authorization", f"Bearer {self._key}")]

    def redacted(self, content: bytes) -> bytes:
        """An engine's words without its key, which some engines repeat in their errors."""
        return content if self._key is None else content.replace(self._key.encode(), b"***")

    async def refresh(self) -> bool:
        """Read a key file anew, without blocking the event loop; returns whether the key has changed."""
        if self._spec.api_key_file is None:
            return False
        before = self._key
        try:
            self._key = await asyncio.to_thread(self._read)
        except InvalidRequest as unusable:
            # A file may be missing or empty for a moment while it is replaced.
            if self._usable:
                log.warning("engine_key_unusable", engine=self._spec.label, error=str(unusable))
            self._usable = False
            return False
        self._usable = True
        if self._key != before:
            log.info("engine_key_changed", engine=self._spec.label)
        return self._key != before
