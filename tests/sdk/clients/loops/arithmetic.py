"""The tools of every loop, what they were called with, and how a program runs its loops."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import BaseModel

MODEL = "vote/DEV"
called: list[list[Any]] = []


class Sum(BaseModel):
    """A sum."""

    value: int
    words: str


def add(a: int, b: int) -> int:
    """Add two integers."""
    called.append(["add", a, b])
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    called.append(["multiply", a, b])
    return a * b


def divide(a: int, b: int) -> int:
    """Divide an integer by another one."""
    called.append(["divide", a, b])
    return a // b


def run(loops: Mapping[str, Callable[[str, str], Awaitable[str | Sum]]]) -> None:
    """Run each loop with the URL of OpenAI's API and the task, and print its calls and its answer, by its name."""
    asyncio.run(_run(loops, *sys.argv[1:]))


async def _run(loops: Mapping[str, Callable[[str, str], Awaitable[str | Sum]]], url: str, task: str) -> None:
    told: dict[str, Any] = {}
    for name, loop in loops.items():
        called.clear()
        answer = await loop(f"{url}/v1", task)
        told[name] = {"called": [*called], "answer": answer.model_dump() if isinstance(answer, Sum) else answer}
    # Smolagents leaves its last line open.
    print(f"\n{json.dumps(told)}")
