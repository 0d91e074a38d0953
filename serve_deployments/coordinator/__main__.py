"""`python -m serve_deployments.coordinator`: a coordinator whose agents are workers, until it receives a signal."""

import asyncio

from app.deliberation.errors import InvalidRequest
from app.deliberation.roles import roles_over_nats
from app.log.journal import JetStreamJournal
from app.log.signature import LogSigner
from app.observability.process import run_process, work_until_stopped
from app.observability.traces import tracer_of_environment
from app.process_settings import load_roles
from serve_deployments.arguments import CoordinatorArgs
from serve_deployments.coordinator.coordinator import CoordinatorReplica
from serve_deployments.coordinator.fact_store import APPEND_TIMEOUT_S
from serve_deployments.coordinator.task_queue import worker_agents


def _roles_of(args: CoordinatorArgs) -> tuple[str, ...]:
    roles = load_roles(args.roles_file)
    names = roles_over_nats(roles, args.agents)
    if in_ray := next((name for name in roles if name not in names), None):
        remedy = "give it `agents: nats` or set AGENTS=nats, or let Ray Serve run the coordinator"
        raise InvalidRequest(f"role {in_ray} runs in Ray: {remedy}", f"roles.{in_ray}.agents")
    return names


async def _serve(args: CoordinatorArgs) -> None:
    host, port = args.coordinator_host, args.coordinator_port
    await work_until_stopped(host, port, "coordinator_listening", _coordinate(args))


async def _coordinate(args: CoordinatorArgs) -> None:
    journal = await JetStreamJournal.connect(
        args.nats_url, name="coordinator", timeout_s=APPEND_TIMEOUT_S, signer=LogSigner.of_environment()
    )
    tracer = tracer_of_environment("coordinator")
    try:
        agents = worker_agents(journal, _roles_of(args))
        slots, clusters = args.coordinator_slots, args.coordinator_clusters
        replica = CoordinatorReplica(journal, agents, slots, args.publications, tracer=tracer, clusters=clusters)
        await replica.serve(asyncio.Event())
    finally:
        await journal.close()
        if tracer is not None:
            await tracer.close()


def _args() -> CoordinatorArgs:
    args = CoordinatorArgs()
    LogSigner.of_environment()
    _roles_of(args)
    return args


if __name__ == "__main__":
    run_process(_args, _serve)
