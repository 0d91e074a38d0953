"""Operating-system processes: each in its own session, ended with all its descendants, found by a mark.

Every child has DELIBERATE_STACK (the mark of this run of the stack) and DELIBERATE_CHILD (its name) in its environment,
and its descendants inherit both. On Linux, /proc/*/environ shows the descendants, because Ray puts each worker in its
own process group, and workers outlive their raylet. Programs that rename themselves (`ray::…`) need SPT_NOENV, or the
new title overwrites the environment. Other systems have no /proc: only each child's process group is ended there.
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
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.cli.exits import CommandError, Exit

STACK_MARK = "DELIBERATE_STACK"
CHILD_MARK = "DELIBERATE_CHILD"
SWEEP_WITHIN_S = 5.0
NICENESS = 5
_POLL_S = 0.02
_AUTOGROUP_WAIT_S = 0.1
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_PORT_MAX = 65_535
_PORTS_TRIED = 100
_PORTS = range(20_000, 32_000)  # below Linux's range for the local ports of outgoing connections


@dataclass(frozen=True, slots=True)
class TaggedProcess:
    """A running process with a stack's mark: the child it descends from, and its current command line."""

    pid: int
    child: str
    command: str


def marked(mark: str, child: str | None = None) -> list[TaggedProcess]:
    """Running processes with `mark` (of `child`, if given) except this one; empty on systems without /proc."""
    found: list[TaggedProcess] = []
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end while it is read, and other users' processes are unreadable: neither belongs to the stack.
        with suppress(OSError):
            environment = (entry / "environ").read_bytes().split(b"\0")
            if f"{STACK_MARK}={mark}".encode() not in environment or int(entry.name) == os.getpid():
                continue
            prefix = f"{CHILD_MARK}=".encode()
            name = next((line.removeprefix(prefix).decode() for line in environment if line.startswith(prefix)), "")
            if child is None or name == child:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found.append(TaggedProcess(int(entry.name), name, command))
    return found


def signal_marked(mark: str, number: signal.Signals, child: str | None = None) -> list[TaggedProcess]:
    """Send a signal to every process with the mark; returns these processes."""
    found = marked(mark, child)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    return found


async def sweep(mark: str, child: str | None = None, *, grace_s: float = 0.0) -> list[TaggedProcess]:
    """End all processes with the mark: SIGTERM if there is a grace, then SIGKILL. Returns those that remain."""
    left = signal_marked(mark, signal.SIGTERM, child) if grace_s else marked(mark, child)
    term_until_s = time.monotonic() + grace_s
    while left and time.monotonic() < term_until_s + SWEEP_WITHIN_S:
        in_grace = time.monotonic() < term_until_s
        left = marked(mark, child) if in_grace else signal_marked(mark, signal.SIGKILL, child)
        await asyncio.sleep(_POLL_S)
    return left


def kill_marked(mark: str) -> list[TaggedProcess]:
    """`sweep` without a grace and without awaiting. Returns the processes that remain."""
    deadline = time.monotonic() + SWEEP_WITHIN_S
    while (left := signal_marked(mark, signal.SIGKILL)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def _in_child(niceness: int) -> None:
    if sys.platform == "linux":
        # A killed supervisor must not leave a running stack behind; other systems cannot prevent that.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.nice(niceness)


async def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, niceness: int
) -> asyncio.subprocess.Process:
    """Start a command in its own session, its output appended to `log`; raises OSError when it cannot be run.

    With a niceness it and its descendants get CPU after other processes.
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
            preexec_fn=partial(_in_child, niceness),
        )
    finally:
        os.close(descriptor)


async def lower_session(pid: int, niceness: int) -> None:
    """Lower the CPU priority of a child's session, since Linux may share CPU among sessions first (autogroup).

    A session's niceness may be raised only every so often, hence the retries. Without autogroups, or where the niceness
    cannot be raised, the child runs at normal priority.
    """
    with suppress(OSError):
        while True:
            try:
                Path(f"/proc/{pid}/autogroup").write_text(str(niceness))  # noqa: ASYNC240 -- /proc
                return
            except BlockingIOError:
                await asyncio.sleep(_AUTOGROUP_WAIT_S)


def kill_group(pid: int) -> None:
    """SIGKILL the process group that `pid` leads, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def end(process: asyncio.subprocess.Process, *, grace_s: float) -> bool:
    """SIGTERM to the process, after `grace_s` SIGKILL, then SIGKILL to the rest of its group.

    Returns whether it exited within its grace. Only the leader gets SIGTERM: it ends its own descendants in order.
    """
    in_time = True
    if process.returncode is None:
        # Not `process.terminate`: it may reap the process and leave its watcher without a status.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            in_time = False
    kill_group(process.pid)
    await process.wait()
    return in_time


@contextmanager
def exclusive(data_dir: Path) -> Generator[None]:
    """Hold the lock of a data directory, with this process's id in it; raises CommandError if another one holds it.

    The kernel releases the lock when the process ends for any reason; children do not inherit it.
    """
    with (data_dir / "lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            detail = f"{data_dir} is in use by process {file.read().strip() or 'unknown'}"
            remedy = "stop that one, or choose another --data-dir"
            raise CommandError(Exit.FAILED, "data_dir_in_use", detail, remedy=remedy) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_private(path: Path, text: str) -> None:
    """Replace a file's content atomically, readable by its owner only."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    written.replace(path)


def log_tail(path: Path, *, from_byte: int = 0, lines: int = 12) -> tuple[str, ...]:
    """The last lines of a log, none older than `from_byte`; empty when there is no such file."""
    return tuple(output_since(path, from_byte).splitlines()[-lines:])


def output_since(path: Path, from_byte: int) -> str:
    """The content of a log after its first `from_byte` bytes; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(from_byte)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


class PortAllocator:
    """Distinct free ports of one host, reserved against other stacks until this process ends.

    Another program may take a port before its use, so the user must still handle a failed bind.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._taken: set[int] = set()

    def take(self, wanted: int = 0) -> int:
        """The wanted port, or the next free one; for 0, a free one outside the range of outgoing connections."""
        following = range(wanted, min(wanted + _PORTS_TRIED, _PORT_MAX + 1)) if wanted else ()
        port = next(filter(self._reserved, following), None)
        while port is None:
            drawn = secrets.choice(_PORTS)
            port = drawn if self._reserved(drawn) else None
        self._taken.add(port)
        return port

    def _reserved(self, port: int) -> bool:
        """Reserve a free port; False if it is taken, or reserved by a stack that has not bound it yet."""
        if not self._free(port):
            return False
        if sys.platform == "linux":
            # The kernel frees an abstract name with its process. Like ports, names belong to the network namespace.
            with socket.socket(socket.AF_UNIX) as reservation:
                try:
                    reservation.bind(f"\0deliberate-port-{port}")
                except OSError:
                    return False
                reservation.detach()
        return True

    def _free(self, port: int) -> bool:
        if port in self._taken:
            return False
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as probe:
            # Without it, a port with connections of an earlier run in TIME_WAIT would count as taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
            return True
