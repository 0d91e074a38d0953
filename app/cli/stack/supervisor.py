"""Supervises the children of the stack: starts them in order, restarts them after an exit, stops them in reverse.

`restart_policy` decides about restarts; this module watches processes and carries decisions out. One task supervises
one child through all its runs. A child that fails with another one (the deployer with Ray) ends when that one exits.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from app.cli.exits import CommandError, Exit
from app.cli.render import progress
from app.cli.render.progress import ProgressReport
from app.cli.stack import processes
from app.cli.stack.restart_policy import (
    HEALTH_CHECK_INTERVAL_S,
    ChildDependencies,
    ChildExit,
    GiveUp,
    HealthHistory,
    HealthStatus,
    KeepRunning,
    Replace,
    Restart,
    RestartHistory,
    after_check,
    after_exit,
    check_order,
)
from app.deliberation.errors import DeliberationError

_READINESS_INTERVAL_S = 0.03


class StackFailed(CommandError):
    """The stack could not start; the failed child's log has been reported."""

    def __init__(self, name: str, reason: str, *, hint: str) -> None:
        super().__init__(Exit.FAILED, f"{name}_failed", f"{name}: {reason}", remedy=hint or None)
        self.name = name


@dataclass(eq=False, slots=True)
class ChildRun:
    """One run of a child, from the start of its process to the end."""

    process: asyncio.subprocess.Process
    log: Path
    log_from_byte: int
    attempt: int
    started_at_s: float = field(default_factory=time.monotonic)
    ready_at_s: float | None = None
    replaced: Replace | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self) -> str:
        """The output of this run so far."""
        return processes.output_since(self.log, self.log_from_byte)


ReadinessCheck = Callable[[ChildRun], Awaitable[bool]]
HealthCheck = Callable[[], Awaitable[HealthStatus]]


@dataclass(frozen=True, kw_only=True)
class Child(ChildDependencies):
    """How one child is started, checked, prepared and stopped.

    `is_ready` is polled while the process runs. `prepare` runs once in each run, after readiness and before dependent
    children start; a DeliberationError in the first run counts as a failed start. `health_check` runs regularly from
    then on; a child without one is restarted only when its process exits. A higher `niceness` gets CPU later.
    """

    command: tuple[str, ...]
    is_ready: ReadinessCheck
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[], Awaitable[object]] | None = None
    health_check: HealthCheck | None = None
    ready_within_s: float = 60.0
    stop_within_s: float = 10.0
    niceness: int = processes.NICENESS
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


class Supervisor:
    """Keeps children running, one task each, and their states in the state file; use it through `supervised`."""

    def __init__(self, children: Sequence[Child], stack_run: StackRun, report: ProgressReport) -> None:
        check_order(children)
        self.children = tuple(children)
        self._stack = stack_run
        self._report = report
        self._runs: dict[str, ChildRun] = {}
        self._started = {child.name: asyncio.Event() for child in children}
        self._ready = {child.name: asyncio.Event() for child in children}
        self._task: asyncio.Task[NoReturn] | None = None

    def pid_of(self, name: str) -> int:
        """Process id of a child's current run; raises KeyError before its first start."""
        return self._runs[name].process.pid

    def start(self) -> None:
        """Start to supervise the children, in a task of the running loop that `stop` ends."""
        assert self._task is None, "a supervisor is used once"
        self._task = asyncio.create_task(self._supervise_all(), name="supervisor")

    async def forever(self) -> NoReturn:
        """Wait while the children run; raises StackFailed when one of them never becomes ready."""
        assert self._task is not None, "start comes first"
        await asyncio.shield(self._task)
        raise AssertionError("supervision ends only by exceptions")

    async def until_ready(self, names: Sequence[str] | None = None) -> None:
        """Wait until the named children (all by default) are ready at the same time."""
        await _all_set([self._ready[name] for name in (self._ready if names is None else names)])

    async def stop(self) -> None:
        """End the children and their descendants in reverse order, each by SIGTERM and after its bound by SIGKILL."""
        began_s = time.monotonic()
        if self._task is not None:
            self._task.cancel()
            # Its exception, if any, was raised where the task was awaited.
            await asyncio.gather(self._task, return_exceptions=True)
        for child in reversed(self.children):
            run = self._runs.get(child.name)
            if run is not None:
                self._report(progress.StackStopping(child.name))
                await processes.end(run.process, grace_s=child.stop_within_s)
                await processes.sweep(self._stack.mark, child.name)
        left = await processes.sweep(self._stack.mark)
        self._report(progress.StackStopped(time.monotonic() - began_s, tuple(f"{p.pid} {p.command}" for p in left)))
        self._stack.state_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """Kill all remaining processes without awaiting; after `stop` there are none."""
        for run in self._runs.values():
            if run.process.returncode is None:
                processes.kill_group(run.process.pid)
        processes.kill_marked(self._stack.mark)

    async def _supervise_all(self) -> NoReturn:
        try:
            async with asyncio.TaskGroup() as tasks:
                for child in self.children:
                    tasks.create_task(self._supervise(child), name=child.name)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        raise AssertionError("supervision ends only by exceptions")

    async def _supervise(self, child: Child) -> NoReturn:
        history = RestartHistory()
        attempt = 0
        while True:
            needed = [self._ready[name] for name in child.needs]
            await _all_set([*needed, *(self._started[name] for name in child.fails_with)])
            dependencies = {name: self._runs[name] for name in child.fails_with}
            attempt += 1
            run = await self._spawn(child, attempt)
            exit, reason, grace_s = await self._watch(child, run, history, dependencies)
            tail = processes.log_tail(run.log, from_byte=run.log_from_byte)
            await self._end(child, run, grace_s)
            match after_exit(history, exit):
                case GiveUp():
                    self._report(progress.ChildFailed(child.name, reason, child.hint, str(run.log), tail))
                    raise StackFailed(child.name, reason, hint=child.hint)
                case Restart(delay_s=delay_s, history=history):
                    self._report(progress.ChildDied(child.name, reason, delay_s, tail))
                    await asyncio.sleep(delay_s)

    async def _spawn(self, child: Child, attempt: int) -> ChildRun:
        log = self._stack.logs_dir / f"{child.name}.log"
        log_from_byte = log.stat().st_size if log.exists() else 0
        marks = {processes.STACK_MARK: self._stack.mark, processes.CHILD_MARK: child.name}
        try:
            environment = {**child.environment, **marks}
            process = await processes.spawn(child.command, environment, log, niceness=child.niceness)
        except OSError as error:
            raise StackFailed(child.name, f"{child.command[0]} cannot be run: {error}", hint=child.hint) from error
        run = self._runs[child.name] = ChildRun(process, log, log_from_byte, attempt)
        self._started[child.name].set()
        self._write_state()
        self._report(progress.ChildStarted(child.name, process.pid, attempt))
        if child.niceness:
            await processes.lower_session(process.pid, child.niceness)
        return run

    async def _watch(
        self, child: Child, run: ChildRun, history: RestartHistory, dependencies: Mapping[str, ChildRun]
    ) -> tuple[ChildExit, str, float]:
        """Watch one run to its end; returns the exit, its reason in words, and the grace in seconds."""
        try:
            async with asyncio.timeout(child.ready_within_s):
                first = await _first(self._prepared(child, run, history), *_ends(run, dependencies))
        except TimeoutError:
            return ChildExit(None), f"was not ready within {child.ready_within_s:g} s", child.stop_within_s
        except DeliberationError as error:
            return ChildExit(None), str(error), child.stop_within_s
        if first == 0:
            self._now_ready(child, run)
            first = 1 + await _first(*_ends(run, dependencies), self._checked(child, run))
        ready_for_s = None if run.ready_at_s is None else time.monotonic() - run.ready_at_s
        if first == 1:
            return ChildExit(ready_for_s), _describe_status(await run.process.wait()), 0.0
        if run.replaced is not None:
            return ChildExit(ready_for_s), run.replaced.reason, 0.0 if run.replaced.kill else child.stop_within_s
        cause = tuple(dependencies)[first - 2]
        # Without its dependency the child has nothing to finish, and a slow stop would take CPU from the restart.
        return ChildExit(ready_for_s, cause), f"ended because {cause} did", 0.0

    async def _checked(self, child: Child, run: ChildRun) -> None:
        """Check the child's health until it must be replaced; sets `run.replaced`."""
        if child.health_check is None:
            await asyncio.Event().wait()
            return
        history = HealthHistory(time.monotonic())
        while True:
            await asyncio.sleep(HEALTH_CHECK_INTERVAL_S)
            status = await child.health_check()
            match after_check(history, status, time.monotonic()):
                case KeepRunning(history, notice):
                    if notice:
                        self._report(progress.Noticed(f"{child.name}: {notice}"))
                case Replace() as decision:
                    run.replaced = decision
                    return

    async def _prepared(self, child: Child, run: ChildRun, history: RestartHistory) -> None:
        """Wait until the child is ready, then prepare it."""
        while not await child.is_ready(run):  # noqa: ASYNC110 -- it depends on another process
            await asyncio.sleep(_READINESS_INTERVAL_S)
        if child.prepare is None:
            return
        try:
            await child.prepare()
        except DeliberationError as error:
            if not history.ever_ready:
                raise
            # The child served before: repeated restarts would only take away what still works.
            self._report(progress.Noticed(f"{child.name}: {error}"))

    def _now_ready(self, child: Child, run: ChildRun) -> None:
        run.ready_at_s = time.monotonic()
        self._ready[child.name].set()
        self._write_state()
        self._report(progress.ChildReady(child.name, child.detail, run.ready_at_s - run.started_at_s, run.attempt))

    async def _end(self, child: Child, run: ChildRun, grace_s: float) -> None:
        self._ready[child.name].clear()
        self._started[child.name].clear()
        run.ended.set()
        await processes.end(run.process, grace_s=grace_s)
        await processes.sweep(self._stack.mark, child.name)
        self._write_state()

    def _write_state(self) -> None:
        children = {
            child.name: {
                "pid": run.process.pid,
                "ready": self._ready[child.name].is_set(),
                "attempt": run.attempt,
                "command": child.command,
                "ports": child.ports,
                "log": str(run.log),
            }
            for child in self.children
            if (run := self._runs.get(child.name)) is not None
        }
        run_facts = {"mark": self._stack.mark, "supervisor_pid": os.getpid(), **self._stack.facts}
        try:
            processes.write_private(self._stack.state_file, json.dumps({**run_facts, "children": children}, indent=1))
        except OSError as error:
            # A full disk must not end the children: the next change writes the file again.
            self._report(progress.Noticed(f"{self._stack.state_file} could not be written: {error.strerror}"))


def _ends(run: ChildRun, dependencies: Mapping[str, ChildRun]) -> list[Coroutine[Any, Any, object]]:
    return [run.process.wait(), *(other.ended.wait() for other in dependencies.values())]


def _describe_status(status: int) -> str:
    return f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    """Wait until all the events are set at the same time."""
    while not all(event.is_set() for event in events):
        for event in events:
            await event.wait()


async def _first(*waits: Coroutine[Any, Any, object]) -> int:
    """Index of the first coroutine to end, the earlier of two; raises its exception and cancels the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        index = next(i for i, task in enumerate(tasks) if task.done())
        tasks[index].result()
        return index
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
    supervisor.start()
    try:
        await _first(supervisor.until_ready(), supervisor.forever())
        yield supervisor
    finally:
        try:
            await supervisor.stop()
        finally:
            supervisor.kill()
