"""Route: the whole installation at a moment, as its parts tell of themselves.

Every part is asked over the log, all at once, and whoever asks within a second gets the same answer. Nothing is waited
for longer than a second: what has not answered by then is told as missing.
"""

import asyncio
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from app.admission.backlog import Backlog
from app.api.cluster_schemas import (
    AgentView,
    CircuitState,
    Cluster,
    ClusterVersions,
    CoordinatorView,
    EngineLoad,
    EngineOfReplica,
    LogFigures,
    MissingPart,
    QueueOfRole,
    QueueView,
    ReplicaVersions,
    SenderView,
    ServeApplication,
    ServeDeployment,
)
from app.api.responses import answer, problems
from app.api.schemas import dump
from app.deliberation.errors import JournalUnavailable
from app.observability.replica_status import (
    AgentStatus,
    CoordinatorStatus,
    EngineStatus,
    ReplicaStatus,
    StatusType,
    read,
)
from app.routes.dependencies import Gateway, InGateway
from app.routes.health import senders_of
from app.routes.roles import INQUIRY_TIMEOUT_S

LOG_TIMEOUT_S = 1.0
# As many as the application may have (`serve_deployments.application`).
COORDINATORS_MAX = 64

router = APIRouter(tags=["operations"])


class _SenderTold(BaseModel):
    replica: str
    in_flight: int = 0
    waiting: int = 0
    held: dict[str, int] = Field(default_factory=dict[str, int])
    counts: dict[str, int] = Field(default_factory=dict[str, int])


def _read(
    of: type[StatusType], part: str, replies: Iterable[dict[str, Any]], missing: list[MissingPart]
) -> tuple[StatusType, ...]:
    """The replies that can be read; of the others it is told that they cannot."""
    found, faults = read(of, replies)
    missing.extend(MissingPart(part=part, detail=f"A reply cannot be read: {count} faults") for count in faults)
    return found


def _few(part: str, answered: int, wanted: int) -> list[MissingPart]:
    """That fewer replicas answered than there should be, if so."""
    if answered >= wanted:
        return []
    of = f" of {wanted}" if wanted > 1 else ""
    return [MissingPart(part=part, detail=f"{answered or 'None'}{of} answered within {INQUIRY_TIMEOUT_S:g} s")]


async def _log(gateway: Gateway, missing: list[MissingPart]) -> LogFigures:
    try:
        async with asyncio.timeout(LOG_TIMEOUT_S):
            figures = await gateway["log_told"]()
    except JournalUnavailable as exc:
        missing.append(MissingPart(part="log", detail=str(exc)))
    except TimeoutError:
        missing.append(MissingPart(part="log", detail=f"No answer within {LOG_TIMEOUT_S:g} s"))
    else:
        missing.extend(figures.missing)
        return figures
    return LogFigures(server_version=None, streams=(), consumers=())


async def _agents(gateway: Gateway, missing: list[MissingPart]) -> tuple[AgentStatus, ...]:
    """The replicas of all roles, in the order of the roles."""

    async def of_role(name: str) -> tuple[AgentStatus, ...]:
        bounds = gateway["roles"][name].replicas
        replies = await gateway["control"].inquire(
            f"control.role.{name}", timeout_s=INQUIRY_TIMEOUT_S, replies_max=bounds.max
        )
        found = _read(AgentStatus, f"role {name}", replies, missing)
        missing.extend(_few(f"role {name}", len(replies), bounds.min))
        return tuple(sorted(found, key=lambda told: told.replica))

    found = await asyncio.gather(*map(of_role, gateway["roles"]))
    return tuple(told for of_one in found for told in of_one)


async def _coordinators(gateway: Gateway, missing: list[MissingPart]) -> tuple[CoordinatorStatus, ...]:
    replies = await gateway["control"].inquire(
        "control.coordinator", timeout_s=INQUIRY_TIMEOUT_S, replies_max=COORDINATORS_MAX
    )
    found = _read(CoordinatorStatus, "coordinator", replies, missing)
    missing.extend(_few("coordinator", len(replies), max((told.wanted or 1 for told in found), default=1)))
    return tuple(sorted(found, key=lambda told: told.replica))


async def _senders(gateway: Gateway, missing: list[MissingPart]) -> tuple[SenderView, ...] | None:
    replies = await senders_of(gateway)
    if replies is None:
        return None
    missing.extend(_few("webhooks", len(replies), 1))
    return tuple(
        SenderView(id=told.replica, **told.model_dump(exclude={"replica"}))
        for told in _read(_SenderTold, "webhooks", replies, missing)
    )


def _applications(replicas: Sequence[ReplicaStatus]) -> tuple[ServeApplication, ...]:
    placed: dict[str, dict[str, list[ReplicaStatus]]] = defaultdict(lambda: defaultdict(list))
    for told in replicas:
        if told.application is not None and told.deployment is not None:
            placed[told.application][told.deployment].append(told)
    return tuple(
        ServeApplication(
            name=application,
            deployments=tuple(
                ServeDeployment(
                    name=name,
                    answered=len(group),
                    wanted=max((told.wanted for told in group if told.wanted is not None), default=None),
                    product=tuple(sorted({told.versions.product or "" for told in group} - {""})),
                )
                for name, group in deployments.items()
            ),
        )
        for application, deployments in placed.items()
    )


def _coordinator(told: CoordinatorStatus) -> CoordinatorView:
    return CoordinatorView(
        id=told.replica,
        node=told.node,
        in_hand=told.in_flight,
        bound=told.slots,
        turns=told.gates,
        versions=told.versions,
    )


def _agent(told: AgentStatus) -> AgentView:
    # A hedge asks two engines for one call.
    at_engines = sum(engine.in_flight for engine in told.engines)
    return AgentView(
        id=told.replica,
        node=told.node,
        role=told.role,
        model=told.model,
        simulated=told.simulated,
        running=told.in_flight,
        concurrency=told.concurrency,
        waiting=max(0, told.in_flight - at_engines),
        counts=told.counts,
        engines=tuple(
            EngineOfReplica(**engine.model_dump(include={"url", "healthy", "circuit", "in_flight"}))
            for engine in told.engines
        ),
        versions=told.versions,
    )


def _worst(circuits: Iterable[CircuitState]) -> CircuitState:
    of_any = set(circuits)
    if "open" in of_any:
        return "open"
    return "half_open" if "half_open" in of_any else "closed"


def _engines(agents: Sequence[AgentStatus]) -> tuple[EngineLoad, ...]:
    """Every engine once, over all who ask it."""
    seen: dict[str, list[tuple[AgentStatus, EngineStatus]]] = defaultdict(list)
    for agent in agents:
        for engine in agent.engines:
            seen[engine.url].append((agent, engine))
    return tuple(
        EngineLoad(
            url=url,
            roles=tuple(sorted({agent.role for agent, _ in views})),
            models=(models := tuple(sorted({model for _, engine in views for model in engine.models}))),
            version=next((engine.version for _, engine in views if engine.version), None),
            simulated=any("simulated" in model for model in models),
            healthy=all(engine.healthy for _, engine in views),
            circuit=_worst(engine.circuit for _, engine in views),
            in_flight=sum(engine.in_flight for _, engine in views),
        )
        for url, views in seen.items()
    )


def _queue(gateway: Gateway, backlog: Backlog) -> QueueView:
    settings, now_s = gateway["settings"], gateway["clock"].now().timestamp()
    work = backlog.throughput()

    return QueueView(
        depth=work.depth,
        depth_max=settings.queue_depth_max,
        waiting=len(work.waiting),
        in_hand=len(work.in_hand),
        head_waited_s=work.head_waited_s(now_s),
        ended_per_s=work.observed_per_s(now_s),
        roles=tuple(
            QueueOfRole(
                role=name,
                depth=backlog.throughput(name).depth,
                depth_max=role.queue_max,
                ended_per_s=backlog.throughput(name).observed_per_s(now_s),
                admitted=backlog.admitted(name, settings.deliberation_timeout_s),
            )
            for name, role in gateway["roles"].items()
        ),
    )


def _distinct(replicas: Sequence[ReplicaStatus]) -> tuple[ReplicaVersions, ...]:
    found = {tuple(told.versions.model_dump().values()): told.versions for told in replicas}
    return tuple(found[key] for key in sorted(found, key=str))


async def _asked(gateway: Gateway) -> bytes:
    """The answer, as JSON."""
    missing: list[MissingPart] = []
    async with asyncio.TaskGroup() as group:
        log, agents = group.create_task(_log(gateway, missing)), group.create_task(_agents(gateway, missing))
        coordinators = group.create_task(_coordinators(gateway, missing))
        senders = group.create_task(_senders(gateway, missing))
    if not gateway["catalog"].backlog_known:
        missing.append(MissingPart(part="catalog", detail="The log has not been read yet: the queue is not known"))
    replicas = (*coordinators.result(), *agents.result())
    engines = _engines(agents.result())
    cluster = Cluster(
        at=gateway["clock"].now(),
        missing=tuple(sorted(missing, key=lambda each: (each.part != "log", each.part))),
        versions=ClusterVersions(
            gateway=version("deliberation-gateway"),
            python=platform.python_version(),
            nats_server=log.result().server_version,
            replicas=_distinct(replicas),
            engines=tuple(sorted({engine.version for engine in engines if engine.version})),
        ),
        applications=_applications(replicas),
        coordinators=tuple(map(_coordinator, coordinators.result())),
        agents=tuple(map(_agent, agents.result())),
        engines=engines,
        queue=_queue(gateway, gateway["catalog"].backlog),
        streams=log.result().streams,
        consumers=log.result().consumers,
        webhooks=senders.result(),
    )
    return dump(cluster)


@router.get(
    "/cluster",
    operation_id="get_cluster",
    summary="Replicas, queue, log, engines and versions",
    response_class=Response,
    responses={200: {"model": Cluster, **answer("As far as the parts answered")}, **problems()},
)
async def get_cluster(gateway: InGateway) -> Response:
    """Always 200, within a second or so: what did not answer is in `missing`. An answer is at most a second old.

    The queue is that of all tenants; of what they deliberate nothing is told.
    """
    content = await gateway["cluster"].get(lambda: _asked(gateway))
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")
