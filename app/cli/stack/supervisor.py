"""Keeps the children of a stack running: starts them by their dependencies, restarts what exits, stops all in reverse.

Each child leads a session and has two variables that its descendants inherit: DELIBERATE_STACK, the mark of this
run of the stack, and DELIBERATE_CHILD, its name. On Linux, /proc/*/environ thus finds all descendants, also those of
Ray, whose workers have groups of their own and outlive their raylet. Programs that rename themselves (`ray::…`) need
SPT_NOENV, or the new title overwrites the environment. Without /proc only each child's group is ended.

Nothing is restarted because a machine is slow. A starting child hangs when its processes neither use CPU nor wait for
it. A child that served hangs when it misses checks while none of its processes waits for CPU.
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
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from app.cli.exits import CommandError, Exit
from app.cli.render import progress
from app.cli.render.progress import ProgressReport
from app.deliberation.errors import DeliberationError

STACK_MARK = "DELIBERATE_STACK"
CHILD_MARK = "DELIBERATE_CHILD"
NICENESS = 5
FIRST_DELAY_S = 0.2
DELAY_MAX_S = 10.0
# Faults of a start show at once. A child that served longer than this restarts without a growing delay.
STEADY_AFTER_S = 5.0
START_ATTEMPTS_MAX = 2
# A part that failed later than this has most likely run into a bound of its own, as Ray does on a busy machine.
SLOW_START_S = 20.0
SLOW_ATTEMPTS_MAX = 5
HEALTH_CHECK_INTERVAL_S = 2.0
UNRESPONSIVE_AFTER_S = 10.0
MISSES_MIN = 3
# A child without an answer for this much CPU time of its own is in an endless loop.
LOOP_CPU_S = 60.0
_SLOW_AFTER_S = 60.0
_READINESS_INTERVAL_S = 0.03
_SWEEP_WITHIN_S = 5.0
_POLL_S = 0.02
_AUTOGROUP_WAIT_S = 0.1
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_R = TypeVar("_R")


class MarkedProcess(NamedTuple):
    """A running process with a stack's mark: the child it descends from, and its current command line."""

    pid: int
    child: str
    command: str


def marked(mark: str, child: str | None = None) -> list[MarkedProcess]:
    """Returns the running processes with `mark` (of `child`, if given) except this one; none without /proc."""
    found: list[MarkedProcess] = []
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
                found.append(MarkedProcess(int(entry.name), name, command))
    return found


def _signal_marked(mark: str, number: signal.Signals, child: str | None) -> list[MarkedProcess]:
    found = marked(mark, child)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
    return found


async def sweep(mark: str, child: str | None = None, *, grace_s: float = 0.0) -> list[MarkedProcess]:
    """End all processes with the mark: SIGTERM if there is a grace, then SIGKILL. Returns those that remain."""
    began_s = time.monotonic()
    left = _signal_marked(mark, signal.SIGTERM if grace_s else signal.SIGKILL, child)
    while left and (passed_s := time.monotonic() - began_s) < grace_s + _SWEEP_WITHIN_S:
        await asyncio.sleep(_POLL_S)
        left = marked(mark, child) if passed_s < grace_s else _signal_marked(mark, signal.SIGKILL, child)
    return left


class Activity(NamedTuple):
    """The CPU seconds of a child's processes so far, and whether one of them waits for a CPU or a disk now."""

    cpu_s: float
    waits: bool


def activity_of(mark: str, child: str) -> Activity | None:
    """Returns the activity of a child's processes; None without /proc."""
    ticks, waits, found = 0, False, marked(mark, child)
    for stat in itertools.chain.from_iterable(Path(f"/proc/{each.pid}/task").glob("*/stat") for each in found):
        with suppress(OSError):
            state, *fields = stat.read_text().rpartition(")")[2].split()
            ticks += int(fields[10]) + int(fields[11])
            waits = waits or state in "RD"
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), waits) if found else None


async def _spawn(child: "Child", mark: str, log: Path) -> asyncio.subprocess.Process:
    """Start a child's command, its output appended to `log`; raises OSError when it cannot be run."""

    def in_child() -> None:
        if sys.platform == "linux":
            # A killed supervisor must not leave a running stack behind; other systems cannot prevent that.
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        os.nice(child.niceness)

    with os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)) as output:
        return await asyncio.create_subprocess_exec(
            *child.command,
            env={**child.environment, STACK_MARK: mark, CHILD_MARK: child.name},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=in_child,
        )


async def _lower_session(pid: int, niceness: int) -> None:
    """Lower the priority of a session, where Linux shares CPU among sessions first (autogroups)."""
    with suppress(OSError):
        while True:
            try:
                Path(f"/proc/{pid}/autogroup").write_text(str(niceness))  # noqa: ASYNC240 -- /proc
                return
            except BlockingIOError:
                # Linux lets it be changed only every so often.
                await asyncio.sleep(_AUTOGROUP_WAIT_S)


def _kill_group(leader: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """SIGTERM to the process, which ends its own descendants in order; after `grace_s` SIGKILL to its group."""
    if process.returncode is None:
        # Not `process.terminate`: it may reap the process and leave its watcher without a status.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await process.wait()
    _kill_group(process)
    await process.wait()


def write_private(path: Path, text: str) -> None:
    """Replace a file's content atomically, readable by its owner only."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    written.replace(path)


def output_since(path: Path, from_byte: int) -> str:
    """Returns the content of a log after its first `from_byte` bytes; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(from_byte)
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


class StackFailed(CommandError):
    """The stack could not start; the failed child's log has been reported."""

    def __init__(self, name: str, reason: str, *, hint: str) -> None:
        super().__init__(Exit.FAILED, f"{name}_failed", f"{name}: {reason}", remedy=hint or None)
        self.name = name


class ChildHealth(NamedTuple):
    """The result of a health check: an answer or none, and the problem in it, which a restart may repair or not."""

    answers: bool = True
    problem: str = ""
    restart_helps: bool = False


@dataclass(eq=False, slots=True)
class ChildRun:
    """One run of a child, from the start of its process to the end."""

    process: asyncio.subprocess.Process
    log: Path
    log_from_byte: int
    attempt: int
    started_at_s: float = field(default_factory=time.monotonic)
    ready_at_s: float | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self) -> str:
        """Returns the output of this run so far."""
        return output_since(self.log, self.log_from_byte)


ReadinessCheck = Callable[[ChildRun], Awaitable[bool]]
HealthCheck = Callable[[], Awaitable[ChildHealth]]


def prints(line: str) -> ReadinessCheck:
    """Ready once the output of this run has a line that fully matches the pattern `line`."""
    pattern = re.compile(line)

    async def check(run: ChildRun) -> bool:
        return any(pattern.fullmatch(printed) for printed in run.output().splitlines())

    return check


@dataclass(frozen=True, kw_only=True)
class Child:
    """How one child is started, checked, prepared and stopped.

    It starts when the children in `needs` are ready and those in `fails_with` are started; it ends with the latter.
    `is_ready` is polled while the process runs. `prepare` runs once in each run, after readiness and before dependent
    children start; a DeliberationError in the first run counts as a failed start. `health_check` runs regularly from
    then on; a child without one is restarted only when its process exits. A higher `niceness` gets CPU later.
    """

    name: str
    command: tuple[str, ...]
    is_ready: ReadinessCheck
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: tuple[str, ...] = ()
    fails_with: tuple[str, ...] = ()
    prepare: Callable[[], Awaitable[object]] | None = None
    health_check: HealthCheck | None = None
    idle_max_s: float = 60.0
    stop_within_s: float = 10.0
    niceness: int = NICENESS
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class StackRun:
    """One run of a stack: the mark of its processes, its logs and state file, and further facts for the state file."""

    mark: str
    logs_dir: Path
    state_file: Path
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


class Ended(NamedTuple):
    """Why a run ended or must end, and the seconds that its processes get to stop."""

    reason: str
    grace_s: float = 0.0
    with_other: bool = False


def restart_delay_s(last_s: float, ready_for_s: float | None) -> float:
    """Returns the seconds before the next start, doubled after each run that did not serve for STEADY_AFTER_S."""
    steady = ready_for_s is not None and ready_for_s >= STEADY_AFTER_S
    return FIRST_DELAY_S if steady or not last_s else min(2 * last_s, DELAY_MAX_S)


@dataclass(frozen=True, slots=True)
class HealthHistory:
    """The checks of a run: when it answered last, the misses since, its CPU at the first of them, and its problem."""

    answered_at_s: float
    misses: int = 0
    cpu_s: float = 0.0
    problem: str = ""


class Judgement(NamedTuple):
    """What follows from a health check: a notice for the user, if any, and why the child must be replaced, if so."""

    history: HealthHistory
    notice: str = ""
    replace: str = ""


def judge(history: HealthHistory, health: ChildHealth, now_s: float, activity: Activity | None = None) -> Judgement:
    """Replace a child that is silent for long, and one that a restart repairs.

    A silent child must exceed the time and the number of misses, because a suspended machine alone causes a long
    silence. A miss does not count while the child waits for a CPU. A problem that a restart does not repair is
    reported once: the child may still do part of its work.
    """
    if health.answers:
        if health.problem and health.restart_helps:
            return Judgement(history, replace=f"broken: {health.problem}")
        said = "" if health.problem == history.problem else health.problem or f"serves again after: {history.problem}"
        return Judgement(HealthHistory(now_s, problem=health.problem), said)
    cpu_s, waits = activity or Activity(0.0, waits=False)
    silent_s = now_s - history.answered_at_s
    missed = replace(history, misses=history.misses + (not waits), cpu_s=history.cpu_s or cpu_s)
    hung = missed.misses >= MISSES_MIN and not waits and silent_s >= UNRESPONSIVE_AFTER_S
    if hung or cpu_s - missed.cpu_s >= LOOP_CPU_S:
        return Judgement(missed, replace=f"hung: no answer for {silent_s:.0f} s")
    return Judgement(missed)


class Supervisor:
    """Keeps children running, one task each, and their states in the state file; use it through `supervised`."""

    def __init__(self, children: Sequence[Child], stack_run: StackRun, report: ProgressReport) -> None:
        names = [child.name for child in children]
        for position, child in enumerate(children):
            # Such an order has no cycle, and its reverse is the order in which the stack stops.
            if child.name in names[:position] or not {*child.needs, *child.fails_with} <= set(names[:position]):
                raise ValueError(f"{child.name} is declared twice, or before what it needs")
        self.children = tuple(children)
        self._stack = stack_run
        self._report = report
        self._runs: dict[str, ChildRun] = {}
        self._started = {name: asyncio.Event() for name in names}
        self.ready = {name: asyncio.Event() for name in names}

    def pid_of(self, name: str) -> int:
        """Returns the process id of a child's current run; raises KeyError before its first start."""
        return self._runs[name].process.pid

    async def stop(self) -> None:
        """End the children and their descendants in reverse order, each by SIGTERM and after its bound by SIGKILL."""
        began_s = time.monotonic()
        for child in reversed(self.children):
            if (run := self._runs.get(child.name)) is not None:
                self._report(progress.StackStopping(child.name))
                await _end(run.process, child.stop_within_s)
                await sweep(self._stack.mark, child.name)
        left = await sweep(self._stack.mark)
        self._report(progress.StackStopped(time.monotonic() - began_s, tuple(f"{p.pid} {p.command}" for p in left)))
        self._stack.state_file.unlink(missing_ok=True)

    async def kill(self) -> None:
        """Kill all remaining processes; after `stop` there are none."""
        for run in self._runs.values():
            if run.process.returncode is None:
                _kill_group(run.process)
        await sweep(self._stack.mark)

    async def keep(self, child: Child) -> None:
        """Run the child again and again; raises StackFailed for one that never was ready: its settings may be wrong."""
        delay_s, failures, ever_ready = 0.0, 0, False
        for attempt in itertools.count(1):
            await _all_set(
                [*(self.ready[name] for name in child.needs), *(self._started[name] for name in child.fails_with)]
            )
            others = {name: self._runs[name] for name in child.fails_with}
            run = await self._start(child, attempt)
            ends = (_end_with(name, other) for name, other in others.items())
            ended = await _first(_end_of(run), *ends, self._serve(child, run, ever_ready))
            ready_for_s = None if run.ready_at_s is None else time.monotonic() - run.ready_at_s
            tail = tuple(run.output().splitlines()[-12:])
            await self._clear(child, run, ended.grace_s)
            ever_ready = ever_ready or ready_for_s is not None
            failures += not ended.with_other
            slow = time.monotonic() - run.started_at_s >= SLOW_START_S
            if not ever_ready and failures >= (SLOW_ATTEMPTS_MAX if slow else START_ATTEMPTS_MAX):
                self._report(progress.ChildFailed(child.name, ended.reason, child.hint, str(run.log), tail))
                raise StackFailed(child.name, ended.reason, hint=child.hint)
            if not ended.with_other:
                delay_s = restart_delay_s(delay_s, ready_for_s)
            wait_s = 0.0 if ended.with_other else delay_s
            self._report(progress.ChildDied(child.name, ended.reason, wait_s, tail))
            await asyncio.sleep(wait_s)

    async def _start(self, child: Child, attempt: int) -> ChildRun:
        log = self._stack.logs_dir / f"{child.name}.log"
        log_from_byte = log.stat().st_size if log.exists() else 0
        try:
            process = await _spawn(child, self._stack.mark, log)
        except OSError as error:
            raise StackFailed(child.name, f"{child.command[0]} cannot be run: {error}", hint=child.hint) from error
        run = self._runs[child.name] = ChildRun(process, log, log_from_byte, attempt)
        self._started[child.name].set()
        self._write_state()
        self._report(progress.ChildStarted(child.name, process.pid, attempt))
        if child.niceness:
            await _lower_session(process.pid, child.niceness)
        return run

    async def _serve(self, child: Child, run: ChildRun, ever_ready: bool) -> Ended:
        """Bring a run to readiness and watch over its health; returns why it must end."""
        if (hung := await self._until_ready(child, run)) is not None:
            return hung
        try:
            if child.prepare is not None:
                await child.prepare()
        except DeliberationError as error:
            if not ever_ready:
                return Ended(str(error), child.stop_within_s)
            # The child served before: repeated restarts would only take away what still works.
            self._report(progress.Noticed(f"{child.name}: {error}"))
        run.ready_at_s = time.monotonic()
        self.ready[child.name].set()
        self._write_state()
        self._report(progress.ChildReady(child.name, child.detail, run.ready_at_s - run.started_at_s, run.attempt))
        return await self._until_unhealthy(child)

    async def _until_ready(self, child: Child, run: ChildRun) -> Ended | None:
        """Wait until the run is ready, and return None; or until its processes have been idle for too long."""
        noticed, cpu_s = False, 0.0
        look_at_s = active_at_s = run.started_at_s
        while not await child.is_ready(run):
            await asyncio.sleep(_READINESS_INTERVAL_S)
            if (now_s := time.monotonic()) < look_at_s:
                continue
            look_at_s = now_s + child.idle_max_s / 10
            activity = activity_of(self._stack.mark, child.name)
            if activity is None or activity.waits or activity.cpu_s != cpu_s:
                active_at_s, cpu_s = now_s, activity.cpu_s if activity else 0.0
            if (idle_s := now_s - active_at_s) >= child.idle_max_s:
                return Ended(f"hung while it started: used no CPU for {idle_s:.0f} s")
            if not noticed and now_s - run.started_at_s >= _SLOW_AFTER_S:
                noticed = True
                self._report(
                    progress.Noticed(f"{child.name} still starts after {_SLOW_AFTER_S:g} s; its log: {run.log}")
                )
        return None

    async def _until_unhealthy(self, child: Child) -> Ended:
        history = HealthHistory(time.monotonic())
        while child.health_check is not None:
            await asyncio.sleep(HEALTH_CHECK_INTERVAL_S)
            health = await child.health_check()
            activity = None if health.answers else activity_of(self._stack.mark, child.name)
            history, notice, reason = judge(history, health, time.monotonic(), activity)
            if reason:
                # A hung child cannot handle SIGTERM.
                return Ended(reason, child.stop_within_s if health.answers else 0.0)
            if notice:
                self._report(progress.Noticed(f"{child.name}: {notice}"))
        await asyncio.Event().wait()
        raise AssertionError("without a health check, only the process ends a run")

    async def _clear(self, child: Child, run: ChildRun, grace_s: float) -> None:
        self.ready[child.name].clear()
        self._started[child.name].clear()
        run.ended.set()
        await _end(run.process, grace_s)
        await sweep(self._stack.mark, child.name)
        self._write_state()

    def _write_state(self) -> None:
        children = {
            child.name: {
                "pid": run.process.pid,
                "ready": self.ready[child.name].is_set(),
                "attempt": run.attempt,
                "ports": child.ports,
                "log": str(run.log),
            }
            for child in self.children
            if (run := self._runs.get(child.name)) is not None
        }
        run_facts = {"mark": self._stack.mark, "supervisor_pid": os.getpid(), **self._stack.facts}
        try:
            write_private(self._stack.state_file, json.dumps({**run_facts, "children": children}, indent=1))
        except OSError as error:
            # A full disk must not end the children: the next change writes the file again.
            self._report(progress.Noticed(f"{self._stack.state_file} could not be written: {error.strerror}"))


async def _end_of(run: ChildRun) -> Ended:
    status = await run.process.wait()
    return Ended(f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}")


async def _end_with(name: str, other: ChildRun) -> Ended:
    await other.ended.wait()
    # Without its dependency a child has nothing to finish, and a slow stop would take CPU from the restart.
    return Ended(f"ended because {name} did", with_other=True)


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    """Wait until all the events are set at the same time."""
    while not all(event.is_set() for event in events):
        for event in events:
            await event.wait()


async def _first(*waits: Coroutine[Any, Any, _R]) -> _R:
    """Returns the result of the first coroutine to end, the earlier of two; cancels the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def supervised(children: Sequence[Child], run: StackRun, report: ProgressReport) -> AsyncGenerator[Supervisor]:
    """Run the children around the body: it begins when all are ready, and they stop after it.

    Raises StackFailed when a child never becomes ready. A second cancellation while stopping kills what is left.
    """
    supervisor = Supervisor(children, run, report)
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
        try:
            await supervisor.stop()
        finally:
            await supervisor.kill()
