import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import nats
import pytest

from app.log.connection import server_url
from app.planning.plans import role_deliberation_id
from tests.e2e.conftest import Stack
from tests.integration.context.redis_server import context_service, redis_server
from tests.integration.planning.conftest import plan_event

pytestmark = pytest.mark.e2e

ROLES = ("DEV", "QA")


async def announced_plan(stack: Stack, plan_id: str, story_id: str, **more: Any) -> dict[str, dict[str, Any]]:
    event = plan_event(plan_id=plan_id, story_id=story_id, roles=list(ROLES), **more)
    planner = await nats.connect(server_url(stack.nats_url("planner")), inbox_prefix=b"_INBOX.planner")
    await planner.jetstream().publish("planning.plan.approved", json.dumps(event).encode())
    await planner.close()
    ids = {role: role_deliberation_id("default", plan_id, role) for role in ROLES}
    async with asyncio.timeout(60):
        for id in ids.values():
            while (await stack.client.get(f"/deliberations/{id}")).status_code == 404:
                await asyncio.sleep(0.05)
    return {role: await stack.until(id, status="completed") for role, id in ids.items()}


async def prompts_of(stack: Stack, deliberations: dict[str, dict[str, Any]]) -> list[str]:
    detail = (await stack.engine.get("/simulator/calls", params={"detail": True})).json()
    tasks = {found["task"] for found in deliberations.values()}
    shown = [entry["messages"][-1]["content"] for entry in detail["prompts"]]
    return [prompt for prompt in shown if any(task in prompt for task in tasks)]


async def until_known(stack: Stack, story_id: str, decisions: list[str]) -> None:
    question = {"tenant": "default", "story_id": story_id, "options": {"max_tokens": 8_192}}
    async with asyncio.timeout(30):
        while True:
            known = json.loads(await stack.journal.ask("context.get", json.dumps(question).encode(), timeout_s=5))
            if all(decision in known["context_text"] for decision in decisions):
                return
            await asyncio.sleep(0.05)


def beginning(found: dict[str, Any]) -> str:
    return found["verdict"]["content"][:200]


async def test_a_second_plan_is_shown_what_the_first_ones_councils_decided(stack: Stack, tmp_path: Path) -> None:
    story_id, plan_ids = f"story-{uuid.uuid4().hex[:8]}", [f"plan-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    async with redis_server(tmp_path) as redis_url:
        async with context_service(server_url(stack.nats_url("context")), redis_url):
            title = "Choose how users log in"
            first = await announced_plan(stack, plan_ids[0], story_id, title=title, description=None)
            assert {found["context"]["status"] for found in first.values()} == {"empty"}
            decisions = [beginning(found) for found in first.values()]
            assert all(decisions) and not any("# Evidence" in prompt for prompt in await prompts_of(stack, first))
            await until_known(stack, story_id, decisions)
        # Killed and started again, the service has forgotten nothing.
        async with context_service(server_url(stack.nats_url("context")), redis_url):
            second = await announced_plan(stack, plan_ids[1], story_id, title="Build the login", description=None)
    assert {found["context"]["status"] for found in second.values()} == {"given"}
    assert all(found["degraded"] is None for found in second.values())
    prompts = await prompts_of(stack, second)
    assert len(prompts) == sum(found["usage"]["calls"] for found in second.values())
    for prompt in prompts:
        assert "Evidence context:story:\n<<<peer-text " in prompt and "Choose how users log in" in prompt
        assert all(decision in prompt for decision in decisions)


async def test_without_a_context_service_councils_end_and_say_so(stack: Stack) -> None:
    found = await stack.until(await stack.submit(metadata={"story_id": "story-alone"}), status="completed")
    assert found["context"] == {
        "story_id": "story-alone",
        "status": "unanswered",
        "version": None,
        "detail": "nothing listens on context.get",
    }
    assert found["degraded"]["reasons"] == ["no context: nothing listens on context.get"]
    assert 'deliberations_contexts_total{status="unanswered"}' in (await stack.client.get("/metrics")).text
