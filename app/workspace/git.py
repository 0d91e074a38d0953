"""Git as a child process without the parent's environment, and with bounds on time, output, memory and files."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from app.bounded_child import ChildExceeded, ChildLimits, ChildOutput, run_child

LIMITS = ChildLimits(memory_bytes=1 << 30, file_bytes=256 << 20)
"""The limits of a git that writes: a fetch is one pack, which is one file."""

READING = ChildLimits(memory_bytes=512 << 20, file_bytes=1 << 20, processes=2, cpu_s=30)
"""The limits of a git that reads objects, or searches them by a pattern of a model."""

_CONFIGURATION = Path(__file__).with_name("gitconfig")
_NOT_FOUND = 127


class GitFailed(Exception):
    """Git gave no result: it exceeded a limit, is not installed, or ended with an error that nothing explains."""


def environment(configuration: Path = _CONFIGURATION) -> dict[str, str]:
    """The whole environment of a git."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(configuration),
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "https:http:file",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }


@contextmanager
def _configuration(further: str) -> Generator[tuple[Path, tuple[int, ...]]]:
    """The file of git's configuration, and the descriptors that it needs.

    Further lines hold secrets: they stand in memory, where no argument, environment or directory shows them.
    """
    if not further:
        yield _CONFIGURATION, ()
        return
    if sys.platform != "linux":
        raise GitFailed("credentials of repositories need Linux")
    descriptor = os.memfd_create("gitconfig")
    try:
        os.write(descriptor, f"[include]\n\tpath = {_CONFIGURATION}\n{further}".encode())
        yield Path(f"/dev/fd/{descriptor}"), (descriptor,)
    finally:
        os.close(descriptor)


def is_installed() -> bool:
    return shutil.which("git") is not None


async def git(
    *arguments: str,
    within_s: float,
    limits: ChildLimits = LIMITS,
    bytes_max: int = 1 << 20,
    sent: bytes = b"",
    configuration: str = "",
) -> ChildOutput:
    """Run git; returns its output, cut at `bytes_max`. Raises GitFailed when it exceeds a limit or cannot be run.

    `sent` is its input. `configuration` has lines beyond the packaged ones, which may hold secrets.
    """
    with _configuration(configuration) as (path, descriptors):
        try:
            output = await run_child(
                ("git", *arguments),
                limits=limits,
                within_s=within_s,
                bytes_max=bytes_max,
                sent=sent,
                environment=environment(path),
                descriptors=descriptors,
            )
        except (ChildExceeded, OSError) as failure:
            raise GitFailed(f"git {failure}") from failure
    if output.status == _NOT_FOUND:
        raise GitFailed("git is not installed here")
    return output
