"""Slots are held by as many calls as there are, and the waiting call with the lowest number is next."""

import asyncio
from contextlib import suppress

from serve_deployments.agent.slots import PrioritySlots
from tests.conditions import until


class Calls:
    """Calls that hold a slot until they are told to end."""

    def __init__(self, size: int) -> None:
        self.slots = PrioritySlots(size)
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def ask(self, name: str, priority: int) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._call(name, priority))
        await asyncio.sleep(0)

    async def _call(self, name: str, priority: int) -> None:
        async with self.slots.held(priority):
            self.begun.append(name)
            await self.ends[name].wait()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        with suppress(asyncio.CancelledError):
            await self.tasks[name]


async def test_the_lowest_number_is_next_then_the_oldest() -> None:
    calls = Calls(2)
    for name, priority in {"a": 1_001, "b": 1_001, "batch": 1_001, "early": 3, "late": 3, "last stage": 1}.items():
        await calls.ask(name, priority)
    assert calls.begun == ["a", "b"], "what has a slot keeps it"
    for ended, begun in {"a": "last stage", "b": "early", "last stage": "late", "early": "batch"}.items():
        await calls.end(ended)
        await until(lambda begun=begun: calls.begun[-1] == begun)
    await calls.end("late")
    await calls.end("batch")


async def test_a_cancelled_call_loses_no_slot() -> None:
    calls = Calls(1)
    for name in ("held", "waiting", "granted", "next"):
        await calls.ask(name, 1)
    await calls.cancel("waiting")
    calls.ends["held"].set()
    await asyncio.sleep(0)
    # The slot is given to it now, and it has not run since.
    await calls.cancel("granted")
    await until(lambda: calls.begun[-1] == "next")
    await calls.end("next")
    await calls.ask("free again", 1)
    assert calls.begun[-1] == "free again"
    await calls.end("free again")
