"""Keeps the children of a stack running: starts them by their dependencies, restarts what exits, stops all in reverse.

Each child leads a session. Its descendants inherit two variables: DELIBERATE_STACK, the mark of this run of the stack,
and DELIBERATE_CHILD, its name. On Linux, /proc/*/environ thus finds all descendants, also Ray's workers, which have
groups of their own and outlive their raylet. Without /proc only each child's group is ended.

A slow machine is no reason for a restart. A starting child hangs when its processes neither use CPU nor wait for
CPU. A child that served hangs when it misses checks while none of its processes waits for CPU.
"""

import asyncio
import ctypes
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from app.cli.exits import CommandError, Exit
from app.cli.render import progress
from app.cli.render.progress import ProgressReport
from app.deliberation.errors import DeliberationError

# Of the processes that do accepted work. Everything waits for nats-server: with 900,000 messages its restart took 6.2 s
# at a higher priority, else 7.7. The command was `python -m benchmarks.chaos --seconds 4200 --kills-min 500 --keep
# DIR`, one run each. New requests wait for the gateway. With 200 deliberations in flight on two cores, their p99 was
# 373 and 521 ms at one priority, 162 and 201 ms at this difference (`python -m benchmarks.short`).
NICENESS = 10
STACK_MARK = "DELIBERATE_STACK"
CHILD_MARK = "DELIBERATE_CHILD"
FIRST_DELAY_S = 0.2
DELAY_MAX_S = 10.0
# Faults of a start show at once. A child that served longer than this restarts without a growing delay.
STEADY_AFTER_S = 5.0
START_ATTEMPTS_MAX = 2
# A part that failed later than this has most likely run into a bound of its own, as Ray does on a busy machine.
SLOW_START_S = 20.0
SLOW_ATTEMPTS_MAX = 5
# A program whose arguments are wrong ends with it, and would do so again.
USAGE_STATUS = 2
HEALTH_CHECK_INTERVAL_S = 2.0
UNRESPONSIVE_AFTER_S = 10.0
MISSES_MIN = 3
# A child without an answer for this much CPU time of its own is in an endless loop.
LOOP_CPU_S = 60.0
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


class MarkedProcess(NamedTuple):
    pid: int
    child: str
    command: str


def marked(mark: str, child: str | None = None) -> list[MarkedProcess]:
    """Returns the running processes with `mark` (of `child`, if given) except this one; none without /proc."""
    processes = list[MarkedProcess]()
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end while it is read, and other users' processes are unreadable: neither belongs to the stack.
        with suppress(OSError):
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(variable.split("=", 1) for variable in environment if "=" in variable)
            pid, name = int(entry.name), variables.get(CHILD_MARK, "")
            if variables.get(STACK_MARK) == mark and child in (None, name) and pid != os.getpid():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                processes.append(MarkedProcess(pid, name, command))
    return processes


async def sweep(mark: str, child: str | None = None, *, grace_s: float = 0.0) -> list[MarkedProcess]:
    """Kill all processes with the mark that have not ended in `grace_s`; returns those that remain."""
    began_s = time.monotonic()
    while left := marked(mark, child):
        if (passed_s := time.monotonic() - began_s) >= grace_s + 5.0:
            break
        for process in left if passed_s >= grace_s else ():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.02)
    return left


class Activity(NamedTuple):
    """The CPU seconds of a child's processes so far, and whether one of them waits for a CPU or a disk now."""

    cpu_s: float
    waits: bool


def activity_of(mark: str, child: str) -> Activity | None:
    ticks, waits, processes = 0, False, marked(mark, child)
    for stat in itertools.chain.from_iterable(
        Path(f"/proc/{process.pid}/task").glob("*/stat") for process in processes
    ):
        with suppress(OSError):
            state, *fields = stat.read_text().rpartition(")")[2].split()
            ticks += int(fields[10]) + int(fields[11])
            waits = waits or state in "RD"
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), waits) if processes else None


def write_private(path: Path, text: str) -> None:
    """Replace a file's content atomically, readable by its owner only."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.touch(mode=0o600)
    written.write_text(text, encoding="utf-8")
    written.replace(path)


class ChildHealth(NamedTuple):
    """The result of a health check; a restart may repair the `problem` or not."""

    answers: bool = True
    problem: str = ""
    restart_helps: bool = False


@dataclass(eq=False, slots=True)
class _Run:
    """A child's process; `reason` says why the supervisor ended it."""

    process: asyncio.subprocess.Process
    log: Path
    log_from_byte: int
    attempt: int
    started_at_s: float = field(default_factory=time.monotonic)
    ready_at_s: float | None = None
    reason: str = ""

    def output(self) -> list[str]:
        with suppress(FileNotFoundError):
            return self.log.read_bytes()[self.log_from_byte :].decode(errors="replace").splitlines()
        return []

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def end(self, grace_s: float, reason: str = "") -> None:
        """SIGTERM to the process, which ends its own descendants in order; after `grace_s` SIGKILL to its group."""
        self.reason = self.reason or reason
        if self.process.returncode is None:
            # Not `process.terminate`: it may reap the process and leave its watcher without a status.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), grace_s)
        self.kill()
        await self.process.wait()

    async def end_with(self, name: str, other: "_Run") -> None:
        await other.process.wait()
        # Without its dependency a child has nothing to finish, and a slow stop would take CPU from the restart.
        await self.end(0.0, f"ended because {name} did")


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child starts once `needs` are ready and `fails_with` have started; it ends with any of `fails_with`.

    It is ready when a line of its output fully matches `ready_line`, or without one when `health_check` says so.
    `prepare` runs once in each run, after readiness and before dependent children start. A DeliberationError of it in
    the first run counts as a failed start. From then on `health_check` runs regularly, if there is one.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    ready_line: str | None = None
    health_check: Callable[[], Awaitable[ChildHealth]] | None = None
    needs: tuple[str, ...] = ()
    fails_with: tuple[str, ...] = ()
    prepare: Callable[[], Awaitable[object]] | None = None
    idle_max_s: float = 60.0
    stop_within_s: float = 10.0
    niceness: int = NICENESS
    detail: str = ""
    hint: str = ""

    def failed(self, reason: str) -> CommandError:
        detail = f"{self.name}: {reason}"
        return CommandError(Exit.FAILED, f"{self.name}_failed", detail, remedy=self.hint or None)

    async def is_ready(self, run: _Run) -> bool:
        if self.ready_line is not None:
            return any(re.fullmatch(self.ready_line, line) for line in run.output())
        assert self.health_check is not None, "a child has a line or a check that tells its readiness"
        return (await self.health_check()).answers


@dataclass(frozen=True, kw_only=True)
class StackRun:
    mark: str
    logs_dir: Path
    state_file: Path
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


def restart_delay_s(last_s: float, ready_for_s: float | None) -> float:
    """Returns the seconds before the next start, doubled after each run that did not serve for STEADY_AFTER_S."""
    steady = ready_for_s is not None and ready_for_s >= STEADY_AFTER_S
    return FIRST_DELAY_S if steady or not last_s else min(2 * last_s, DELAY_MAX_S)


@dataclass(slots=True)
class HealthHistory:
    """The checks of a run: when it answered last, the misses since, its CPU at the first of them, and its problem."""

    answered_at_s: float
    misses: int = 0
    cpu_s: float = 0.0
    problem: str = ""

    def observe(self, health: ChildHealth, now_s: float, activity: Activity | None = None) -> tuple[str, str]:
        """Returns a notice for the user, and the reason to replace the child: each is mostly empty."""
        # A suspended machine alone causes a long silence, so a child must miss several checks. A miss does not count
        # while the child waits for a CPU. A problem that a restart does not repair is reported once.
        if health.answers:
            if health.problem and health.restart_helps:
                return "", f"broken: {health.problem}"
            before, self.problem = self.problem, health.problem
            self.answered_at_s, self.misses, self.cpu_s = now_s, 0, 0.0
            return "" if health.problem == before else health.problem or f"serves again after: {before}", ""
        cpu_s, waits = activity or Activity(0.0, waits=False)
        silent_s = now_s - self.answered_at_s
        self.misses += not waits
        self.cpu_s = self.cpu_s or cpu_s
        hung = self.misses >= MISSES_MIN and not waits and silent_s >= UNRESPONSIVE_AFTER_S
        loops = cpu_s - self.cpu_s >= LOOP_CPU_S
        return "", f"hung: no answer for {silent_s:.0f} s" if hung or loops else ""


class Supervisor:
    """Keeps children running, one task each, and their states in the state file; use it through `supervised`."""

    def __init__(
        self,
        children: Sequence[Child],
        stack_run: StackRun,
        report: ProgressReport,
        explain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`explain` reports why a child may not have become ready, while the others run."""
        names = [child.name for child in children]
        for position, child in enumerate(children):
            # Such an order has no cycle, and its reverse is the order in which the stack stops.
            if child.name in names[:position] or not {*child.needs, *child.fails_with} <= set(names[:position]):
                raise ValueError(f"{child.name} is declared twice, or before what it needs")
        self.children = tuple(children)
        self._stack = stack_run
        self._report = report
        self._explain = explain
        self._runs: dict[str, _Run] = {}
        self._started = {name: asyncio.Event() for name in names}
        self.ready = {name: asyncio.Event() for name in names}

    async def stop(self) -> None:
        """End the children in reverse order, each by SIGTERM and after its bound by SIGKILL; if cancelled, at once."""
        began_s = time.monotonic()
        try:
            for child in reversed(self.children):
                if (run := self._runs.get(child.name)) is not None:
                    self._report(progress.StackStopping(child.name))
                    await run.end(child.stop_within_s)
                    await sweep(self._stack.mark, child.name)
        finally:
            for run in self._runs.values():
                if run.process.returncode is None:
                    run.kill()
            left = await sweep(self._stack.mark)
        self._report(progress.StackStopped(time.monotonic() - began_s, tuple(f"{p.pid} {p.command}" for p in left)))
        self._stack.state_file.unlink(missing_ok=True)

    async def keep(self, child: Child) -> None:
        """Run the child again and again; raises CommandError for one that never was ready."""
        delay_s, failures, ever_ready = 0.0, 0, False
        for attempt in itertools.count(1):
            events = [*(self.ready[name] for name in child.needs), *(self._started[name] for name in child.fails_with)]
            await _all_set(events)
            others = {name: self._runs[name] for name in child.fails_with}
            run = await self._start(child, attempt)
            async with asyncio.TaskGroup() as tasks:
                watches = [tasks.create_task(run.end_with(*other)) for other in others.items()]
                watches.append(tasks.create_task(self._serve(child, run, ever_ready)))
                status = await run.process.wait()
                self.ready[child.name].clear()
                self._started[child.name].clear()
                for watch in watches:
                    watch.cancel()
            run.kill()
            await sweep(self._stack.mark, child.name)
            self._write_state()
            died = f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
            reason, tail = run.reason or died, tuple(filter(str.strip, run.output()))[-12:]
            ready_for_s = None if run.ready_at_s is None else time.monotonic() - run.ready_at_s
            ever_ready = ever_ready or ready_for_s is not None
            with_other = any(other.process.returncode is not None for other in others.values())
            failures += not with_other
            if not ever_ready and not with_other and self._explain is not None:
                await self._explain()
            slow = time.monotonic() - run.started_at_s >= SLOW_START_S
            misused = status == USAGE_STATUS and not run.reason and bool(tail)
            if not ever_ready and (misused or failures >= (SLOW_ATTEMPTS_MAX if slow else START_ATTEMPTS_MAX)):
                reason = tail[-1].removeprefix("Error: ") if misused else reason
                self._report(progress.ChildFailed(child.name, reason, child.hint, str(run.log), tail))
                raise child.failed(reason)
            delay_s = 0.0 if with_other else restart_delay_s(delay_s, ready_for_s)
            self._report(progress.ChildDied(child.name, reason, delay_s, tail))
            await asyncio.sleep(delay_s)

    async def _start(self, child: Child, attempt: int) -> _Run:
        def in_child() -> None:
            os.nice(child.niceness)
            if sys.platform == "linux":
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        log = self._stack.logs_dir / f"{child.name}.log"
        log_from_byte = log.stat().st_size if log.exists() else 0
        try:
            with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)) as output:
                process = await asyncio.create_subprocess_exec(
                    *child.command,
                    env={**child.environment, STACK_MARK: self._stack.mark, CHILD_MARK: child.name},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=in_child,
                )
        except OSError as error:
            raise child.failed(f"{child.command[0]} cannot be run: {error}") from error
        run = self._runs[child.name] = _Run(process, log, log_from_byte, attempt)
        self._started[child.name].set()
        self._write_state()
        self._report(progress.ChildStarted(child.name, process.pid, attempt))
        return run

    async def _serve(self, child: Child, run: _Run, ever_ready: bool) -> None:
        """Report the run as ready once it is, and end it when it hangs: while it starts, if it is idle for too long."""
        cpu_s, look_at_s, active_at_s = 0.0, run.started_at_s, run.started_at_s
        while not await child.is_ready(run):
            await asyncio.sleep(0.03)
            if (now_s := time.monotonic()) < look_at_s:
                continue
            look_at_s = now_s + child.idle_max_s / 10
            activity = activity_of(self._stack.mark, child.name)
            if activity is None or activity.waits or activity.cpu_s != cpu_s:
                active_at_s, cpu_s = now_s, activity.cpu_s if activity else 0.0
            if (idle_s := now_s - active_at_s) >= child.idle_max_s:
                return await run.end(0.0, f"hung while it started: used no CPU for {idle_s:.0f} s")
        try:
            if child.prepare is not None:
                await child.prepare()
        except DeliberationError as error:
            if not ever_ready:
                return await run.end(child.stop_within_s, str(error))
            # The child served before: repeated restarts would only take away what still works.
            self._report(progress.Noticed(f"{child.name}: {error}"))
        # Linux shares CPU among sessions first. A part that starts keeps its full share: Ray ends itself where its
        # agent takes more than 15 s to begin. An unprivileged user may change priorities only every 0.1 s.
        with suppress(OSError):
            Path(f"/proc/{run.process.pid}/autogroup").write_text(str(child.niceness))  # noqa: ASYNC240 -- no disk
        run.ready_at_s = time.monotonic()
        self.ready[child.name].set()
        self._report(progress.ChildReady(child.name, child.detail, run.ready_at_s - run.started_at_s, run.attempt))
        history = HealthHistory(time.monotonic())
        while child.health_check is not None:
            await asyncio.sleep(HEALTH_CHECK_INTERVAL_S)
            health = await child.health_check()
            activity = None if health.answers else activity_of(self._stack.mark, child.name)
            notice, reason = history.observe(health, time.monotonic(), activity)
            if reason:
                # A hung child cannot handle SIGTERM.
                return await run.end(child.stop_within_s if health.answers else 0.0, reason)
            if notice:
                self._report(progress.Noticed(f"{child.name}: {notice}"))

    def _write_state(self) -> None:
        runs = self._runs.items()
        children = {name: {"pid": run.process.pid, "attempt": run.attempt, "log": str(run.log)} for name, run in runs}
        state = {"mark": self._stack.mark, "supervisor_pid": os.getpid(), **self._stack.facts, "children": children}
        try:
            write_private(self._stack.state_file, json.dumps(state, indent=1))
        except OSError as error:
            # A full disk must not end the children: the next change writes the file again.
            self._report(progress.Noticed(f"{self._stack.state_file} could not be written: {error.strerror}"))


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    while missing := [event for event in events if not event.is_set()]:
        await missing[0].wait()


@asynccontextmanager
async def supervised(
    children: Sequence[Child],
    run: StackRun,
    report: ProgressReport,
    explain: Callable[[], Awaitable[None]] | None = None,
) -> AsyncGenerator[Supervisor]:
    """Run the children around the body, which begins when all are ready; raises CommandError when one never is."""
    supervisor = Supervisor(children, run, report, explain)
    try:
        async with asyncio.TaskGroup() as tasks:
            kept = [tasks.create_task(supervisor.keep(child), name=child.name) for child in children]
            await _all_set(list(supervisor.ready.values()))
            yield supervisor
            for task in kept:
                task.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await supervisor.stop()
