"""A bounded child: a command with limits of memory, processes, files, output and time, which is killed whole.

Such children alone read and remove what a client, a repository, a model or a tool server sends to be evaluated.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

WATCH_S = 0.1
"""The interval at which the memory and the processes of a child are summed up."""

NICENESS = 5
"""How much nicer than its parent a child is, which yields CPU time to the replica or gateway that started it."""

_ERROR_BYTES_MAX = 2_048
_AUTOGROUP = "/proc/{}/autogroup"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PACKAGES = str(Path(__file__).parents[1])
# `ulimit -f` counts blocks of 512 bytes, `ulimit -v` kilobytes.
_LIMITED = 'ulimit -f {blocks}; ulimit -v {kilobytes}; ulimit -t {cpu_s}; ulimit -c 0; exec "$@"'


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The limits of a child.

    `memory_bytes` bounds the address space of each of its processes, and the resident memory of all together.
    `processes` bounds their number, `file_bytes` each file that they write, `cpu_s` the processor time of each.
    """

    memory_bytes: int
    file_bytes: int
    processes: int = 16
    cpu_s: int = 120


@dataclass(frozen=True, slots=True)
class ChildOutput:
    """The exit status, the output up to a bound, and the first lines of errors; `cut`: there was more output."""

    status: int
    data: bytes
    error: str
    cut: bool


class ChildExceeded(Exception):
    """A child was killed at a limit: its time, or the memory or the processes of all its processes together."""


def module_command(module: str, *, packages: bool = False) -> tuple[str, ...]:
    """The command that runs `main()` of a module of this project in a fresh interpreter, isolated from the environment.

    With `packages` it can import installed packages, which takes longer to start.
    """
    boot = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from {module} import main; sys.path.pop(0); main()"
    return (sys.executable, "-I", *(() if packages else ("-S",)), "-X", "utf8", "-c", boot)


@dataclass(slots=True)
class _Child:
    process: Process
    exceeded: str = field(default="")

    def kill(self, exceeded: str = "") -> None:
        self.exceeded = self.exceeded or exceeded
        with suppress(ProcessLookupError):
            # Its helpers too, which may outlive it.
            os.killpg(self.process.pid, signal.SIGKILL)


async def run_child(
    command: Sequence[str],
    *,
    limits: ChildLimits,
    within_s: float,
    bytes_max: int = 1 << 20,
    sent: bytes = b"",
    stays_open: bool = False,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> ChildOutput:
    """Run a command in `/`; returns its output, cut at `bytes_max`, after which it is killed.

    `sent` is its input, which `stays_open` leaves open until the end. Without `environment` it has none. Raises
    ChildExceeded; OSError where no process can be started.
    """
    limited = _LIMITED.format(
        blocks=limits.file_bytes // 512, kilobytes=limits.memory_bytes >> 10, cpu_s=max(1, limits.cpu_s)
    )
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", limited, "child", *command,
        stdin=PIPE if sent else DEVNULL, stdout=PIPE, stderr=PIPE,
        cwd="/", env=environment or {}, pass_fds=descriptors, start_new_session=True,
    )  # fmt: skip
    yield_cpu_time(process.pid)
    child = _Child(process)
    assert process.stdout is not None and process.stderr is not None, "they are pipes"
    watch = asyncio.get_running_loop().create_task(_watch(child, limits))
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            errors = group.create_task(_beginning(process.stderr, _ERROR_BYTES_MAX))
            if process.stdin is not None:
                group.create_task(_feed(process.stdin, sent, stays_open))
            data = await _beginning(process.stdout, bytes_max + 1, full=child.kill)
            status = await process.wait()
    except TimeoutError:
        raise ChildExceeded(f"took longer than {within_s:.3g} s") from None
    finally:
        watch.cancel()
        child.kill()
        await reap(process)
    if child.exceeded:
        raise ChildExceeded(child.exceeded)
    error = errors.result().decode("utf-8", "replace").strip()
    return ChildOutput(status, data[:bytes_max], error, cut=len(data) > bytes_max)


async def reap(process: Process) -> None:
    """Wait for the end of a killed process, and drop the rest of its output.

    `Process.wait` returns no sooner than its pipes are closed, which a process that the killed one left may keep open.
    """
    process._transport.close()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue] -- asyncio closes pipes no other way
    await process.wait()


def yield_cpu_time(pid: int) -> None:
    """Lower the CPU share of a child that leads a session of its own, below the share of this process."""
    # Gone, or a system without priorities.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    # Outside control groups, Linux shares CPU among sessions first, unless it was started without this. It refuses an
    # unprivileged user's second change within 0.1 s.
    with suppress(OSError):
        _, _, own = Path(_AUTOGROUP.format("self")).read_text().rpartition(" ")
        if own:
            Path(_AUTOGROUP.format(pid)).write_text(str(min(int(own) + NICENESS, 19)))


async def _watch(child: _Child, limits: ChildLimits) -> None:
    """Kill the child once all its processes together exceed a limit that the kernel keeps for each of them alone."""
    while True:
        await asyncio.sleep(WATCH_S)
        resident = [_resident_bytes(pid) for pid in _processes(child.process.pid)]
        if len(resident) > limits.processes:
            child.kill(f"started more than {limits.processes} processes")
        elif sum(resident) > limits.memory_bytes:
            child.kill(f"took more than {limits.memory_bytes >> 20} MiB of memory")


def _processes(pid: int) -> Iterator[int]:
    """A process and those that it started, as long as they are its children."""
    pending = [pid]
    while pending:
        pid = pending.pop()
        yield pid
        with suppress(OSError):
            pending += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _resident_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


async def _feed(stream: asyncio.StreamWriter, data: bytes, stays_open: bool) -> None:
    # A child may end before it has read everything; its status says why.
    with suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    if not stays_open:
        stream.close()


async def _beginning(stream: asyncio.StreamReader, bytes_max: int, full: Callable[[], None] = lambda: None) -> bytes:
    """Read to the end, and keep the beginning; `full` is called once it is complete. A full pipe would stop a child."""
    data = bytearray()
    while piece := await stream.read(65_536):
        data += piece[: bytes_max - len(data)]
        if len(data) == bytes_max:
            full()
    return bytes(data)
