"""A worker: replicas of some roles in a process without Ray, which pull tasks from NATS.

A task is removed once the log holds the outcome of each of its calls. When a worker dies before, the server gives the
task to another one, which makes the calls that the log does not hold.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import structlog

from app.deliberation.calls import StageRequest
from app.deliberation.errors import InvalidRequest, JournalUnavailable
from app.deliberation.facts import prefix
from app.deliberation.roles import Role, roles_over_nats
from app.log.journal import JetStreamJournal
from app.log.queue_worker import QueueWorker
from app.log.signature import LogSigner
from app.log.stream_settings import ACK_WAIT_S_MIN, TASKS_STREAM, worker_consumer
from app.log.work_queue import QueueItem
from app.observability.process import health_server, stop_signal
from app.observability.traces import tracer_of_environment
from app.process_settings import default_engines, load_roles
from serve_deployments.agent.agent import APPEND_TIMEOUT_S, AgentReplica
from serve_deployments.arguments import WorkerArgs, with_engines
from serve_deployments.engine.client import Engines

# Three of them within the shortest `ack_wait`, as for coordinators.
HEARTBEAT_S = ACK_WAIT_S_MIN / 3
# Seconds that the calls of a worker may take that ends by an error.
FINISH_WITHIN_S = 4.5
# A task that is older may have been another worker's, although the server does not know it any more.
FRESH_S = 0.5

log = structlog.get_logger(__name__)


class RoleWorker:
    def __init__(self, replica: AgentReplica) -> None:
        self.replica = replica
        consumer, slots = worker_consumer(replica.name), replica.role.concurrency
        self._queue = QueueWorker(replica.journal, TASKS_STREAM, consumer, slots, self._work, progress_s=HEARTBEAT_S)

    async def run(self) -> None:
        """Take tasks until cancelled; raises JournalUnavailable when the role's consumer is not declared."""
        journal, consumer = self.replica.journal, worker_consumer(self.replica.name)
        found = await journal.request(f"$JS.API.CONSUMER.INFO.{TASKS_STREAM}.{consumer}")
        if error := found.get("error"):
            detail = f"{TASKS_STREAM}/{consumer}: {error.get('description')}"
            raise JournalUnavailable(f"{detail}; declare it by `AGENTS=nats deliberate streams apply`")
        await self.replica.listen()
        async with asyncio.TaskGroup() as group:
            for running in (self.replica.keep(), self.replica.engines.watch(), self._queue.run()):
                group.create_task(running)

    async def drain(self, within_s: float) -> None:
        await self._queue.drain(within_s)

    async def _work(self, item: QueueItem) -> None:
        request, now = StageRequest.model_validate_json(item.record.data), datetime.now(UTC)
        again = item.deliveries > 1 or (now - request.asked_at).total_seconds() > FRESH_S
        if not again or not await self._is_over(request, now):
            resumed = request.resumed or again
            await self.replica.run_stage(request.model_copy(update={"resumed": resumed}))
        # Its prompts must not outlive it in the server's files, which an acknowledgement does not overwrite.
        await self.replica.journal.erase(TASKS_STREAM, item.record.sequence)

    async def _is_over(self, request: StageRequest, now: datetime) -> bool:
        """Whether nobody waits for the outcomes: the deadline is over, or the deliberation has ended or was deleted."""
        if now >= request.deadline_at:
            return True
        subject = prefix(request.tenant, request.deliberation_id)
        return bool(await self.replica.journal.last([f"{subject}.end", f"{subject}.deleted"]))


def roles_of(args: WorkerArgs) -> Mapping[str, Role]:
    """The roles that this worker serves, with engines and concurrency; raises InvalidRequest for unknown or none."""
    roles, engines = load_roles(args.roles_file), default_engines(args.engine_urls)
    names = args.worker_roles or roles_over_nats(roles, args.agents)
    if not names:
        raise InvalidRequest("no role runs over NATS: set AGENTS=nats, or name a role by --role", "role")
    if unknown := next((name for name in names if name not in roles), None):
        raise InvalidRequest(f"--role: there is no role {unknown!r}; the roles are {', '.join(roles)}", "role")
    bound = {} if args.worker_concurrency is None else {"concurrency": args.worker_concurrency}
    return {name: with_engines(roles[name], engines, args.model).model_copy(update=bound) for name in names}


@asynccontextmanager
async def workers_of(args: WorkerArgs) -> AsyncGenerator[Sequence[RoleWorker]]:
    """A connected worker of each role. Waits for the log without a limit; raises JournalUnavailable if it refuses."""
    roles = roles_of(args)
    journal = await JetStreamJournal.connect(
        args.nats_url, name="worker", timeout_s=APPEND_TIMEOUT_S, signer=LogSigner.of_environment()
    )
    tracer = tracer_of_environment("agent")
    workers: list[RoleWorker] = []
    try:
        workers += [
            RoleWorker(
                AgentReplica(
                    name,
                    role,
                    Engines(role.engines, fallback=role.fallback, tracer=tracer),
                    journal,
                    stream_deltas=args.stream_deltas,
                    publications=args.publications,
                    engine_away_timeout_s=args.engine_away_timeout_s,
                    tracer=tracer,
                    repositories=args.repositories,
                    workspace_dir=args.workspace_dir,
                )
            )
            for name, role in roles.items()
        ]
        await asyncio.gather(*(worker.replica.engines.probe() for worker in workers))
        yield workers
    finally:
        await asyncio.gather(*(worker.replica.close() for worker in workers))
        await journal.close()
        if tracer is not None:
            await tracer.close()


async def _run(args: WorkerArgs, connected: asyncio.Future[Sequence[RoleWorker]]) -> None:
    async with workers_of(args) as workers:
        try:
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker.run())
                connected.set_result(workers)
                log.info("worker_working", roles=[worker.replica.name for worker in workers])
        except ExceptionGroup:
            # Unlike after a stop, nothing was drained: a worker that comes later makes no call that is recorded here.
            await asyncio.gather(*(worker.replica.finish(FINISH_WITHIN_S) for worker in workers))
            raise


async def serve(args: WorkerArgs) -> None:
    stopping = stop_signal()
    connected: asyncio.Future[Sequence[RoleWorker]] = asyncio.get_running_loop().create_future()
    async with health_server(args.worker_host, args.worker_port) as port, asyncio.TaskGroup() as group:
        log.info("worker_listening", host=args.worker_host, port=port)
        working = group.create_task(_run(args, connected))
        await stopping.wait()
        if connected.done():
            await asyncio.gather(*(worker.drain(args.worker_drain_s) for worker in connected.result()))
        working.cancel()
