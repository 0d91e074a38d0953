"""Git as a child process without the parent's environment, and with bounds on time, output, memory and files."""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

FILE_BYTES_MAX = 256 << 20
"""The largest file that git may write: a fetch is one pack."""

_MEMORY_BYTES_MAX = 2 << 30
_CPU_S_MAX = 120
_ERROR_BYTES_MAX = 2_048
_CONFIGURATION = Path(__file__).with_name("gitconfig")
# `ulimit -f` counts blocks of 512 bytes, `ulimit -v` kilobytes.
_LIMITED = (
    f"ulimit -f {FILE_BYTES_MAX // 512}; ulimit -v {_MEMORY_BYTES_MAX >> 10}; ulimit -t {_CPU_S_MAX}; "
    'ulimit -c 0; exec git "$@"'
)
_NOT_FOUND = 127


class GitFailed(Exception):
    """Git gave no result: it took too long, is not installed, or ended with an error that nothing explains."""


@dataclass(frozen=True, slots=True)
class GitOutput:
    """The exit status, the output up to a bound, and the first lines of errors; `cut`: there was more output."""

    status: int
    data: bytes
    error: str
    cut: bool


def _environment(configuration: Path) -> dict[str, str]:
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
    *arguments: str, within_s: float, bytes_max: int = 1 << 20, given: bytes = b"", configuration: str = ""
) -> GitOutput:
    """Run git; returns its output, cut at `bytes_max`. Raises GitFailed when it takes longer or cannot be run.

    `given` is its input. `configuration` has lines beyond the packaged ones, which may hold secrets.
    """
    with _configuration(configuration) as (path, descriptors):
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _LIMITED, "git", *arguments,
            stdin=PIPE if given else DEVNULL, stdout=PIPE, stderr=PIPE,
            cwd="/", env=_environment(path), pass_fds=descriptors, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None, "they are pipes"
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            errors = group.create_task(_beginning(process.stderr, _ERROR_BYTES_MAX))
            if process.stdin is not None:
                group.create_task(_feed(process.stdin, given))
            data = await _beginning(process.stdout, bytes_max + 1, full=partial(_kill, process))
            status = await process.wait()
    except TimeoutError:
        raise GitFailed(f"git took longer than {within_s:.3g} s") from None
    finally:
        # Its helpers too, which may outlive it.
        _kill(process)
        # `wait` would never return while some output is unread.
        await process.communicate()
    if status == _NOT_FOUND:
        raise GitFailed("git is not installed here")
    error = errors.result().decode("utf-8", "replace").strip()
    return GitOutput(status, data[:bytes_max], error, cut=len(data) > bytes_max)


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    # Git may end before it has read everything; its status says why.
    with suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _beginning(stream: asyncio.StreamReader, bytes_max: int, full: Callable[[], None] = lambda: None) -> bytes:
    """Read to the end, and keep the beginning; `full` is called once that is complete. A full pipe would stop git."""
    data = bytearray()
    while piece := await stream.read(65_536):
        data += piece[: bytes_max - len(data)]
        if len(data) == bytes_max:
            full()
    return bytes(data)
