"""A worker: replicas of some roles in a process without Ray, which pull tasks from NATS.

A task is removed once the log holds the outcome of each of its calls. When a worker dies before, the server gives the
task to another one, which makes the calls that the log does not hold.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog

from app.deliberation.calls import StageRequest
from app.deliberation.errors import InvalidRequest, JournalUnavailable
from app.deliberation.facts import prefix
from app.deliberation.roles import Role, placed, run_by
from app.log.journal import JetStreamJournal
from app.log.queue_worker import QueueWorker
from app.log.signature import LogSigner
from app.log.stream_settings import ACK_WAIT_S_MIN, TASKS_STREAM, worker_consumer
from app.log.work_queue import QueueItem
from app.observability.process import run_until_stopped
from app.process_settings import default_engines, load_roles
from serve_deployments.agent.agent import APPEND_TIMEOUT_S, AgentReplica
from serve_deployments.agent.replicas import keep_up, replicas_of
from serve_deployments.arguments import WorkerArgs, with_engines

# Three of them within the shortest `ack_wait`, as for coordinators.
HEARTBEAT_S = ACK_WAIT_S_MIN / 3
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
        info = await journal.request(f"$JS.API.CONSUMER.INFO.{TASKS_STREAM}.{consumer}")
        if error := info.get("error"):
            detail = f"{TASKS_STREAM}/{consumer}: {error.get('description')}"
            raise JournalUnavailable(f"{detail}; declare it by `AGENTS=nats deliberate streams apply`")
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_up(self.replica))
            group.create_task(self._queue.run())

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
    roles, engines = placed(load_roles(args.roles_file), args.agents), default_engines(args.engine_urls)
    names = args.worker_roles or run_by("nats", roles)
    if not names:
        raise InvalidRequest("no role runs over NATS: set AGENTS=nats, or name a role by --role", "role")
    for unknown in (name for name in names if name not in roles):
        raise InvalidRequest(f"--role: there is no role {unknown!r}; the roles are {', '.join(roles)}", "role")
    bound = {} if args.worker_concurrency is None else {"concurrency": args.worker_concurrency}
    return {name: with_engines(roles[name], engines, args.model).model_copy(update=bound) for name in names}


async def _run(args: WorkerArgs, workers: list[RoleWorker]) -> None:
    """Work; `workers` gets a worker of each role. Waits for the log; raises JournalUnavailable if it refuses."""
    roles = roles_of(args)
    journal = await JetStreamJournal.connect(
        args.nats_url, name="worker", timeout_s=APPEND_TIMEOUT_S, signer=LogSigner.of_environment()
    )
    try:
        async with replicas_of(roles, args, journal) as replicas, asyncio.TaskGroup() as group:
            workers += map(RoleWorker, replicas)
            for worker in workers:
                group.create_task(worker.run())
            log.info("worker_working", roles=list(roles))
    finally:
        await journal.close()


async def serve(args: WorkerArgs) -> None:
    workers = list[RoleWorker]()

    async def drain() -> None:
        await asyncio.gather(*(worker.drain(args.worker_drain_s) for worker in workers))

    await run_until_stopped(args.worker_host, args.worker_port, "worker_listening", _run(args, workers), drain)
