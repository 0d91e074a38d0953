"""Faults for a running stack: its processes, found by mark, and its connections."""

import os
import random
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app.cli.stack.supervisor import marked
from benchmarks.chaos.proxy import CUTS, FaultProxy

# The weights of the victims. A fault that ends all of Ray costs ten seconds, so it is rarer. Without Ray its parts are
# never found, and an agent is a worker, or dies with its coordinator.
WEIGHTS: Mapping[str, int] = {
    "gateway": 16,
    "coordinator": 24,
    "agent": 24,
    "nats": 16,
    "engine": 16,
    "controller": 4,
    "deployer": 4,
    "raylet": 1,
    "gcs": 1,
}
_OF_RAY: Mapping[str, str] = {
    "coordinator": r"^ray::ServeReplica:.*Coordinator",
    "agent": r"^ray::ServeReplica:.*Agent",
    "controller": r"^ray::ServeController",
    "raylet": r"/raylet --",
    "gcs": r"/gcs_server --",
}
_OF_STACK: Mapping[str, str] = {
    "gateway": "gateway",
    "nats": "nats",
    "engine": "simulator",
    "deployer": "deployer",
    "coordinator": "coordinator",
    "agent": "worker",
}


@dataclass(frozen=True, slots=True)
class Struck:
    """An injected fault: `what` on `victim`, and the stopped process to continue, if any."""

    what: str
    victim: str
    stopped_pid: int | None = None


def victims(marks: Sequence[str], name: str) -> list[int]:
    """Process ids of the part `name` in the stacks with these marks."""
    found = [process for mark in marks for process in marked(mark)]
    # Only the part itself, the session leader, and not its descendants.
    child = _OF_STACK.get(name)
    pids = [each.pid for each in found if each.child == child and os.getsid(each.pid) == each.pid]
    if name in _OF_RAY:
        pids += [each.pid for each in found if re.search(_OF_RAY[name], each.command)]
    return pids


def strike(
    rng: random.Random, marks: Sequence[str], stop_share: float, among: Sequence[str] = tuple(WEIGHTS)
) -> Struck | None:
    """SIGKILL or SIGSTOP one process `among` these parts; None when the chosen one is gone already."""
    (name,) = rng.choices(among, [WEIGHTS[each] for each in among])
    pids = victims(marks, name)
    if not pids:
        return None
    pid = rng.choice(sorted(pids))
    stops = rng.random() < stop_share
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP if stops else signal.SIGKILL)
        return Struck("SIGSTOP" if stops else "SIGKILL", name, pid if stops else None)
    return None


def wake(pid: int) -> None:
    """Continue a stopped process if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def cut(rng: random.Random, proxies: Mapping[str, FaultProxy], seconds: float) -> Struck | None:
    """Disturb one connection of one of the proxies."""
    name = rng.choice(sorted(proxies))
    kind = rng.choice(CUTS)
    return Struck(kind, name) if proxies[name].cut(kind, rng, seconds) else None
