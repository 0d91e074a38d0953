"""`python -m serve_deployments.coordinator`: a coordinator without Ray, until it receives a signal.

Its agents are workers, or run in this process.
"""

import asyncio
from collections.abc import Mapping, Sequence

from app.deliberation.errors import InvalidRequest
from app.deliberation.ports import Agents
from app.deliberation.roles import Role, placed, run_by
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.observability.environment import tracer_of_environment
from app.observability.process import run_process, run_until_stopped
from app.process_settings import default_engines, load_roles
from serve_deployments.agent.agent import APPEND_TIMEOUT_S as AGENT_TIMEOUT_S
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.agent.replicas import keep_up, replicas_of
from serve_deployments.arguments import CoordinatorArgs, with_engines
from serve_deployments.coordinator.coordinator import CoordinatorReplica
from serve_deployments.coordinator.fact_store import APPEND_TIMEOUT_S
from serve_deployments.coordinator.local_agents import LocalAgents
from serve_deployments.coordinator.task_queue import worker_agents


def _roles_of(args: CoordinatorArgs) -> Mapping[str, Role]:
    """The roles with their runners and engines; raises InvalidRequest where one runs in Ray."""
    roles, engines = placed(load_roles(args.roles_file), args.agents), default_engines(args.engine_urls)
    for in_ray in run_by("ray", roles):
        remedy = "give it `agents: nats` or `agents: local`, or set AGENTS to one of them, or let Ray Serve run the"
        raise InvalidRequest(f"role {in_ray} runs in Ray: {remedy} coordinator", f"roles.{in_ray}.agents")
    return {name: with_engines(role, engines, args.model) for name, role in roles.items()}


class _Process:
    """A coordinator, and the agents of the roles that run beside it."""

    def __init__(self, args: CoordinatorArgs) -> None:
        self._args = args
        self._coordinator: CoordinatorReplica | None = None
        self._replicas: Sequence[AgentReplica] = ()

    async def run(self) -> None:
        args, roles = self._args, _roles_of(self._args)
        local = {name: roles[name] for name in run_by("local", roles)}
        timeout_s = AGENT_TIMEOUT_S if local else APPEND_TIMEOUT_S
        journal = await JetStreamJournal.connect(
            args.nats_url, name="coordinator", timeout_s=timeout_s, signer=LogSigner.of_environment()
        )
        tracer = tracer_of_environment("coordinator")
        try:
            async with replicas_of(local, args, journal) as self._replicas, asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(keep_up(replica))
                agents: dict[str, Agents] = {replica.name: LocalAgents(replica) for replica in self._replicas}
                self._coordinator = CoordinatorReplica(
                    journal,
                    agents | dict(worker_agents(journal, roles.keys() - local.keys())),
                    args.coordinator_slots,
                    args.publications,
                    tracer=tracer,
                    clusters=args.coordinator_clusters,
                )
                group.create_task(self._coordinator.serve(asyncio.Event()))
        finally:
            await journal.close()
            if tracer is not None:
                await tracer.close()

    async def drain(self) -> None:
        """Finish the calls under way; the deliberations are handed over afterwards."""
        if self._coordinator is not None and self._replicas:
            await self._coordinator.pause()
            await asyncio.gather(*(replica.finish(self._args.worker_drain_s) for replica in self._replicas))


async def _serve(args: CoordinatorArgs) -> None:
    process = _Process(args)
    host, port = args.coordinator_host, args.coordinator_port
    await run_until_stopped(host, port, "coordinator_listening", process.run(), process.drain)


def _args() -> CoordinatorArgs:
    args = CoordinatorArgs()
    LogSigner.of_environment()
    _roles_of(args)
    return args


if __name__ == "__main__":
    run_process(_args, _serve)
