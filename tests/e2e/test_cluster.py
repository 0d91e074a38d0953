import asyncio
import os
import signal
from collections.abc import Callable

from app.api.cluster_schemas import Cluster
from tests.e2e.conftest import Stack

ROLES = ("DEV", "QA", "ARCHITECT", "DEVOPS", "DATA")


async def cluster_until(stack: Stack, wanted: Callable[[Cluster], bool], timeout_s: float = 60) -> Cluster:
    async with asyncio.timeout(timeout_s):
        while True:
            response = await stack.client.get("/cluster")
            assert response.status_code == 200, response.text
            cluster = Cluster.model_validate_json(response.content)
            if wanted(cluster):
                return cluster
            await asyncio.sleep(0.1)


async def test_every_part_reports_its_status_and_versions(stack: Stack) -> None:
    every_role = [{"role": role, "count": 1} for role in ROLES]
    await stack.until(await stack.submit(agents=every_role, strategy="independent"), status="completed")
    cluster = await cluster_until(stack, lambda cluster: not cluster.missing)
    (application,) = cluster.applications
    assert application.name == "deliberations"
    assert {each.name: (each.answered, each.wanted) for each in application.deployments} == {
        "Coordinator": (1, 1),
        **{f"Agent:{role}": (1, 1) for role in ROLES},
    }
    # Archive, planning and webhooks run without Ray.
    with_ray, without = sorted(cluster.versions.replicas, key=lambda each: each.ray is None)
    assert with_ray.product == without.product == cluster.versions.gateway
    assert with_ray.python == without.python == cluster.versions.python and with_ray.ray is not None
    assert cluster.versions.nats_server is not None and cluster.versions.nats_server.startswith("2.")
    (engine,) = cluster.engines
    assert engine.url == stack.ready["engine_urls"][0] and engine.simulated and engine.healthy
    assert engine.roles == tuple(sorted(ROLES)) and cluster.versions.engines == (engine.version,)
    assert {each.name for each in cluster.streams} >= {"DELIBERATIONS", "KEYS", "WEBHOOKS"}
    assert {each.name for each in cluster.consumers} == {
        "coordinator",
        "webhooks",
        "attempts",
        "archive",
        "planning",
        "context",
    }
    assert cluster.webhooks is not None and len(cluster.webhooks) == 1
    assert {each.role for each in cluster.agents} == set(ROLES)


async def test_running_work_is_reported_by_queue_coordinator_agent_and_engine(stack: Stack) -> None:
    await stack.script(duration_ms=5_000, faults=[], behaviour="normal")
    id = await stack.submit(num_agents=3, strategy="independent")

    def busy(cluster: Cluster) -> bool:
        # A busy machine may answer an inquiry too late; the next one is answered.
        running = [each.running for each in cluster.agents if each.role == "DEV"]
        return running == [3] and [each.in_flight for each in cluster.engines] == [3]

    cluster = await cluster_until(stack, busy, 20)
    assert cluster.queue.depth == cluster.queue.in_hand == 1 and cluster.coordinators[0].in_hand == 1
    assert next(each.depth for each in cluster.queue.roles if each.role == "DEV") == 1
    assert next(each for each in cluster.consumers if each.name == "coordinator").unacknowledged == 1
    await stack.client.post(f"/deliberations/{id}/cancel", json={})
    await stack.until(id, status="cancelled")
    await cluster_until(stack, lambda cluster: cluster.queue.depth == 0 and cluster.engines[0].in_flight == 0)


async def test_a_hanging_replica_is_reported_missing_and_the_others_are_reported_in_time(stack: Stack) -> None:
    others = {each.role for each in (await cluster_until(stack, lambda found: not found.missing)).agents} - {"DEV"}
    pid = await stack.replica_pid("control.role.DEV")
    os.kill(pid, signal.SIGSTOP)
    try:
        cluster = await cluster_until(stack, lambda cluster: "role DEV" in {each.part for each in cluster.missing}, 20)
        assert {each.role for each in cluster.agents} == others
    finally:
        os.kill(pid, signal.SIGCONT)
    await cluster_until(stack, lambda cluster: not cluster.missing)
