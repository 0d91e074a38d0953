"""Long bodies are read in turns, so that those of one tenant leave the event loop to the requests of others."""

import asyncio
import json
import time

import pytest

from app.api.request_body import OUT_OF_TURN_BYTES_MAX
from app.tenant_slots import TenantTurns
from tests.components.routes.served import Served
from tests.conditions import until

SHORT = {"task": "a"}
LONG = {"task": "a", "evidence": [{"id": "e", "title": "e", "text": "word " * (OUT_OF_TURN_BYTES_MAX // 5)}]}
HELD_S = 0.03


async def test_tenants_take_turns_and_behind_each_turn_the_loop_is_free_as_long() -> None:
    turns, begun, ended_s, began_s = TenantTurns(), list[str](), list[float](), list[float]()

    async def hold_up(tenant: str) -> None:
        await turns.begin(tenant)
        began_s.append(time.perf_counter())
        begun.append(tenant)
        time.sleep(HELD_S)  # noqa: ASYNC251 -- it is the work that holds the loop up
        ended_s.append(time.perf_counter())

    async with asyncio.TaskGroup() as group:
        for tenant in ("acme", "acme", "acme", "globex"):
            group.create_task(hold_up(tenant))
    assert begun == ["acme", "globex", "acme", "acme"]
    rests_s = [began - ended for began, ended in zip(began_s[1:], ended_s, strict=False)]
    assert min(rests_s) >= 0.9 * HELD_S


async def test_a_long_body_waits_for_its_turn_and_a_short_one_does_not(gateway: Served) -> None:
    slots = gateway.gateway["body_turns"].slots
    async with slots.slot("another"):
        long = asyncio.create_task(gateway.post(LONG))
        await until(lambda: slots.waiting("default") == 1)
        assert (await gateway.post(SHORT)).status_code == 202
        assert not long.done()
    assert (await long).status_code == 202


async def test_more_long_bodies_of_a_tenant_than_may_wait_are_refused(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.request_body.BODIES_WAITING_MAX", 1)
    slots = gateway.gateway["body_turns"].slots
    async with slots.slot("another"):
        waiting = asyncio.create_task(gateway.post(LONG))
        await until(lambda: slots.waiting("default") == 1)
        refused = await gateway.client.post(
            "/deliberations", content=json.dumps(LONG), headers={"Content-Type": "application/json"}
        )
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["code"] == "queue_full"
    assert (await waiting).status_code == 202
