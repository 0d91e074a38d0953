"""The copies of workspaces on a node: bare repositories in one directory, which all processes of a user share.

A copy holds one source of one tenant. A process holds a lock of a copy while it reads; the kernel releases it with the
process.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from app.workspace.git import GitFailed
from serve_deployments.node_directory.directory import NodeDirectory
from serve_deployments.node_directory.slots import AT_ONCE, NodeSlots
from serve_deployments.node_directory.sweep import CopyBounds, has_locked, is_at
from serve_deployments.tools.toolbox import ToolFailure
from serve_deployments.workspace.sources import Source

COPIES_MAX = 16
COPIES_BYTES_MAX = 2 << 30
UNUSED_S_MAX = 900.0
SWEEP_S = 30.0
_LOCK_CHECK_S = 0.05

log = structlog.get_logger(__name__)


class Copies:
    """The copies in a node's directory."""

    def __init__(self, node: NodeDirectory) -> None:
        self._node = node
        self._directory = node.path
        # One that a use waits for no longer goes on: the next use finds the copy.
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._sweep_due = asyncio.Event()
        # Of gits that read for tools: each may take the memory of `app.workspace.git.READING`.
        self.reads = NodeSlots(node, "reads", AT_ONCE)

    @asynccontextmanager
    async def opened(self, source: Source, within_s: float) -> AsyncGenerator[Path]:
        """The directory of a copy, which stays while it is open; it is made first where it is missing.

        Raises ToolFailure: `refused` for a repository that this process does not allow, `server_away` without a copy,
        `timeout` when it is not there within `within_s` seconds.
        """
        key = _key(source)
        try:
            async with asyncio.timeout(within_s):
                lock = await self._copy(key, source)
        except TimeoutError:
            raise ToolFailure("timeout", f"the workspace was not there within {within_s:.3g} s") from None
        except OSError as error:
            raise ToolFailure("server_away", f"no directory for the workspace: {error.strerror or error}") from error
        try:
            yield self._directory / key
        finally:
            os.close(lock)

    async def _copy(self, key: str, source: Source) -> int:
        """A shared lock of the copy, as the descriptor that holds it."""
        while True:
            lock = await self._locked(key, fcntl.LOCK_SH)
            if (self._directory / key).is_dir():
                os.utime(lock)
                return lock
            os.close(lock)
            fetch = self._fetches.get(key)
            if fetch is None:
                # Not in a task group: it outlives the use that waits for it. Held here, and awaited by the uses.
                fetch = self._fetches[key] = asyncio.get_running_loop().create_task(self._fetch(key, source))
                fetch.add_done_callback(lambda ended: self._ended(key, ended))
            await asyncio.shield(fetch)

    def _ended(self, key: str, fetch: asyncio.Task[None]) -> None:
        del self._fetches[key]
        # Read, as no use may wait for it any more; asyncio reports an error that nothing reads.
        if not fetch.cancelled():
            fetch.exception()

    async def _locked(self, key: str, kind: int) -> int:
        if not self._node.is_own():
            raise ToolFailure("server_away", "the directory of workspaces belongs to another user")
        path = self._directory / f"{key}.lock"
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if has_locked(lock, kind) and is_at(lock, path):
                return lock
            os.close(lock)
            await asyncio.sleep(_LOCK_CHECK_S)

    async def _fetch(self, key: str, source: Source) -> None:
        lock = await self._locked(key, fcntl.LOCK_EX)
        copy, unfinished = self._directory / key, self._directory / f"{key}.new"
        try:
            # Another process may have fetched it meanwhile, or died while it did.
            if copy.is_dir():
                return
            await self._node.remove(unfinished)
            await source.write(unfinished)
            unfinished.rename(copy)
            # A sweep must not take the copy for one as old as a lock that a dead process left.
            os.utime(lock)
        except GitFailed as failure:
            log.warning("workspace_not_fetched", source=source.name, error=str(failure))
            raise ToolFailure("server_away", f"the workspace could not be fetched: {failure}") from failure
        finally:
            await self._node.remove(unfinished)
            os.close(lock)
            self._sweep_due.set()

    async def keep(self) -> None:
        """Sweep every `SWEEP_S` and after each fetch, until cancelled; no failure of a sweep ends it."""
        while True:
            self._sweep_due.clear()
            await self.sweep()
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_S):
                    await self._sweep_due.wait()

    async def sweep(self) -> None:
        """Remove copies that no process reads: those unused for `UNUSED_S_MAX`, and the oldest above the bounds."""
        await self._node.sweep(CopyBounds(COPIES_MAX, COPIES_BYTES_MAX, UNUSED_S_MAX))


def _key(source: Source) -> str:
    """The name of a copy; the part before the hyphen is the tenant's."""
    tenant, name = (hashlib.sha256(part.encode()).hexdigest() for part in (source.tenant, source.name))
    return f"{tenant[:32]}-{name[:40]}"
