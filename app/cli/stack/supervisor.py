"""Children of the stack: started as soon as what they need is ready, restarted when they die, stopped in reverse order.

Whether and when to restart is decided in `restarts`; this module watches processes and obeys. One task keeps one child
through all its lives. A child that falls with another one (the deployer with Ray) is ended as soon as that one is gone.
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
from app.cli.render.progress import (
    ChildDied,
    ChildFailed,
    ChildReady,
    ChildStarted,
    Noticed,
    ProgressReport,
    StackStopped,
    StackStopping,
)
from app.cli.stack.processes import (
    CHILD_MARK,
    STACK_MARK,
    end,
    kill_group,
    kill_marked,
    log_tail,
    lower_session,
    output_since,
    spawn,
    sweep,
    write_private,
)
from app.cli.stack.restarts import (
    PROBE_INTERVAL_S,
    ChildDependencies,
    Death,
    GiveUp,
    GoOn,
    Past,
    Pulse,
    Restart,
    Sign,
    StartAnew,
    check_order,
    on_death,
    on_sign,
)
from app.deliberation.errors import DeliberationError

_PROBE_INTERVAL_S = 0.03


class StackFailed(CommandError):
    """The stack could not be started; the child's log was reported before this was raised."""

    def __init__(self, name: str, reason: str, *, hint: str) -> None:
        super().__init__(Exit.FAILED, f"{name}_failed", f"{name}: {reason}", remedy=hint or None)
        self.name = name


@dataclass(eq=False, slots=True)
class Life:
    """One run of a child, from its start to its end."""

    process: asyncio.subprocess.Process
    log: Path
    log_from_byte: int
    attempt: int
    started_at_s: float = field(default_factory=time.monotonic)
    ready_at_s: float | None = None
    verdict: StartAnew | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def output(self) -> str:
        """What this life wrote so far."""
        return output_since(self.log, self.log_from_byte)


@dataclass(frozen=True, kw_only=True)
class Child(ChildDependencies):
    """How one child is started, recognised as ready, prepared for those that need it, and stopped.

    `is_ready` is asked again and again while the process lives. `prepare` runs once in each life, after that and before
    anything that needs this child is started; a DeliberationError of the first one counts as a failed start. `lives`
    is asked for a sign of life from then on; a child without it is left alone for as long as its process lives. One
    that `yields` has CPU after those that do not.
    """

    command: tuple[str, ...]
    is_ready: Callable[[Life], Awaitable[bool]]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[], Awaitable[object]] | None = None
    lives: Callable[[Life], Awaitable[Sign]] | None = None
    ready_within_s: float = 60.0
    stop_within_s: float = 10.0
    yields: bool = True
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a stack keeps its logs and its state file, what it is marked with, and what else the state file tells."""

    mark: str
    logs_dir: Path
    state_file: Path
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


class Supervisor:
    """Keeps children alive, one task each, and their states in the state file; use it through `supervised`."""

    def __init__(self, children: Sequence[Child], site: Site, report: ProgressReport) -> None:
        check_order(children)
        self.children = tuple(children)
        self._site = site
        self._report = report
        self._lives: dict[str, Life] = {}
        self._begun = {child.name: asyncio.Event() for child in children}
        self._up = {child.name: asyncio.Event() for child in children}
        self._keeping: asyncio.Task[NoReturn] | None = None

    def pid_of(self, name: str) -> int:
        """Process id of a child as it runs now; raises KeyError before its first start."""
        return self._lives[name].process.pid

    def start(self) -> None:
        """Begin to keep the children, in a task of the running loop that `stop` ends."""
        assert self._keeping is None, "a supervisor is used once"
        self._keeping = asyncio.create_task(self._keep_all(), name="supervisor")

    async def forever(self) -> NoReturn:
        """Wait while the children are kept, which ends only by StackFailed: one of them never got ready."""
        assert self._keeping is not None, "start comes first"
        await asyncio.shield(self._keeping)
        raise AssertionError("keepers end only by exceptions")

    async def until_up(self, names: Sequence[str] | None = None) -> None:
        """Wait until the named children (all by default) are ready at the same time."""
        await _all_set([self._up[name] for name in (self._up if names is None else names)])

    async def stop(self) -> None:
        """End the children in reverse order, each by SIGTERM and after its bound by SIGKILL, and all that they left."""
        began_s = time.monotonic()
        if self._keeping is not None:
            self._keeping.cancel()
            # What it may have failed with was raised where it was awaited.
            await asyncio.gather(self._keeping, return_exceptions=True)
        for child in reversed(self.children):
            life = self._lives.get(child.name)
            if life is not None:
                self._report(StackStopping(child.name))
                await end(life.process, grace_s=child.stop_within_s)
                await sweep(self._site.mark, child.name)
        left = await sweep(self._site.mark)
        self._report(StackStopped(time.monotonic() - began_s, tuple(f"{p.pid} {p.command}" for p in left)))
        self._site.state_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """End at once what is still there, without awaiting; nothing to do after `stop`."""
        for life in self._lives.values():
            if life.process.returncode is None:
                kill_group(life.process.pid)
        kill_marked(self._site.mark)

    async def _keep_all(self) -> NoReturn:
        try:
            async with asyncio.TaskGroup() as keepers:
                for child in self.children:
                    keepers.create_task(self._keep(child), name=child.name)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        raise AssertionError("keepers end only by exceptions")

    async def _keep(self, child: Child) -> NoReturn:
        past = Past()
        attempt = 0
        while True:
            await _all_set(self._awaited(child))
            dependencies = {name: self._lives[name] for name in child.fails_with}
            attempt += 1
            life = await self._begin(child, attempt)
            death, reason, grace_s = await self._live(child, life, past, dependencies)
            tail = log_tail(life.log, from_byte=life.log_from_byte)
            await self._end(child, life, grace_s)
            match on_death(past, death):
                case GiveUp():
                    self._report(ChildFailed(child.name, reason, child.hint, str(life.log), tail))
                    raise StackFailed(child.name, reason, hint=child.hint)
                case Restart(delay_s=delay_s, past=past):
                    self._report(ChildDied(child.name, reason, delay_s, tail))
                    await asyncio.sleep(delay_s)

    def _awaited(self, child: Child) -> list[asyncio.Event]:
        """What must be before the child is started: what it needs is ready, and what it falls with runs."""
        return [*(self._up[name] for name in child.needs), *(self._begun[name] for name in child.fails_with)]

    async def _begin(self, child: Child, attempt: int) -> Life:
        log = self._site.logs_dir / f"{child.name}.log"
        log_from_byte = log.stat().st_size if log.exists() else 0
        marks = {STACK_MARK: self._site.mark, CHILD_MARK: child.name}
        try:
            process = await spawn(child.command, {**child.environment, **marks}, log, yields=child.yields)
        except OSError as error:
            raise StackFailed(child.name, f"{child.command[0]} cannot be run: {error}", hint=child.hint) from error
        life = self._lives[child.name] = Life(process, log, log_from_byte, attempt)
        self._begun[child.name].set()
        self._write_state()
        self._report(ChildStarted(child.name, process.pid, attempt))
        if child.yields:
            await lower_session(process.pid)
        return life

    async def _live(
        self, child: Child, life: Life, past: Past, dependencies: Mapping[str, Life]
    ) -> tuple[Death, str, float]:
        """Watch one life to its end; returns how it ended, the same in words, and the grace it is due in seconds."""
        try:
            async with asyncio.timeout(child.ready_within_s):
                first = await _first(self._ready(child, life, past), *_ends(life, dependencies))
        except TimeoutError:
            return Death(None), f"was not ready within {child.ready_within_s:g} s", child.stop_within_s
        except DeliberationError as error:
            return Death(None), str(error), child.stop_within_s
        if first == 0:
            self._now_up(child, life)
            first = 1 + await _first(*_ends(life, dependencies), self._past_hope(child, life))
        ready_for_s = None if life.ready_at_s is None else time.monotonic() - life.ready_at_s
        if first == 1:
            return Death(ready_for_s), _how_it_ended(await life.process.wait()), 0.0
        if life.verdict is not None:
            return Death(ready_for_s), life.verdict.reason, 0.0 if life.verdict.at_once else child.stop_within_s
        fell_with = tuple(dependencies)[first - 2]
        # There is nothing left that it could end in order, and what it tries takes CPU from those that begin anew.
        return Death(ready_for_s, fell_with), f"ended because {fell_with} did", 0.0

    async def _past_hope(self, child: Child, life: Life) -> None:
        """Ask for signs of life until only a restart helps, which is then the life's verdict."""
        if child.lives is None:
            await asyncio.Event().wait()
            return
        pulse = Pulse(time.monotonic())
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            sign = await child.lives(life)
            match on_sign(pulse, sign, time.monotonic()):
                case GoOn(pulse, notice):
                    if notice:
                        self._report(Noticed(f"{child.name}: {notice}"))
                case StartAnew() as verdict:
                    life.verdict = verdict
                    return

    async def _ready(self, child: Child, life: Life, past: Past) -> None:
        while not await child.is_ready(life):  # noqa: ASYNC110 -- it depends on another process
            await asyncio.sleep(_PROBE_INTERVAL_S)
        if child.prepare is None:
            return
        try:
            await child.prepare()
        except DeliberationError as error:
            if not past.ever_ready:
                raise
            # It served before; ending it again and again would only take away what still works.
            self._report(Noticed(f"{child.name}: {error}"))

    def _now_up(self, child: Child, life: Life) -> None:
        life.ready_at_s = time.monotonic()
        self._up[child.name].set()
        self._write_state()
        self._report(ChildReady(child.name, child.detail, life.ready_at_s - life.started_at_s, life.attempt))

    async def _end(self, child: Child, life: Life, grace_s: float) -> None:
        self._up[child.name].clear()
        self._begun[child.name].clear()
        life.ended.set()
        await end(life.process, grace_s=grace_s)
        await sweep(self._site.mark, child.name)
        self._write_state()

    def _write_state(self) -> None:
        children = {
            child.name: {
                "pid": life.process.pid,
                "ready": self._up[child.name].is_set(),
                "attempt": life.attempt,
                "command": child.command,
                "ports": child.ports,
                "log": str(life.log),
            }
            for child in self.children
            if (life := self._lives.get(child.name)) is not None
        }
        state = {"mark": self._site.mark, "supervisor_pid": os.getpid(), **self._site.facts, "children": children}
        try:
            write_private(self._site.state_file, json.dumps(state, indent=1))
        except OSError as error:
            # A disk that is full must not end what runs: the file is written anew with the next change.
            self._report(Noticed(f"{self._site.state_file} could not be written: {error.strerror}"))


def _ends(life: Life, dependencies: Mapping[str, Life]) -> list[Coroutine[Any, Any, object]]:
    return [life.process.wait(), *(other.ended.wait() for other in dependencies.values())]


def _how_it_ended(status: int) -> str:
    return f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    """Wait until all the events are set at the same time."""
    while not all(event.is_set() for event in events):
        for event in events:
            await event.wait()


async def _first(*waits: Coroutine[Any, Any, object]) -> int:
    """Index of the first of several coroutines to end (of two, the earlier); raises what it raised, ends the rest."""
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
async def supervised(children: Sequence[Child], site: Site, report: ProgressReport) -> AsyncGenerator[Supervisor]:
    """Run the children while the body runs, which begins when all are ready; afterwards stop them.

    Raises StackFailed when one of them never gets ready. A second cancellation while stopping kills what is left.
    """
    supervisor = Supervisor(children, site, report)
    supervisor.start()
    try:
        await _first(supervisor.until_up(), supervisor.forever())
        yield supervisor
    finally:
        try:
            await supervisor.stop()
        finally:
            supervisor.kill()
