"""Operating-system processes: each in a session of its own, ended with all that it started, found by a mark.

Every child carries DELIBERATE_STACK (this run of the stack) and DELIBERATE_CHILD (its name) in its environment, and
what it starts inherits both. On Linux leftovers are found by reading /proc/*/environ, whatever process group or session
they moved to and whoever became their parent: Ray puts each worker in a process group of its own, and workers outlive
their raylet. SPT_NOENV must be set for programs that rename themselves (`ray::…`), or the new title overwrites the
environment that is read here. Elsewhere there is no such place to look: only the process group of each child is ended,
and a worker that outlived its raylet is left to notice that by itself.
"""

import asyncio
import ctypes
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

STACK_MARK = "DELIBERATE_STACK"
CHILD_MARK = "DELIBERATE_CHILD"
SWEEP_WITHIN_S = 5.0
NICENESS = 5
_POLL_S = 0.02
_AUTOGROUP_WAIT_S = 0.1
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_PORTS = range(20_000, 32_000)  # below the range from which Linux takes outgoing connections' own ports


@dataclass(frozen=True, slots=True)
class TaggedProcess:
    """A living process that carries a stack's mark: whose child it descends from, and its command line as it is now."""

    pid: int
    child: str
    command: str


def marked(mark: str, child: str | None = None) -> list[TaggedProcess]:
    """Living processes that carry `mark` (and descend from `child`, if given), but this one; none where no /proc is."""
    found: list[TaggedProcess] = []
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at, and those of other users cannot be read: neither is ours to end.
        with suppress(OSError):
            environment = (entry / "environ").read_bytes().split(b"\0")
            if f"{STACK_MARK}={mark}".encode() not in environment or int(entry.name) == os.getpid():
                continue
            prefix = f"{CHILD_MARK}=".encode()
            whose = next((line.removeprefix(prefix).decode() for line in environment if line.startswith(prefix)), "")
            if child is None or whose == child:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(TaggedProcess(int(entry.name), whose, command))
    return found


def signal_marked(mark: str, number: signal.Signals, child: str | None = None) -> list[TaggedProcess]:
    """Send a signal to every process that carries the mark; returns those that were found."""
    found = marked(mark, child)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    return found


async def gone(mark: str, child: str | None = None, *, within_s: float, number: signal.Signals | None) -> bool:
    """Wait until nothing carries the mark, sending `number` to what does, again and again; False when time is up."""
    deadline = time.monotonic() + within_s
    while signal_marked(mark, number, child) if number else marked(mark, child):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


async def sweep(mark: str, child: str | None = None, *, grace_s: float = 0.0) -> list[TaggedProcess]:
    """End all that carries the mark: SIGTERM where a grace is given, SIGKILL after it. Returns what would not go."""
    if grace_s:
        signal_marked(mark, signal.SIGTERM, child)
        await gone(mark, child, within_s=grace_s, number=None)
    await gone(mark, child, within_s=SWEEP_WITHIN_S, number=signal.SIGKILL)
    return marked(mark, child)


def kill_marked(mark: str) -> list[TaggedProcess]:
    """What `sweep` does without a grace, for when there is no time to await. Returns what would not go."""
    deadline = time.monotonic() + SWEEP_WITHIN_S
    while (left := signal_marked(mark, signal.SIGKILL)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def _in_child(niceness: int) -> None:
    if sys.platform == "linux":
        # A supervisor that is itself killed must not leave a running stack behind; elsewhere it does.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.nice(niceness)


async def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, yields: bool
) -> asyncio.subprocess.Process:
    """Start a command in a session of its own, its output appended to `log`; raises OSError when it cannot be run.

    If it `yields`, others have CPU before it and all that it will start.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_in_child, NICENESS if yields else 0),
        )
    finally:
        os.close(descriptor)


async def lower_session(pid: int) -> None:
    """Let other sessions have CPU before that of a child: Linux may share it among sessions first (autogroup).

    Each has a niceness of its own, which anybody may raise, but only so often. Where it cannot be raised, there are no
    such groups, or the child runs at common priority and serves as well.
    """
    with suppress(OSError):
        while not _session_lowered(pid):  # noqa: ASYNC110 -- the kernel tells nobody when it may be asked again
            await asyncio.sleep(_AUTOGROUP_WAIT_S)


def _session_lowered(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))
    except BlockingIOError:
        return False
    return True


def kill_group(pid: int) -> None:
    """SIGKILL the process group that `pid` leads, if any of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def end(process: asyncio.subprocess.Process, *, grace_s: float) -> bool:
    """SIGTERM to the process, after `grace_s` SIGKILL, then SIGKILL to what is left of its group.

    Returns whether it went within its grace. Only the leader is asked: what it started is its own to end in order.
    """
    willing = True
    if process.returncode is None:
        # Not `process.terminate`, which may reap the process itself and leave its watcher without a status.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            willing = False
    kill_group(process.pid)
    await process.wait()
    return willing


@contextmanager
def only_one(path: Path, refuse: Callable[[str], Exception]) -> Generator[None]:
    """Hold an exclusive lock on a file, which then names this process; raises `refuse(holder's pid)` if it is held.

    The lock is the kernel's: it goes with the process that holds it, however that ends, and children do not inherit it.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise refuse(file.read().strip() or "unknown") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_private(path: Path, text: str) -> None:
    """Replace a file's content at once, readable by its owner only."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    written.replace(path)


def log_tail(path: Path, *, from_byte: int = 0, lines: int = 12) -> tuple[str, ...]:
    """The last lines of a log, none older than `from_byte`; empty when there is no such file."""
    return tuple(output_since(path, from_byte).splitlines()[-lines:])


def output_since(path: Path, from_byte: int) -> str:
    """What was written to a log after its first `from_byte` bytes; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(from_byte)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


class PortAllocator:
    """Ports that are free on one host and differ from each other.

    A port may be lost between the look and the use, so whoever uses it must still cope with a refusal.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._given: set[int] = set()

    def take(self, wanted: int = 0) -> int:
        """The wanted port if it is free, else (or for 0) some free one outside the range of outgoing connections."""
        if wanted and self._free(wanted):
            return self._give(wanted)
        while True:
            port = secrets.choice(_PORTS)
            if self._free(port):
                return self._give(port)

    def _give(self, port: int) -> int:
        self._given.add(port)
        return port

    def _free(self, port: int) -> bool:
        if port in self._given:
            return False
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as probe:
            # Without it, connections of an earlier run that are not yet forgotten would count as taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
            return True
