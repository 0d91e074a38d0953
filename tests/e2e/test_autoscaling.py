"""Ray Serve scales a role's replicas by its calls.

pytest -s tests/e2e/test_autoscaling.py
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from app.deliberation.facts import CallFinished, Completed, decode
from app.deliberation.ports import Record
from tests.conditions import until
from tests.e2e.conftest import Stack, own_stack

pytestmark = pytest.mark.e2e

CONCURRENCY = 4
ROLES = f"""
roles:
  DEV:
    persona: You are a senior software developer.
    replicas: {{min: 1, max: 3}}
    concurrency: {CONCURRENCY}
"""
# One stage of three calls: of four such deliberations at once the calls need more replicas, and the stages do not.
OF_THREE_CALLS = {"strategy": "independent", "num_agents": 3}
CALL_MS = 400
SUBMITS_BEFORE = 40
UP_WITHIN_S = 30
DOWN_WITHIN_S = 75
SUBMIT_P99_MAX_S = 0.5


class Load:
    """Deliberations, as many at a time as `keep` says, and what the log holds of them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.ends: dict[str, type] = {}
        self.calls: dict[str, CallFinished] = {}
        self.submits_s: list[float] = []

    def take(self, record: Record) -> None:
        fact = decode(record.data)
        if isinstance(fact, CallFinished):
            self.calls[f"{fact.deliberation_id}.{fact.call_id}"] = fact
        else:
            self.ends[fact.deliberation_id] = type(fact)

    async def _one_after_another(self, stopping: asyncio.Event, body: dict[str, Any]) -> None:
        while not stopping.is_set():
            began_s = monotonic()
            id = await self._stack.submit(**body)
            self.submits_s.append(monotonic() - began_s)
            await until(lambda id=id: id in self.ends, 60)

    @asynccontextmanager
    async def keep(self, number: int, **body: Any) -> AsyncGenerator[None]:
        """Leaving it waits for the end of what was submitted."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(number):
                group.create_task(self._one_after_another(stopping, body))
            yield
            stopping.set()

    def take_submits_s(self) -> list[float]:
        """Returns the durations of the submissions since the last time that it was asked for, the shortest first."""
        taken, self.submits_s = sorted(self.submits_s), []
        return taken


def p99(ordered: list[float]) -> float:
    return ordered[ceil(0.99 * len(ordered)) - 1]


async def replicas(stack: Stack) -> int:
    """The replicas that answer; a stopping one answers until its calls have ended."""
    (role,) = (await stack.client.get("/roles")).raise_for_status().json()["items"]
    return role["live"]["replicas"] if role["live"] else 0


async def seconds_until(stack: Stack, low: int, high: int, within_s: float) -> float:
    began_s = monotonic()
    async with asyncio.timeout(within_s):
        while not low <= await replicas(stack) <= high:
            await asyncio.sleep(0.2)
    return monotonic() - began_s


async def test_replicas_follow_the_calls_and_none_is_lost_or_asked_twice(tmp_path: Path) -> None:
    (tmp_path / "roles.yaml").write_text(ROLES)
    async with own_stack(tmp_path / "data", "--roles", str(tmp_path / "roles.yaml")) as stack:
        load = Load(stack)
        heard = ["deliberations.*.*.end", "deliberations.*.*.call.*.finished"]
        subscription = await stack.journal.subscribe(heard, load.take)
        await stack.script(duration_ms=CALL_MS)
        async with load.keep(1, **OF_THREE_CALLS):
            await until(lambda: len(load.submits_s) >= SUBMITS_BEFORE, 60)
        assert await replicas(stack) == 1
        before_s = load.take_submits_s()

        async with load.keep(4, **OF_THREE_CALLS):
            grown_s = await seconds_until(stack, 2, 3, UP_WITHIN_S)
        scaling_s = load.take_submits_s()

        # Few long calls, one for each replica, so that those that stop have calls under way.
        await stack.script(duration_ms=8_000)
        async with load.keep(CONCURRENCY - 1, strategy="single"):
            shrunk_s = await seconds_until(stack, 1, 1, DOWN_WITHIN_S)

        engine = await stack.engine_calls()
        await subscription.close()
    print(
        f"above the minimum after {grown_s:.0f} s, at it after {shrunk_s:.0f} s; {len(load.ends)} deliberations; "
        f"p99 of {len(before_s)} submits before {p99(before_s) * 1000:.0f} ms, "
        f"of {len(scaling_s)} while replicas start {p99(scaling_s) * 1000:.0f} ms"
    )
    assert Counter(load.ends.values()) == {Completed: len(load.ends)}
    assert {name: call["started"] for name, call in engine["calls"].items()} == dict.fromkeys(load.calls, 1)
    usages = [fact.usage for fact in load.calls.values()]
    billed = sum(usage.prompt_tokens for usage in usages), sum(usage.completion_tokens for usage in usages)
    assert billed == (engine["prompt_tokens"], engine["completion_tokens"])
    assert p99(scaling_s) < SUBMIT_P99_MAX_S
