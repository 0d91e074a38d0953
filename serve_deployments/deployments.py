"""The deployments as Ray Serve constructs them: an agent's replica and a coordinator's, with their place in Serve."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingContext
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.deliberation.calls import StageRequest
from app.deliberation.ports import Agents, AgentsLost
from app.deliberation.roles import Role
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.log.stream_settings import Publication
from app.observability.environment import tracer_of_environment
from app.observability.logs import outlast_output
from app.observability.process import settle_heap
from app.workspace.repositories import NO_REPOSITORIES, AllowedRepositories
from serve_deployments.agent.agent import APPEND_TIMEOUT_S as AGENT_TIMEOUT_S
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.coordinator.coordinator import CoordinatorReplica
from serve_deployments.coordinator.fact_store import APPEND_TIMEOUT_S as COORDINATOR_TIMEOUT_S
from serve_deployments.coordinator.task_queue import worker_agents
from serve_deployments.engine.client import Engines
from serve_deployments.identity import identity
from serve_deployments.ray_start import keep_replica_on_loopback

Handle = DeploymentHandle[Any]
CALLS = "calls"


class RayAgents:
    """`ports.Agents` over a deployment's handle, whose reply says that the replica lives and has finished."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def run(self, request: StageRequest) -> None:
        try:
            response = self._handle.run_stage.remote(request.__pydantic_serializer__.to_json(request))
            # Shielded: when the outcomes are received first, Ray need not cancel a request that is about to return.
            # Facts stop the calls of a stage that closes without them.
            await asyncio.shield(response)
        except (RayError, RayServeException) as error:
            raise AgentsLost(repr(error)[:300]) from error
        except asyncio.CancelledError as error:
            # Ray raises it for a call that it cancelled itself; only our own cancellation ends this task.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise AgentsLost(repr(error)) from error


def serve_identity() -> dict[str, Any]:
    described = identity()
    described["versions"]["ray"] = ray.__version__
    # Tests run replicas outside of Serve.
    with suppress(RayServeException):
        context = serve.get_replica_context()
        described |= {"application": context.app_name, "deployment": context.deployment, "wanted": context.world_size}
    return described


def _require_running(*tasks: asyncio.Task[Any]) -> None:
    """Raise RuntimeError from the error of a task that has ended, so that Serve replaces the replica."""
    for task in tasks:
        if task.done():
            error = None if task.cancelled() else task.exception()
            raise RuntimeError(f"a task of the replica has ended: {task.get_name()}") from error


def replicas_for_calls(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Serve's autoscaling policy for agents: as many replicas as the calls fill, of which each takes `concurrency`.

    So one is added when calls wait. Serve's own policy counts requests, which are stages of any number of calls.
    """
    calls = (context.aggregated_metrics or {}).get(CALLS)
    # No replica has reported yet.
    if not calls or context.config is None:
        return context.target_num_replicas, {}
    return sum(calls.values()) / context.config.target_ongoing_requests, {}


class Agent:
    async def __init__(
        self,
        name: str,
        role: Role,
        nats_url: str,
        stream_deltas: bool,
        publications: Sequence[Publication],
        engine_away_timeout_s: float,
        repositories: AllowedRepositories = NO_REPOSITORIES,
        workspace_dir: Path | None = None,
    ) -> None:
        outlast_output()
        keep_replica_on_loopback()
        journal = await JetStreamJournal.connect(
            nats_url, name=f"agent-{name}", timeout_s=AGENT_TIMEOUT_S, signer=LogSigner.of_environment()
        )
        self._tracer = tracer_of_environment("agent")
        engines = Engines(role.engines, fallback=role.fallback, tracer=self._tracer)
        await engines.probe()
        self._replica = AgentReplica(
            name,
            role,
            engines,
            journal,
            stream_deltas=stream_deltas,
            publications=publications,
            engine_away_timeout_s=engine_away_timeout_s,
            identity=serve_identity,
            tracer=self._tracer,
            repositories=repositories,
            workspace_dir=workspace_dir,
        )
        await self._replica.listen()
        loop = asyncio.get_running_loop()
        # Held here and watched by check_health: nothing awaits them.
        self._tasks = [
            loop.create_task(self._replica.keep(), name="keep"),
            loop.create_task(engines.watch(), name="watch"),
        ]
        settle_heap()

    # Serve calls a function that is no coroutine in a thread.
    async def check_health(self) -> None:
        _require_running(*self._tasks)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the role's number of replicas is not fixed."""
        return {CALLS: self._replica.in_flight}

    async def __del__(self) -> None:
        """Called by Serve before the replica stops: requests are over, but the calls' outcomes still count."""
        await self._replica.finish()
        await self._replica.close()
        if self._tracer is not None:
            await self._tracer.close()

    async def run_stage(self, request: bytes) -> None:
        await self._replica.run_stage(StageRequest.model_validate_json(request))


class Coordinator:
    """The Serve deployment that turns accepted deliberations into verdicts."""

    async def __init__(
        self,
        handles: dict[str, Handle],
        workers: Sequence[str],
        nats_url: str,
        slots: int,
        publications: Sequence[Publication],
        clusters: Sequence[str],
    ) -> None:
        outlast_output()
        keep_replica_on_loopback()
        journal = await JetStreamJournal.connect(
            nats_url, name="coordinator", timeout_s=COORDINATOR_TIMEOUT_S, signer=LogSigner.of_environment()
        )
        in_ray = {role: RayAgents(handle) for role, handle in handles.items()}
        agents: dict[str, Agents] = {**in_ray, **worker_agents(journal, workers)}
        self._tracer = tracer_of_environment("coordinator")
        self._replica = CoordinatorReplica(
            journal,
            agents,
            slots,
            publications,
            identity=serve_identity,
            tracer=self._tracer,
            clusters=clusters,
        )
        ready = asyncio.Event()
        # Held here and watched by check_health: Serve knows no deployment that works without being called.
        self._serving = asyncio.get_running_loop().create_task(self._replica.serve(ready), name="serve")
        waiter = asyncio.get_running_loop().create_task(ready.wait())
        await asyncio.wait({self._serving, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        await self.check_health()
        settle_heap()

    async def check_health(self) -> None:
        _require_running(self._serving)

    async def __del__(self) -> None:
        """Called by Serve before the replica stops: its executions are requeued at once."""
        self._serving.cancel()
        await asyncio.wait({self._serving})
        if self._tracer is not None:
            await self._tracer.close()
