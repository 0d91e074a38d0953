"""The replicas of some roles in one process without Ray: a worker's, or those beside a coordinator."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from app.deliberation.roles import Role
from app.log.journal import JetStreamJournal
from app.observability.environment import tracer_of_environment
from serve_deployments.agent.agent import AgentReplica
from serve_deployments.arguments import ApplicationArgs
from serve_deployments.engine.client import Engines

# Seconds that calls may still take after an error has ended their process.
FINISH_WITHIN_S = 4.5


@asynccontextmanager
async def replicas_of(
    roles: Mapping[str, Role], args: ApplicationArgs, journal: JetStreamJournal
) -> AsyncGenerator[Sequence[AgentReplica]]:
    """A replica of each role over one connection. Each engine was asked for its models once.

    After an error of the body, calls have FINISH_WITHIN_S seconds to record their answers.
    """
    tracer = tracer_of_environment("agent") if roles else None
    replicas = list[AgentReplica]()
    try:
        replicas += [
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
            for name, role in roles.items()
        ]
        await asyncio.gather(*(replica.engines.probe() for replica in replicas))
        yield replicas
    except ExceptionGroup:
        # Nothing was drained, as a stop does. A successor repeats no call whose answer is recorded here.
        await asyncio.gather(*(replica.finish(FINISH_WITHIN_S) for replica in replicas))
        raise
    finally:
        await asyncio.gather(*(replica.close() for replica in replicas))
        if tracer is not None:
            await tracer.close()


async def keep_up(replica: AgentReplica) -> None:
    """Answer surveys, notice stops, and watch the engines. Runs until cancelled."""
    await replica.listen()
    async with asyncio.TaskGroup() as group:
        group.create_task(replica.keep())
        group.create_task(replica.engines.watch())
