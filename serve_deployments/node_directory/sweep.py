"""The sweep of a node's directory: removes what no process uses. A child of its own, with the standard library alone.

A copy of a workspace is in use while a process holds its lock, the file beside it; the directory of a program, and the
file of a slot, while a process holds their own lock. The kernel releases locks with the process. What is removed is
renamed first. Names that no process of this product makes are left alone.
"""

import fcntl
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from serve_deployments.node_directory import removal

SCRATCH = "deliberation-run-"
REMOVED = "deliberation-removed-"
SLOT = "deliberation-slot-"
_COPY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class CopyBounds:
    """The most copies and bytes that are kept, and the seconds after which an unused copy is removed."""

    copies: int
    bytes: int
    unused_s: float


@dataclass(frozen=True, slots=True)
class _Kept:
    """A copy by its lock, and the time of its last use."""

    used_s: float
    path: Path
    bytes: int

    @property
    def tenant(self) -> str:
        return self.path.name.partition("-")[0]


def has_locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to what was opened: a sweep removes locks too."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def renamed_away(path: Path) -> Path:
    """Give a file or a directory a name under which nothing uses it; returns the new path. Raises OSError."""
    away = path.with_name(f"{REMOVED}{os.urandom(16).hex()}")
    path.rename(away)
    return away


class Sweep:
    """One sweep; `failures` are the paths that could not be removed, with the reasons."""

    def __init__(self, directory: Path, bounds: CopyBounds) -> None:
        self._directory = directory
        self._bounds = bounds
        self.failures: list[tuple[str, str]] = []

    def run(self) -> None:
        names = sorted(os.listdir(self._directory))
        for name in names:
            if name.startswith((SCRATCH, REMOVED)):
                self._remove_unused(self._directory / name)
            elif name.startswith(SLOT):
                self._unlink_unused(self._directory / name)
        locks = {name for name in names if name.endswith(".lock") and _COPY.fullmatch(name.removesuffix(".lock"))}
        for name in names:
            key = name.removesuffix(".new")
            if _COPY.fullmatch(key) and f"{key}.lock" not in locks:
                self._remove_copy(self._directory / f"{key}.lock")
        self._sweep_copies([self._directory / name for name in locks])

    def _sweep_copies(self, locks: list[Path]) -> None:
        kept: list[_Kept] = []
        for path in locks:
            with self._noted(path):
                used_s = path.stat().st_mtime
                if time.time() - used_s <= self._bounds.unused_s or not self._remove_copy(path):
                    kept.append(_Kept(used_s, path, _size(path.with_suffix(""))))
        self._evict(kept, [1] * len(kept), self._bounds.copies)
        kept = [copy for copy in kept if copy.path.exists()]
        self._evict(kept, [copy.bytes for copy in kept], self._bounds.bytes)

    def _evict(self, kept: list[_Kept], weights: list[int], most: int) -> None:
        """Remove copies that nothing reads while they weigh more: each time the oldest of the tenant with the most."""
        of_tenants, left = Counter[str](), dict(zip(kept, weights, strict=True))
        for copy, weight in left.items():
            of_tenants[copy.tenant] += weight
        while of_tenants.total() > most and left:
            oldest = max(left, key=lambda copy: (of_tenants[copy.tenant], -copy.used_s))
            weight = left.pop(oldest)
            if self._remove_copy(oldest.path):
                of_tenants[oldest.tenant] -= weight

    def _remove_copy(self, path: Path) -> bool:
        """Remove a copy by its lock, unless a process reads it or it cannot be removed."""
        with self._noted(path):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if has_locked(lock, fcntl.LOCK_EX) and is_at(lock, path):
                    for part in (path.with_suffix(""), path.with_suffix(".new")):
                        with suppress(FileNotFoundError):
                            self._remove(renamed_away(part))
                    path.unlink()
                    return True
            finally:
                os.close(lock)
        return False

    def _remove_unused(self, path: Path) -> None:
        """Remove the directory of a program, or what was renamed, unless a process holds its lock; files hold none."""
        with self._noted(path):
            if not path.is_dir() or path.is_symlink():
                path.unlink()
                return
            directory = removal.opened(str(path))
            try:
                if has_locked(directory, fcntl.LOCK_EX):
                    self._remove(path if path.name.startswith(REMOVED) else renamed_away(path))
            finally:
                os.close(directory)

    def _unlink_unused(self, path: Path) -> None:
        with self._noted(path):
            slot = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if has_locked(slot, fcntl.LOCK_EX) and is_at(slot, path):
                    path.unlink()
            finally:
                os.close(slot)

    def _remove(self, path: Path) -> None:
        with self._noted(path):
            removal.remove(str(path))

    @contextmanager
    def _noted(self, path: Path) -> Generator[None]:
        """Note a failure, which keeps nothing else from being removed."""
        try:
            yield
        except FileNotFoundError:
            # Another process has removed it.
            return
        except OSError as error:
            self.failures.append((str(path), str(error)))


def _size(copy: Path) -> int:
    sizes, pending = 0, [str(copy)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    sizes += entry.stat(follow_symlinks=False).st_size
    return sizes


def main() -> None:
    """Sweep the directory of standard input; prints a JSON list of what could not be removed, with the reasons."""
    order = json.load(sys.stdin)
    sweep = Sweep(Path(order["directory"]), CopyBounds(**order["bounds"]))
    sweep.run()
    print(json.dumps(sweep.failures))
