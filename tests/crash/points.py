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
    number: int
    process: str
    step: str
    effective: bool


@dataclass
class Points:
    """Numbers every step of every process in order.

    `before` and `after` hold hooks by number: before the step's effect, and after it but before its answer. They get
    the step's process; `watch` gets the step's name too, before every step.
    """

    before: dict[int, Callable[["Process"], None]] = field(default_factory=dict[int, Callable[["Process"], None]])
    after: dict[int, Callable[["Process"], None]] = field(default_factory=dict[int, Callable[["Process"], None]])
    reached: list[Point] = field(default_factory=list[Point])
    watch: Callable[["Process", str], None] | None = None


class Process:
    """Tasks that live and die together, like those of an operating system's process.

    All their effects go through `step`. A dead process has no more effects.
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
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_death(self, call: Callable[[], None]) -> None:
        self._deaths.append(call)

    def die(self) -> None:
        if not self.alive:
            return
        self.alive = False
        for call in self._deaths:
            call()
        self._bury()

    def _bury(self) -> None:
        # Repeated, because a task may await in its `finally`, and a dead process does nothing more.
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            asyncio.get_running_loop().call_soon(self._bury)

    def stop(self) -> None:
        self._going_on = self._going_on or asyncio.Event()

    def go_on(self) -> None:
        if self._going_on is not None:
            self._going_on.set()
            self._going_on = None

    @property
    def stopped(self) -> bool:
        return self._going_on is not None

    async def _turn(self) -> None:
        while self._going_on is not None:
            await self._going_on.wait()
        if not self.alive:
            raise asyncio.CancelledError

    async def step(self, name: str, effect: Callable[[], _Answer]) -> _Answer:
        """Run `effect` and return its answer; other processes may run before and after it.

        `nothing` is the effect of a step that only receives: death before it equals death after it.
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
    task = asyncio.Task(work, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.adopt(task)
        if not process.alive:
            task.cancel()
    return task
