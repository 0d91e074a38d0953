"""Processes of the product that are started alone, and the core that one of them has for itself."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from app.cli.stack.supervisor import MarkedProcess

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Cores(NamedTuple):
    """The core of the process that is measured, and those of everything else."""

    alone: frozenset[int]
    rest: frozenset[int]


def separated() -> Cores:
    """Keep the last core free from this process and what it starts; raises SystemExit on a machine with one core."""
    cores = os.sched_getaffinity(0)
    alone = frozenset({max(cores)})
    if not (rest := frozenset(cores - alone)):
        raise SystemExit("one core cannot be kept for one process: the machine has no other")
    os.sched_setaffinity(0, rest)
    return Cores(alone, rest)


def part_of(process: MarkedProcess) -> str:
    """The part of a stack that a process is. Ray names an actor by its class, and while one runs by a method too."""
    name, _, _ = process.command.partition(" ")
    return name.partition(".")[0] if name.startswith("ray::") else process.child


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _with_children(leader: int) -> Iterator[int]:
    """A process, and those of its session when it leads one."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int(entry.name) == leader or int(_fields(int(entry.name))[3]) == leader:
                yield int(entry.name)


def pin(leader: int, cores: frozenset[int]) -> None:
    """Bind a process to cores, with its threads and children; later ones inherit it."""
    for pid in _with_children(leader):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


def cpu_ticks(pid: int) -> int:
    """The clock ticks of CPU of a process, 0 once it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return sum(map(int, _fields(pid)[11:13]))
    return 0


def cpu_s(leader: int) -> float:
    """The seconds of CPU of a process and its children."""
    return sum(map(cpu_ticks, _with_children(leader))) * _TICK_S


def idle_s(cores: frozenset[int]) -> float:
    """The seconds that these cores have been idle, each by itself, in sum."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    idle = {line.split()[0]: sum(map(int, line.split()[4:6])) for line in lines if line.startswith("cpu")}
    return sum(idle[f"cpu{core}"] for core in cores) * _TICK_S


@asynccontextmanager
async def process(
    port: int, *arguments: str, python: str = sys.executable, cwd: str | None = None, **environment: str
) -> AsyncGenerator[int]:
    """A Python process that listens on `port`, as the leader of a session; yields its process id."""
    child = await asyncio.create_subprocess_exec(
        python,
        *arguments,
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while True:
            with suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            assert child.returncode is None, f"{' '.join(arguments)} ended with {child.returncode}"
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        yield child.pid
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()
