"""The directory that the agents' processes of a node share: copies of workspaces, and a directory for each program.

This process makes directories there, renames them, and locks them. What hostile programs and repositories left in them
is read and removed by bounded children.
"""

import asyncio
import fcntl
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from app.bounded_child import ChildExceeded, ChildLimits, module_command, run_child
from serve_deployments.node_directory.sweep import SCRATCH, CopyBounds, has_locked, is_at, renamed_away

REMOVED_WITHIN_S = 60.0
SWEPT_WITHIN_S = 120.0
_LIMITS = ChildLimits(memory_bytes=512 << 20, file_bytes=1 << 20, processes=1)
_REMOVAL = module_command("serve_deployments.node_directory.removal")
_SWEEP = module_command("serve_deployments.node_directory.sweep")
_PROBLEMS_LOGGED_MAX = 10

log = structlog.get_logger(__name__)


class NodeDirectory:
    """The directory at `path`, by default a folder of this user for temporary files.

    `failed_removals` counts what could not be removed, once for each attempt; each sweep tries again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.gettempdir(), f"deliberation-workspaces-{os.getuid()}")
        self.failed_removals = 0

    def is_own(self) -> bool:
        """Make the directory where it is missing; whether it belongs to this user alone. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.path.stat()
        return status.st_uid == os.getuid() and not status.st_mode & 0o022

    @asynccontextmanager
    async def scratch(self) -> AsyncGenerator[Path]:
        """An empty directory, which is removed after its use. Raises OSError where it cannot be made."""
        making = asyncio.ensure_future(asyncio.to_thread(self._locked_scratch))
        try:
            # Cancelling does not stop the thread: `_give_back` unlocks the directory that the thread makes.
            directory, lock = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_give_back)
            raise
        try:
            yield directory
        finally:
            try:
                os.rmdir(directory)
            except OSError:
                # Not empty, or its program made it unreadable.
                await self.remove(directory)
            finally:
                os.close(lock)

    def _locked_scratch(self) -> tuple[Path, int]:
        if not self.is_own():
            raise PermissionError(f"the directory {self.path} belongs to another user")
        while True:
            directory = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self.path))
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            # A sweep may take it before it is locked.
            if has_locked(lock, fcntl.LOCK_SH) and is_at(lock, directory):
                return directory, lock
            os.close(lock)

    async def remove(self, *paths: Path) -> None:
        """Rename files and directories, and remove them in a child. A failure is counted; a sweep removes the rest."""
        away: list[str] = []
        for path in paths:
            try:
                away.append(str(renamed_away(path)))
            except FileNotFoundError:
                continue
            except OSError as error:
                self._note([(str(path), str(error))])
        if away:
            await self._clear(_REMOVAL, away, REMOVED_WITHIN_S)

    async def sweep(self, bounds: CopyBounds) -> None:
        """Remove what no process uses, and copies above the bounds."""
        if await asyncio.to_thread(os.path.isdir, self.path):
            order = {"directory": str(self.path), "bounds": asdict(bounds)}
            await self._clear(_SWEEP, order, SWEPT_WITHIN_S)

    async def _clear(self, command: Sequence[str], order: Any, within_s: float) -> None:  # noqa: ANN401 -- any JSON
        try:
            output = await run_child(command, limits=_LIMITS, within_s=within_s, sent=json.dumps(order).encode())
            failures = json.loads(output.data) if output.status == 0 else [(str(self.path), output.error)]
        except (ChildExceeded, OSError, ValueError) as failure:
            failures = [(str(self.path), str(failure))]
        self._note(failures)

    def _note(self, failures: Sequence[tuple[str, str]]) -> None:
        self.failed_removals += len(failures)
        for path, reason in failures[:_PROBLEMS_LOGGED_MAX]:
            log.error("not_removed", path=path, reason=reason, more=max(0, len(failures) - _PROBLEMS_LOGGED_MAX))


def _give_back(making: asyncio.Future[tuple[Path, int]]) -> None:
    if not making.cancelled() and making.exception() is None:
        directory, lock = making.result()
        os.rmdir(directory)
        os.close(lock)
