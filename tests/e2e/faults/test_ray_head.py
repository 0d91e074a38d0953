"""Ray's head keeps its state in Redis, so the workers survive its death.

pytest -s tests/e2e/faults/test_ray_head.py
"""

import asyncio
import os
import secrets
import shutil
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from app.cli.stack.children import stack_children
from app.cli.stack.layout import Layout, StackOptions, plan_stack
from app.cli.stack.supervisor import Child, Supervisor, marked, supervised, sweep
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from tests.conditions import until
from tests.conftest import free_port
from tests.deploy.manifests import the, written
from tests.e2e.conftest import ONE_ROLE, TASK, stored
from tests.integration.context.redis_server import redis_server

pytestmark = pytest.mark.e2e

RAY_SERVICE = the(written("base"), "RayService/agents")["spec"]
IN_FLIGHT = 6
# KubeRay sets this variable for workers where `gcsFaultToleranceOptions` are given.
WAIT_FOR_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
# Of `ray.env` those that a test on one machine needs beside the manifest's.
KEPT = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S")


@dataclass
class Cluster:
    """A head and a worker as two Ray nodes; `dashboard` takes the Serve configuration, as KubeRay sends it."""

    layout: Layout
    supervisor: Supervisor
    dashboard: httpx.AsyncClient
    client: httpx.AsyncClient
    engine: httpx.AsyncClient
    journal: JetStreamJournal

    def replicas(self) -> dict[int, str]:
        return {each.pid: each.command for each in marked(self.layout.mark, "node") if "ServeReplica" in each.command}

    async def status(self) -> str:
        """Returns the application's status by Serve's controller; empty while it does not answer."""
        try:
            response = await self.dashboard.get("/api/serve/applications/")
        except httpx.TransportError:
            return ""
        applications = response.json()["applications"] if response.status_code == 200 else {}
        return applications["deliberations"]["status"] if applications else ""

    async def until_running(self) -> None:
        async with asyncio.timeout(60):
            while await self.status() != "RUNNING":
                await asyncio.sleep(0.1)

    async def council(self) -> dict[str, Any]:
        response = await self.client.post("/deliberations", json={"task": TASK}, headers={"Prefer": "wait=60"})
        return response.raise_for_status().json()

    async def kill_head(self) -> None:
        # Ray looks for a head beside it by this file and by the other processes, which a pod does not see.
        (self.layout.ray_dir / "ray_current_cluster").unlink()
        self.supervisor.ready["head"].clear()
        assert await sweep(self.layout.mark, "head") == []


def ray_node(ray: Child, name: str, group: dict[str, Any], *options: str, **environment: str) -> Child:
    """Returns a node with the variables that the manifest gives the pods of a group."""
    (container,) = group["template"]["spec"]["containers"]
    declared = {each["name"]: each["value"] for each in container["env"] if each["name"].startswith("RAY_")}
    inherited = {key: value for key, value in ray.environment.items() if not key.startswith("RAY_") or key in KEPT}
    shared = ("--block", "--log-color=false", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000")
    return replace(
        ray,
        name=name,
        command=(ray.command[0], "start", *options, *shared),
        environment={**inherited, **declared, **environment},
        # Ray checks its daemons itself, as in a pod.
        health_check=None,
    )


@asynccontextmanager
async def running(place: Path, redis_address: str, redis_password: str) -> AsyncGenerator[Cluster]:
    options = StackOptions(
        port=0, nats_port=0, data_dir=place, roles_file=ONE_ROLE, simulate=("--duration-ms", "500"),
    )  # fmt: skip
    layout, dashboard_port = plan_stack(options, lambda _: None), free_port()
    children = {child.name: child for child in stack_children(layout)}
    spec, port = RAY_SERVICE["rayClusterConfig"], layout.ports["ray"]
    of_head = (f"--port={port}", f"--dashboard-port={dashboard_port}", f"--temp-dir={layout.ray_dir}")
    head = ray_node(
        children["ray"], "head", spec["headGroupSpec"],
        "--head", "--num-cpus=0", f"--redis-password={redis_password}", *of_head,
        RAY_REDIS_ADDRESS=redis_address, RAY_external_storage_namespace="agents",
    )  # fmt: skip
    (group,) = spec["workerGroupSpecs"]
    node = ray_node(children["ray"], "node", group, f"--address=127.0.0.1:{port}", "--num-cpus=1", **WAIT_FOR_HEAD)
    parts = [children["nats"], children["simulator"], head, replace(node, needs=("head",)), children["gateway"]]
    token = {"Authorization": f"Bearer {(layout.data_dir / 'ray_token').read_text()}"}
    async with (
        supervised(parts, layout.stack_run, lambda _: None) as supervisor,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{dashboard_port}", headers=token, timeout=30) as dashboard,
        httpx.AsyncClient(base_url=layout.url, timeout=70) as client,
        httpx.AsyncClient(base_url=layout.engine_urls[0]) as engine,
    ):
        signer = LogSigner.of_file(layout.log_key_file)
        journal = await JetStreamJournal.connect(layout.nats_url_of("gateway"), name="tests", signer=signer)
        yield Cluster(layout, supervisor, dashboard, client, engine, journal)
        await journal.close()
    shutil.rmtree(layout.ray_dir)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setenv("WEBHOOKS", "false")
    password = secrets.token_hex(16)
    async with (
        redis_server(tmp_path, password) as url,
        running(tmp_path / "data", urlsplit(url).netloc, password) as it,
    ):
        configuration = yaml.safe_load(RAY_SERVICE["serveConfigV2"])
        (await it.dashboard.put("/api/serve/applications/", json=configuration)).raise_for_status()
        await it.until_running()
        async with asyncio.timeout(60):
            while (await it.client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
        yield it


async def test_a_killed_head_returns_with_its_replicas_and_no_council_notices(cluster: Cluster) -> None:
    before, councils, stopping = cluster.replicas(), list[dict[str, Any]](), asyncio.Event()

    async def one_after_another() -> None:
        while not stopping.is_set():
            councils.append(await cluster.council())

    async with asyncio.TaskGroup() as load:
        for _ in range(IN_FLIGHT):
            load.create_task(one_after_another())
        await until(lambda: len(councils) >= IN_FLIGHT, 60)
        killed_s, ended = monotonic(), len(councils)
        await cluster.kill_head()
        await until(lambda: len(councils) >= ended + IN_FLIGHT, 60)
        await cluster.supervisor.ready["head"].wait()
        head_s = monotonic() - killed_s
        await cluster.until_running()
        controller_s, meanwhile = monotonic() - killed_s, len(councils) - ended
        assert cluster.replicas().keys() == before.keys()
        stopping.set()

    engine = (await cluster.engine.get("/simulator/calls")).raise_for_status().json()
    ends = await stored(cluster.journal, "DELIBERATIONS", "deliberations.*.*.end")
    assert Counter(each["status"] for each in councils) == {"completed": len(councils)}
    assert set(ends.values()) == {1} and len(ends) == len(councils)
    assert {call["started"] for call in engine["calls"].values()} == {1}

    # The new head knows the replicas: it replaces one that dies.
    (agent,) = (pid for pid, command in before.items() if "Agent" in command)
    replaced_from_s = monotonic()
    os.kill(agent, signal.SIGKILL)
    last = await cluster.council()
    print(
        f"{len(councils)} councils, {meanwhile} of them without a head or a controller. The head was back after "
        f"{head_s:.1f} s, Serve's controller after {controller_s:.1f} s. A council after the death of its agent's "
        f"replica took {monotonic() - replaced_from_s:.1f} s."
    )
    assert last["status"] == "completed"
    assert agent not in cluster.replicas() and len(cluster.replicas()) == len(before)
