import asyncio
import os
import signal
from typing import Any

import pytest

from app.deliberation.facts import CallFinished
from tests.conditions import until_empty
from tests.e2e.conftest import SLOW, Stack, announcements_of

pytestmark = pytest.mark.e2e

VICTIMS = ["coordinator", "agent", "ray", "nats", "gateway", "deployer"]


async def victim_pids(stack: Stack, victim: str) -> list[int]:
    match victim:
        case "coordinator":
            return [await stack.replica_pid("control.coordinator")]
        case "agent":
            return [await stack.replica_pid("control.role.DEV")]
        case _:
            return [stack.child(victim)["pid"]]


def kill(victim: str, pids: list[int]) -> None:
    for pid in pids:
        # Of Ray the whole group goes: head, GCS and raylet.
        os.killpg(pid, signal.SIGKILL) if victim == "ray" else os.kill(pid, signal.SIGKILL)


async def in_the_middle(stack: Stack, deliberation_id: str) -> dict[str, CallFinished]:
    async with asyncio.timeout(60):
        while True:
            progress: dict[str, Any] | None = (await stack.read(deliberation_id))["progress"]
            if progress and progress["stage"] >= 2 and (await stack.engine_calls())["started"] >= 6:
                return await stack.recorded(deliberation_id)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("victim", VICTIMS)
async def test_a_council_survives_the_death_of(stack: Stack, victim: str) -> None:
    await stack.script(**SLOW)
    pids = await victim_pids(stack, victim)
    deliberation_id = await stack.submit(seed=3)
    before = await in_the_middle(stack, deliberation_id)
    assert len(before) >= 3
    kill(victim, pids)
    resource = await stack.until(deliberation_id, status="completed", timeout_s=120)
    assert resource["degraded"] is None and len(resource["verdict"]["ranking"]) == 3
    after = await stack.recorded(deliberation_id)
    assert {call_id: after[call_id] for call_id in before} == before
    asked = (await stack.engine_calls())["calls"]
    for call_id in before:
        assert asked[f"{deliberation_id}.{call_id}"]["started"] == 1, f"{call_id} was recorded and asked for again"
    # Usage counts every attempt that was announced. A kill may fall between the announcement and the request. Usage
    # omits an orphan's requests if another replica's outcome was written first.
    for call_id, fact in after.items():
        started = asked[f"{deliberation_id}.{call_id}"]["started"]
        assert 1 <= fact.usage.calls <= started + 1, f"{call_id}: {fact.usage.calls} attempts, {started} requests"
    ends = await stack.journal.last([f"deliberations.default.{deliberation_id}.end"])
    assert len(ends) == 1
    await until_empty(stack.journal, "DELIBERATIONS", "coordinator", 120)
    assert await announcements_of(stack.journal, deliberation_id) == ["completed"]
    await stack.until_ready()
