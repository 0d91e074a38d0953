"""The copies of workspaces on a node: bare repositories below one directory, which all processes of a user share.

A copy holds one source of one tenant. A process holds a lock of a copy while it reads; the kernel releases it with the
process. Beside the copies stand the directories that programs run in.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.workspace.git import GitFailed
from serve_deployments.tools.toolbox import ToolFailure
from serve_deployments.workspace.sources import Source

COPIES_MAX = 16
COPIES_BYTES_MAX = 2 << 30
UNUSED_S_MAX = 900.0
SWEEP_S = 60.0
_LOCK_CHECK_S = 0.05
_SCRATCH = "run-"

log = structlog.get_logger(__name__)


class Copies:
    """The copies below `directory`, by default a folder of this user for temporary files."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory or Path(tempfile.gettempdir(), f"deliberation-workspaces-{os.getuid()}")
        # One that a use waits for no longer goes on: the next use finds the copy.
        self._fetches: dict[str, asyncio.Task[None]] = {}

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
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (found := self._directory.stat()).st_uid != os.getuid() or found.st_mode & 0o022:
            raise ToolFailure("server_away", "the directory of workspaces belongs to another user")
        path = self._directory / f"{key}.lock"
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if _lock(lock, kind) and _is_at(lock, path):
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
            await asyncio.to_thread(shutil.rmtree, unfinished, True)
            await source.write(unfinished)
            unfinished.rename(copy)
            # A sweep must not take the copy for one as old as a lock that a dead process left.
            os.utime(lock)
        except GitFailed as failure:
            log.warning("workspace_not_fetched", source=source.name, error=str(failure))
            raise ToolFailure("server_away", f"the workspace could not be fetched: {failure}") from failure
        finally:
            await asyncio.to_thread(shutil.rmtree, unfinished, True)
            os.close(lock)
        await asyncio.to_thread(self.sweep)

    @asynccontextmanager
    async def scratch(self) -> AsyncGenerator[Path]:
        """An empty directory, which is removed after its use; a sweep removes it when this process dies before."""
        directory = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=_SCRATCH, dir=self._directory))
        try:
            yield directory
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, True)

    async def keep(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.sweep)
            except OSError as error:
                log.warning("workspaces_not_swept", error=str(error))
            await asyncio.sleep(SWEEP_S)

    def sweep(self) -> None:
        """Remove copies that no process reads: those unused for `UNUSED_S_MAX`, and the oldest above the bounds."""
        for path in self._directory.glob(f"{_SCRATCH}*"):
            with suppress(FileNotFoundError):
                if time.time() - path.lstat().st_mtime > UNUSED_S_MAX:
                    shutil.rmtree(path, ignore_errors=True)
        kept = list[_Kept]()
        for path in self._directory.glob("*.lock"):
            with suppress(FileNotFoundError):
                used_s = path.stat().st_mtime
                if time.time() - used_s <= UNUSED_S_MAX or not _removed(path):
                    kept.append(_Kept(used_s, path, _size(path.with_suffix(""))))
        _evict(kept, [1] * len(kept), COPIES_MAX)
        kept = [each for each in kept if each.path.exists()]
        _evict(kept, [each.bytes for each in kept], COPIES_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A copy by its lock, and the time of its last use."""

    used_s: float
    path: Path
    bytes: int

    @property
    def tenant(self) -> str:
        return self.path.name.partition("-")[0]


def _evict(kept: list[_Kept], weights: list[int], most: int) -> None:
    """Remove copies that nothing reads while they weigh more: each time the oldest of the tenant with the most."""
    of_tenants, left = Counter[str](), dict(zip(kept, weights, strict=True))
    for each, weight in left.items():
        of_tenants[each.tenant] += weight
    while of_tenants.total() > most and left:
        each = max(left, key=lambda copy: (of_tenants[copy.tenant], -copy.used_s))
        weight = left.pop(each)
        if _removed(each.path):
            of_tenants[each.tenant] -= weight


def _key(source: Source) -> str:
    """The name of a copy; the part before the hyphen is the tenant's."""
    tenant, name = (hashlib.sha256(each.encode()).hexdigest() for each in (source.tenant, source.name))
    return f"{tenant[:32]}-{name[:40]}"


def _lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(lock: int, path: Path) -> bool:
    """Whether the file is still there: a sweep removes locks too."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _removed(path: Path) -> bool:
    with suppress(FileNotFoundError):
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _lock(lock, fcntl.LOCK_EX) and _is_at(lock, path):
                for each in (path.with_suffix(""), path.with_suffix(".new")):
                    shutil.rmtree(each, ignore_errors=True)
                path.unlink()
                return True
        finally:
            os.close(lock)
    return False


def _size(copy: Path) -> int:
    sizes = 0
    for folder, _, files in os.walk(copy):
        with suppress(FileNotFoundError):
            sizes += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
    return sizes
