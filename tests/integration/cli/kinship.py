"""Processes by their parent, read from /proc."""

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still are."""
    found: list[int] = []
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def wardens(pid: int) -> list[int]:
    """The wardens of sandboxes that a process has started."""
    return [child for child in children(pid) if alive(child) and "sandbox.warden" in _read(f"/proc/{child}/cmdline")]


def alive(pid: int) -> bool:
    stat = _read(f"/proc/{pid}/stat")
    return stat != "" and stat.rpartition(")")[2].split()[0] not in "ZX"


def _read(path: str) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(path).read_text()
    return ""
