import asyncio
import os
import signal
from collections.abc import Callable

from app.api.installation import Installation
from tests.e2e.conftest import Stack

ROLES = ("DEV", "QA", "ARCHITECT", "DEVOPS", "DATA")


def sound(installation: Installation) -> bool:
    return all(fault.severity == "info" for fault in installation.findings)


async def status_until(stack: Stack, wanted: Callable[[Installation], bool], timeout_s: float = 60) -> Installation:
    async with asyncio.timeout(timeout_s):
        while True:
            response = await stack.client.get("/status")
            assert response.status_code == 200, response.text
            installation = Installation.model_validate_json(response.content)
            if wanted(installation):
                return installation
            await asyncio.sleep(0.1)


async def test_every_part_reports_its_status_and_versions(stack: Stack) -> None:
    every_role = [{"role": role, "count": 1} for role in ROLES]
    await stack.until(await stack.submit(agents=every_role, strategy="independent"), status="completed")
    installation = await status_until(stack, sound)
    (application,) = installation.applications
    assert application.name == "deliberations"
    assert {each.name: (each.answered, each.wanted) for each in application.deployments} == {
        "Coordinator": (1, 1),
        **{f"Agent:{role}": (1, 1) for role in ROLES},
    }
    # Archive and webhooks run without Ray.
    with_ray, without = sorted(installation.versions.replicas, key=lambda each: each.ray is None)
    assert with_ray.product == without.product == installation.versions.gateway
    assert with_ray.python == without.python == installation.versions.python and with_ray.ray is not None
    assert installation.versions.nats_server is not None and installation.versions.nats_server.startswith("2.")
    (engine,) = installation.engines
    assert engine.url == stack.ready["engine_urls"][0] and engine.simulated and engine.healthy
    assert engine.roles == tuple(sorted(ROLES)) and installation.versions.engines == (engine.version,)
    assert {each.name for each in installation.streams} >= {"DELIBERATIONS", "KEYS", "WEBHOOKS"}
    assert {each.name for each in installation.consumers} == {
        "coordinator",
        "webhooks",
        "attempts",
        "archive",
        "planning",
        "context",
    }
    assert installation.webhooks is not None and len(installation.webhooks) == 1
    assert {each.role for each in installation.agents} == set(ROLES)


async def test_running_work_is_reported_by_queue_coordinator_agent_and_engine(stack: Stack) -> None:
    await stack.script(duration_ms=5_000, faults=[], behaviour="normal")
    id = await stack.submit(num_agents=3, strategy="independent")

    def busy(installation: Installation) -> bool:
        # A busy machine may answer an inquiry too late; the next one is answered.
        running = [each.running for each in installation.agents if each.role == "DEV"]
        return running == [3] and [each.in_flight for each in installation.engines] == [3]

    installation = await status_until(stack, busy, 20)
    assert installation.queue.depth == installation.queue.in_hand == 1 and installation.coordinators[0].in_hand == 1
    assert next(each.depth for each in installation.queue.roles if each.role == "DEV") == 1
    assert next(each for each in installation.consumers if each.name == "coordinator").unacknowledged == 1
    await stack.client.post(f"/deliberations/{id}/cancel", json={})
    await stack.until(id, status="cancelled")
    await status_until(
        stack, lambda installation: installation.queue.depth == 0 and installation.engines[0].in_flight == 0
    )


async def test_a_hanging_replica_is_reported_missing_and_the_others_are_reported_in_time(stack: Stack) -> None:
    others = {each.role for each in (await status_until(stack, sound)).agents} - {"DEV"}
    pid = await stack.replica_pid("control.role.DEV")
    os.kill(pid, signal.SIGSTOP)
    try:
        installation = await status_until(stack, lambda installation: not sound(installation), 20)
        assert installation.findings[0].code == "role_missing"
        assert {agent.role for agent in installation.agents} == others
    finally:
        os.kill(pid, signal.SIGCONT)
    await status_until(stack, sound)
