"""Processes that can be killed at any of their steps, and the numbers that the steps have."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")
_Returned = TypeVar("_Returned")

PROCESS: ContextVar["Process | None"] = ContextVar("PROCESS", default=None)


@dataclass(frozen=True, slots=True)
class Point:
    """A step that was reached: its number from 1, which process makes it, what it is, and whether it has an effect."""

    number: int
    process: str
    step: str
    effective: bool


@dataclass
class Points:
    """Numbers every step of every process in the order in which they come.

    `before` and `after` hold what is done at a number: before the step has had its effect, and when it has had it but
    nobody has been told. They are called with the process that makes the step; `watch`, with its name as well, before
    every step.
    """

    before: dict[int, Callable[["Process"], None]] = field(default_factory=dict[int, Callable[["Process"], None]])
    after: dict[int, Callable[["Process"], None]] = field(default_factory=dict[int, Callable[["Process"], None]])
    reached: list[Point] = field(default_factory=list[Point])
    watch: Callable[["Process", str], None] | None = None


class Process:
    """Tasks that live and die together, as those of an operating system's process do.

    Whatever they do to the world goes through `step`. Of a process that is dead nothing reaches the world any more.
    """

    def __init__(self, name: str, points: Points) -> None:
        self.name = name
        self.alive = True
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)
        self._points = points
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deaths: list[Callable[[], None]] = []
        self._going_on: asyncio.Event | None = None

    def start(self, work: Coroutine[Any, Any, _Returned]) -> asyncio.Task[_Returned]:
        """A task of this process; so are all that it starts."""
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        """Count a task in, to be ended with the process."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_death(self, call: Callable[[], None]) -> None:
        """Call `call` at the moment of death: what the operating system does, such as to close connections."""
        self._deaths.append(call)

    def die(self) -> None:
        """As SIGKILL does. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        for call in self._deaths:
            call()
        self._bury()

    def _bury(self) -> None:
        # Again and again, because a task may await in its `finally`, whereas the dead do nothing more.
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            asyncio.get_running_loop().call_soon(self._bury)

    def stop(self) -> None:
        """As SIGSTOP does: no step begins or ends until `go_on`."""
        self._going_on = self._going_on or asyncio.Event()

    def go_on(self) -> None:
        """As SIGCONT does. Idempotent."""
        if self._going_on is not None:
            self._going_on.set()
            self._going_on = None

    @property
    def stopped(self) -> bool:
        """Whether it is stopped."""
        return self._going_on is not None

    async def _turn(self) -> None:
        while self._going_on is not None:
            await self._going_on.wait()
        if not self.alive:
            raise asyncio.CancelledError

    async def step(self, name: str, effect: Callable[[], _Answer]) -> _Answer:
        """Have `effect` on the world and return its answer; others may come in between, before it and after it.

        `nothing` is the effect of a step that takes something in: to die before it is to die after it.
        """
        await self._turn()
        points = self._points
        points.reached.append(Point(len(points.reached) + 1, self.name, name, effect is not nothing))
        number = len(points.reached)
        if points.watch is not None:
            points.watch(self, name)
        if number in points.before:
            points.before[number](self)
        await asyncio.sleep(0)
        await self._turn()
        answer = effect()
        if number in points.after:
            points.after[number](self)
        await asyncio.sleep(0)
        await self._turn()
        return answer


def nothing() -> None:
    """No effect on the world."""


def adopting(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Context | None = None
) -> "asyncio.Task[Any]":
    """A task factory: each task belongs to the process that started it."""
    task = asyncio.Task(work, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.adopt(task)
        if not process.alive:
            task.cancel()
    return task
