"""Decides when a child of the stack is restarted. Pure: the supervisor asks, and carries the decision out.

A running child is checked regularly. An exit is certain, but an unresponsive child is only likely to hang. The bound is
therefore generous: a slow machine must not lose a live child to a tight health check.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

FIRST_DELAY_S = 0.2
DELAY_MAX_S = 10.0
# Startup errors show at once. A child that served longer than this restarts without a growing delay.
STEADY_AFTER_S = 5.0
START_ATTEMPTS_MAX = 2
HEALTH_CHECK_INTERVAL_S = 2.0
UNRESPONSIVE_AFTER_S = 10.0
MISSES_MIN = 3


@dataclass(frozen=True, kw_only=True)
class ChildDependencies:
    """The children that must be ready before a child starts, and those that it starts and exits with."""

    name: str
    needs: tuple[str, ...] = ()
    fails_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """What is kept of a child's earlier runs. `delay_s` is the last delay."""

    exits: int = 0
    ever_ready: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The end of one run: seconds since ready (None if never ready), and the dependency that caused it, if any."""

    ready_for_s: float | None
    caused_by: str | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the child after `delay_s`, once its dependencies are ready; keep `history`."""

    delay_s: float
    history: RestartHistory


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The child never became ready: the stack cannot start."""


def after_exit(history: RestartHistory, exit: ChildExit) -> Restart | GiveUp:
    """Restart with exponential backoff, which a steady run resets; give up on a child that was never ready.

    After the exit of a dependency a child restarts without delay. A child that was ready before restarts without limit,
    because what it needs may come back. A child that never was is most likely misconfigured.
    """
    now = replace(history, exits=history.exits + 1, ever_ready=history.ever_ready or exit.ready_for_s is not None)
    if exit.caused_by is not None:
        return Restart(0.0, replace(now, exits=history.exits))
    if not now.ever_ready and now.exits >= START_ATTEMPTS_MAX:
        return GiveUp()
    steady = exit.ready_for_s is not None and exit.ready_for_s >= STEADY_AFTER_S
    delay_s = FIRST_DELAY_S if steady or not history.delay_s else min(2 * history.delay_s, DELAY_MAX_S)
    return Restart(delay_s, replace(now, delay_s=delay_s))


@dataclass(frozen=True, slots=True)
class Healthy:
    """The child responds as it should."""


@dataclass(frozen=True, slots=True)
class Unresponsive:
    """The child does not respond."""


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """The child responds that it cannot serve. `restart_helps`: whether a restart repairs it now."""

    reason: str
    restart_helps: bool


HealthStatus = Healthy | Unresponsive | Unhealthy


@dataclass(frozen=True, slots=True)
class HealthHistory:
    """A child's recent checks: the time of its last response, the misses since, and the reported problem."""

    responded_at_s: float
    misses: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KeepRunning:
    """Leave the child alone; report `notice` unless it is empty."""

    history: HealthHistory
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Replace:
    """End the child's process and restart it. `kill` skips SIGTERM, which an unresponsive child cannot handle."""

    reason: str
    kill: bool


def after_check(history: HealthHistory, status: HealthStatus, now_s: float) -> KeepRunning | Replace:
    """Replace a child that is unresponsive for long, and one that a restart repairs.

    An unresponsive child must exceed both the time and the number of misses, because a suspended machine alone causes a
    long silence. A problem that a restart does not repair is reported once: the child may still do part of its work.
    """
    match status:
        case Healthy():
            notice = f"serves again after: {history.problem}" if history.problem else ""
            return KeepRunning(HealthHistory(now_s), notice)
        case Unresponsive():
            silent_s, misses = now_s - history.responded_at_s, history.misses + 1
            if misses >= MISSES_MIN and silent_s >= UNRESPONSIVE_AFTER_S:
                return Replace(f"hung: no answer for {silent_s:.0f} s", kill=True)
            return KeepRunning(replace(history, misses=misses))
        case Unhealthy(reason, restart_helps):
            if restart_helps:
                return Replace(f"broken: {reason}", kill=False)
            return KeepRunning(HealthHistory(now_s, problem=reason), "" if reason == history.problem else reason)
        case _:
            assert_never(status)


def check_order(children: Sequence[ChildDependencies]) -> None:
    """Raise ValueError unless each child depends only on children before it.

    Such an order has no cycle, and its reverse is the order in which the stack stops.
    """
    earlier: set[str] = set()
    for child in children:
        unknown = {*child.needs, *child.fails_with} - earlier
        if unknown or child.name in earlier:
            raise ValueError(f"{child.name} is declared twice or needs what is not declared before it: {unknown}")
        earlier.add(child.name)
