"""Writes the files of a revision into an empty directory. A child of its own, with the standard library alone.

The bytes that are counted are those that are written: blobs, as `git cat-file` streams them, without attributes and
filters. Names of a hostile tree are written one by one below the directory, and nothing else.
"""

import json
import os
import subprocess
import sys
from typing import IO, NamedTuple

REFUSED = 3
"""The exit status when a file cannot be written; standard error has the reason."""


class UnpackingOrder(NamedTuple):
    """The blobs of a bare repository, as pairs of a path and an id, to be written into `directory`."""

    repository: str
    directory: str
    environment: dict[str, str]
    blobs: list[tuple[str, str]]
    bytes_max: int


class Refused(Exception):
    """A file of the revision cannot be written."""


class _Blobs:
    """A running `git cat-file`, which is asked for one blob after the other."""

    def __init__(self, repository: str, environment: dict[str, str]) -> None:
        command = ("git", "--git-dir", repository, "cat-file", "--batch")
        git = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert git.stdin is not None and git.stdout is not None, "they are pipes"
        self._asked, self._answers = git.stdin, git.stdout

    def write(self, id: str, file: IO[bytes], bytes_max: int) -> int:
        """Write a blob into a file; returns its size. Raises Refused for one that is missing or too large."""
        self._asked.write(f"{id}\n".encode())
        self._asked.flush()
        head = self._answers.readline().split()
        if len(head) != 3 or head[1] != b"blob":
            raise Refused("the workspace lacks it")
        size = left = int(head[2])
        if size > bytes_max:
            raise Refused("the workspace is too large")
        while left:
            piece = self._answers.read(min(left, 1 << 16))
            if not piece:
                raise Refused("git ended before its end")
            file.write(piece)
            left -= len(piece)
        self._answers.read(1)
        return size


def _made(directory: int, name: str) -> int:
    if name in ("", ".", ".."):
        raise Refused("its path leads out")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=directory)


def _below(directory: int, name: str) -> int:
    if name in ("", ".", ".."):
        raise Refused("its path leads out")
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        # Another file's directory, or a file.
        pass
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)


def _opened(directory: str, path: str) -> IO[bytes]:
    """A new file below a directory, whose directories are made first."""
    *above, name = path.split("/")
    current = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in above:
            below = _below(current, folder)
            os.close(current)
            current = below
        return os.fdopen(_made(current, name), "wb")
    finally:
        os.close(current)


def write_files(order: UnpackingOrder) -> None:
    """Write the files; raises Refused, which names the path."""
    blobs, left = _Blobs(order.repository, order.environment), order.bytes_max
    for path, id in order.blobs:
        try:
            with _opened(order.directory, path) as file:
                left -= blobs.write(id, file, left)
        except Refused as refused:
            raise Refused(f"{path}: {refused}") from None
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from error


def main() -> None:
    try:
        write_files(UnpackingOrder(**json.load(sys.stdin)))
    except Refused as refused:
        print(refused, file=sys.stderr)
        sys.exit(REFUSED)
