"""GET /cluster on the real stack: every part tells of itself, while it works and when it is gone."""

import asyncio
import os
import signal
from collections.abc import Callable

from app.api.cluster_schemas import Cluster
from tests.e2e.conftest import Stack

ROLES = ("DEV", "QA", "ARCHITECT", "DEVOPS", "DATA")


async def until_told(stack: Stack, wanted: Callable[[Cluster], bool], timeout_s: float = 60) -> Cluster:
    """The first answer that is as wanted; an answer is at most a second old."""
    async with asyncio.timeout(timeout_s):
        while True:
            response = await stack.client.get("/cluster")
            assert response.status_code == 200, response.text
            told = Cluster.model_validate_json(response.content)
            if wanted(told):
                return told
            await asyncio.sleep(0.1)


async def test_every_part_tells_of_itself_and_of_its_versions(stack: Stack) -> None:
    told = await until_told(stack, lambda told: not told.missing)
    (application,) = told.applications
    assert application.name == "deliberations"
    assert {each.name: (each.answered, each.wanted) for each in application.deployments} == {
        "Coordinator": (1, 1),
        **{f"Agent:{role}": (1, 1) for role in ROLES},
    }
    (versions,) = told.versions.replicas
    assert versions.product == told.versions.gateway
    assert versions.python == told.versions.python and versions.ray is not None
    assert told.versions.nats_server is not None and told.versions.nats_server.startswith("2.")
    (engine,) = told.engines
    assert engine.url == stack.ready["engine_urls"][0] and engine.simulated and engine.healthy
    assert engine.roles == tuple(sorted(ROLES)) and told.versions.engines == (engine.version,)
    assert {each.name for each in told.streams} >= {"DELIBERATIONS", "KEYS", "WEBHOOKS"}
    assert {each.name for each in told.consumers} == {"coordinator", "webhooks", "attempts"}
    assert told.webhooks is not None and len(told.webhooks) == 1
    assert {each.role for each in told.agents} == set(ROLES)


async def test_what_is_under_way_is_seen_at_the_queue_the_coordinator_the_agent_and_the_engine(stack: Stack) -> None:
    await stack.script(duration_ms=5_000, faults=[], behaviour="normal")
    id = await stack.submit(num_agents=3, strategy="independent")

    def busy(told: Cluster) -> bool:
        (dev,) = [each for each in told.agents if each.role == "DEV"]
        return dev.running == 3 and told.engines[0].in_flight == 3

    told = await until_told(stack, busy, 20)
    assert told.queue.depth == told.queue.in_hand == 1 and told.coordinators[0].in_hand == 1
    assert next(each.depth for each in told.queue.roles if each.role == "DEV") == 1
    assert next(each for each in told.consumers if each.name == "coordinator").unacknowledged == 1
    await stack.client.post(f"/deliberations/{id}/cancel", json={})
    await stack.until(id, status="cancelled")
    await until_told(stack, lambda told: told.queue.depth == 0 and told.engines[0].in_flight == 0)


async def test_a_replica_that_hangs_is_missing_and_the_rest_is_told_in_time(stack: Stack) -> None:
    pid = await stack.replica_pid("control.role.DATA")
    os.kill(pid, signal.SIGSTOP)
    try:
        told = await until_told(stack, lambda told: "role DATA" in {each.part for each in told.missing}, 20)
        assert {each.role for each in told.agents} == set(ROLES) - {"DATA"}
    finally:
        os.kill(pid, signal.SIGCONT)
    await until_told(stack, lambda told: not told.missing)
