import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from app.cli.render.progress import ChildReady, ProgressEvent
from app.cli.stack.supervisor import Child, StackRun, Supervisor
from tests.conditions import until

READY = "print('ready', flush=True)\n"
LASTS = "import signal\n" + READY + "signal.pause()\n"
FAILS = "import sys\nsys.exit('no such setting')\n"
SILENT = "import signal\nsignal.pause()\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LASTS
ORPHAN = """
import os, signal
os.setpgid(0, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("there", flush=True)
signal.pause()
"""
ORPHANS = f"""
import subprocess, sys
for _ in range(3):
    orphan = subprocess.Popen([sys.executable, "-S", "-c", {ORPHAN!r}], stdout=subprocess.PIPE)
    orphan.stdout.readline()
"""
T = TypeVar("T")


def child(name: str, code: str, **more: Any) -> Child:
    defaults: dict[str, Any] = {
        "ready_line": "ready",
        "environment": dict(os.environ),
        "stop_within_s": 5.0,
    }
    return Child(name=name, command=(sys.executable, "-S", "-c", code), **{**defaults, **more})


@dataclass
class Events:
    events: list[ProgressEvent] = field(default_factory=list[ProgressEvent])

    def __call__(self, event: ProgressEvent) -> None:
        self.events.append(event)

    def of(self, kind: type[T], name: str | None = None) -> list[T]:
        return [e for e in self.events if isinstance(e, kind) and name in (None, getattr(e, "name", None))]

    def runs(self, name: str) -> int:
        return len(self.of(ChildReady, name))

    async def until_ready(self, name: str, runs: int) -> None:
        await until(lambda: self.runs(name) >= runs, timeout_s=60)


@dataclass
class RunningChildren:
    supervisor: Supervisor
    events: Events
    stack_run: StackRun

    def state(self) -> dict[str, Any]:
        return json.loads(self.stack_run.state_file.read_text())

    def pid_of(self, name: str) -> int:
        return self.state()["children"][name]["pid"]

    def kill(self, name: str) -> int:
        pid = self.pid_of(name)
        os.kill(pid, signal.SIGKILL)
        return pid


Run = Callable[..., AbstractAsyncContextManager[RunningChildren]]


def alive(pid: int) -> bool:
    stat = _read(f"/proc/{pid}/stat")
    return stat != "" and stat.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in _read(str(task)).split()]


def wardens_of(pid: int) -> list[int]:
    """Returns the wardens of sandboxes that a process has started."""
    return [child for child in children_of(pid) if alive(child) and "sandbox.warden" in _read(f"/proc/{child}/cmdline")]


def _read(path: str) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(path).read_text()
    return ""


@dataclass(frozen=True)
class Listener:
    pid: int
    port: int
    loopback: bool


def listeners(pids: set[int]) -> list[Listener]:
    owners: dict[str, int] = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                owners[os.readlink(link)] = pid
    loopback = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [
        Listener(owners[f"socket:[{row[9]}]"], int(row[1].rpartition(":")[2], 16), row[1].startswith(loopback))
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in owners
    ]
