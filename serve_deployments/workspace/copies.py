"""The copies of repositories on a node: bare repositories below one directory, which all processes of a user share.

A copy holds one commit, with `COMMITS` of its history, of one tenant. A process holds a lock of a copy while it reads;
the kernel releases it with the process. Beside the copies stand the directories that programs run in.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from app.deliberation.specification import Workspace
from app.workspace.git import GitFailed, git
from app.workspace.repositories import AllowedRepositories, RepositoryRefused
from serve_deployments.tools.toolbox import ToolFailure

COMMITS = 50
COPIES_MAX = 16
COPIES_BYTES_MAX = 2 << 30
UNUSED_S_MAX = 900.0
FETCHED_WITHIN_S = 120.0
FETCHES_AT_ONCE = 4
SWEEP_S = 60.0
_LOCK_CHECK_S = 0.05
_SCRATCH = "run-"

log = structlog.get_logger(__name__)


class Copies:
    """The copies below `directory`, by default a folder of this user for temporary files."""

    def __init__(self, directory: Path | None, allowed: AllowedRepositories) -> None:
        self._directory = directory or Path(tempfile.gettempdir(), f"deliberation-workspaces-{os.getuid()}")
        self._allowed = allowed
        # One that a use waits for no longer goes on: the next use finds the copy.
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(FETCHES_AT_ONCE)

    @asynccontextmanager
    async def opened(self, workspace: Workspace, tenant: str, within_s: float) -> AsyncGenerator[Path]:
        """The directory of a copy, which stays while it is open; it is fetched first where it is missing.

        Raises ToolFailure: `refused` for a repository that WORKSPACES of this process lacks, `server_away` without a
        copy, `timeout` when it is not there within `within_s` seconds.
        """
        key = _key(workspace, tenant)
        try:
            async with asyncio.timeout(within_s):
                lock = await self._copy(key, workspace)
        except TimeoutError:
            raise ToolFailure("timeout", f"the repository was not there within {within_s:.3g} s") from None
        try:
            yield self._directory / key
        finally:
            os.close(lock)

    async def _copy(self, key: str, workspace: Workspace) -> int:
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
                fetch = self._fetches[key] = asyncio.get_running_loop().create_task(self._fetch(key, workspace))
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

    async def _fetch(self, key: str, workspace: Workspace) -> None:
        try:
            location = await asyncio.to_thread(self._allowed.location, workspace.git)
        except RepositoryRefused as refused:
            raise ToolFailure("refused", refused.detail) from refused
        lock = await self._locked(key, fcntl.LOCK_EX)
        copy, unfinished = self._directory / key, self._directory / f"{key}.new"
        try:
            # Another process may have fetched it meanwhile, or died while it did.
            if copy.is_dir():
                return
            await asyncio.to_thread(shutil.rmtree, unfinished, True)
            async with self._slots:
                await _fetched(location, workspace.commit, unfinished)
            unfinished.rename(copy)
            # A sweep must not take the copy for one as old as a lock that a dead process left.
            os.utime(lock)
        except GitFailed as failure:
            log.warning("workspace_not_fetched", repository=workspace.git, error=str(failure))
            raise ToolFailure("server_away", f"the repository could not be fetched: {failure}") from failure
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
        copies, bytes_kept = 0, 0
        locks = list[tuple[float, Path]]()
        for path in self._directory.glob("*.lock"):
            with suppress(FileNotFoundError):
                locks.append((path.stat().st_mtime, path))
        for used_s, path in sorted(locks, reverse=True):
            copy = path.with_suffix("")
            size = _size(copy)
            copies, bytes_kept = copies + 1, bytes_kept + size
            if copies > COPIES_MAX or bytes_kept > COPIES_BYTES_MAX or time.time() - used_s > UNUSED_S_MAX:
                if _removed(path, copy):
                    copies, bytes_kept = copies - 1, bytes_kept - size


def _key(workspace: Workspace, tenant: str) -> str:
    named = "\0".join((tenant, workspace.git, workspace.commit))
    return hashlib.sha256(named.encode()).hexdigest()[:40]


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


def _removed(path: Path, copy: Path) -> bool:
    with suppress(FileNotFoundError):
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _lock(lock, fcntl.LOCK_EX) and _is_at(lock, path):
                for each in (copy, path.with_suffix(".new")):
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


async def _fetched(location: str, commit: str, copy: Path) -> None:
    """Fetch a commit with its history into a new bare repository; raises GitFailed."""
    begun = time.monotonic()
    for arguments in (
        ("init", "--quiet", "--bare", "--template=", "--", str(copy)),
        ("--git-dir", str(copy), "fetch", "--quiet", "--no-tags", f"--depth={COMMITS}", "--", location, commit),
        ("--git-dir", str(copy), "rev-parse", "--quiet", "--verify", f"{commit}^{{tree}}"),
    ):
        found = await git(*arguments, within_s=FETCHED_WITHIN_S - (time.monotonic() - begun))
        if found.status != 0:
            raise GitFailed(found.error.splitlines()[-1] if found.error else f"git ended with {found.status}")
