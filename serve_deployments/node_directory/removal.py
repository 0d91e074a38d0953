"""Removes trees of any shape: deep ones, unreadable ones, and some that change meanwhile.

One descriptor moves through the tree, so that no depth costs descriptors, stack or long paths. No link is followed. The
way up is taken only where it leads to the directory that the way down came from. Wardens import this module, which
needs the standard library alone.
"""

import errno
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS_MAX = 3
"""A tree that changes meanwhile is walked so often."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_MAY_ALL = 0o700


def remove(path: str) -> None:
    """Remove a file, a link, or a directory with everything below it. Raises OSError as `empty` does."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            empty(path)
            os.rmdir(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return


def empty(directory: str) -> None:
    """Remove everything below a directory that can be removed. Raises the first OSError of the last round."""
    failures = _round(directory)
    for _ in range(1, ROUNDS_MAX):
        failures = failures and _round(directory)
    if failures:
        raise failures[0]


def _round(directory: str) -> list[OSError]:
    walk = _Walk(directory)
    try:
        walk.remove_all()
    finally:
        os.close(walk.current)
    return walk.failures


def opened(name: str, above: int | None = None) -> int:
    """A descriptor of a directory that its owner may read and change from now on; raises OSError for a link."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    except PermissionError:
        # The path of a descriptor leads to what was opened, also where the name is a link by now.
        node = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{node}", _OWNER_MAY_ALL)
        finally:
            os.close(node)
        fd = os.open(name, _DIRECTORY, dir_fd=above)
    if os.fstat(fd).st_mode & _OWNER_MAY_ALL != _OWNER_MAY_ALL:
        os.fchmod(fd, _OWNER_MAY_ALL)
    return fd


@dataclass(slots=True)
class _Level:
    """A directory on the way down: its name, what identifies it, and the directories in it that are still there."""

    name: str
    identity: tuple[int, int]
    directories: list[str]


class _Walk:
    """Removes what is below a directory, from the deepest on; `current` is the descriptor of the place."""

    def __init__(self, directory: str) -> None:
        self.current = opened(directory)
        self.failures: list[OSError] = []
        self._levels = [self._level(".")]

    def remove_all(self) -> None:
        while True:
            if self._levels[-1].directories:
                self._descend(self._levels[-1].directories.pop())
            elif len(self._levels) == 1:
                return
            elif not self._ascend():
                return

    def _level(self, name: str) -> _Level:
        """The current directory, once its files are removed."""
        directories: list[str] = []
        with os.scandir(self.current) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry, is_directory in names:
            if is_directory:
                directories.append(entry)
            else:
                self._try(os.unlink, entry)
        return _Level(name, _identity(self.current), directories)

    def _descend(self, name: str) -> None:
        try:
            below = opened(name, self.current)
        except FileNotFoundError:
            return
        except OSError as error:
            self.failures.append(error)
            return
        os.close(self.current)
        self.current = below
        self._levels.append(self._level(name))

    def _ascend(self) -> bool:
        """Go up, and remove the directory that was left; False where it was moved meanwhile."""
        left = self._levels.pop()
        above = os.open("..", _DIRECTORY, dir_fd=self.current)
        os.close(self.current)
        self.current = above
        if _identity(above) != self._levels[-1].identity:
            self.failures.append(OSError(errno.ESTALE, "it was moved during its removal", left.name))
            return False
        self._try(os.rmdir, left.name)
        return True

    def _try(self, remove: Callable[..., None], name: str) -> None:
        try:
            remove(name, dir_fd=self.current)
        except FileNotFoundError:
            return
        except OSError as error:
            self.failures.append(error)


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def main() -> None:
    """Remove the paths of standard input, a JSON list; prints a JSON list of those that were not, with the reasons."""
    failures: list[tuple[str, str]] = []
    for path in json.load(sys.stdin):
        try:
            remove(path)
        except OSError as error:
            failures.append((path, str(error)))
    print(json.dumps(failures))
