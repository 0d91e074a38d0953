"""Route: the status of the whole installation, from an inquiry of all parts at once over the control subjects."""

import asyncio
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any, NamedTuple, NoReturn

from fastapi import Response

from app.admission.backlog import Backlog
from app.api.cluster_schemas import (
    AgentView,
    CircuitState,
    Cluster,
    ClusterVersions,
    CoordinatorView,
    EngineLoad,
    LogFigures,
    MissingPart,
    ProjectorView,
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
from app.observability.history import SAMPLE_EVERY_S, cached_share, median_s
from app.observability.replica_status import (
    AgentStatus,
    CoordinatorStatus,
    EngineStatus,
    PlannerStatus,
    ProcessStatus,
    ProjectorStatus,
    ReplicaStatus,
    SenderStatus,
    StatusType,
    earliest,
    read,
)
from app.routes.dependencies import Gateway, InGateway, api_router
from app.routes.health import coordinators_of, planners_of, projectors_of, senders_of
from app.routes.roles import INQUIRY_TIMEOUT_S

LOG_TIMEOUT_S = 1.0
_SEVERITY: tuple[CircuitState, ...] = ("closed", "half_open", "open")

router = api_router("operations")


def _read(
    of: type[StatusType], part: str, replies: Iterable[dict[str, Any]], missing: list[MissingPart]
) -> tuple[StatusType, ...]:
    found, faults = read(of, replies)
    missing.extend(MissingPart(part=part, detail=f"A reply is not valid: {count} faults") for count in faults)
    return found


def _shortage(part: str, answered: int, wanted: int) -> list[MissingPart]:
    if answered >= wanted:
        return []
    of = f" of {wanted}" if wanted > 1 else ""
    return [MissingPart(part=part, detail=f"{answered or 'None'}{of} answered within {INQUIRY_TIMEOUT_S:g} s")]


async def _log(gateway: Gateway, missing: list[MissingPart]) -> LogFigures:
    try:
        async with asyncio.timeout(LOG_TIMEOUT_S):
            figures = await gateway["journal"].figures()
    except JournalUnavailable as exc:
        missing.append(MissingPart(part="log", detail=str(exc)))
    except TimeoutError:
        missing.append(MissingPart(part="log", detail=f"No answer within {LOG_TIMEOUT_S:g} s"))
    else:
        missing.extend(figures.missing)
        return figures
    return LogFigures(server_version=None, streams=(), consumers=())


async def _agents(gateway: Gateway, missing: list[MissingPart]) -> tuple[AgentStatus, ...]:
    async def of_role(name: str) -> tuple[AgentStatus, ...]:
        bounds = gateway["roles"][name].replicas
        replies = await gateway["journal"].inquire(
            f"control.role.{name}", timeout_s=INQUIRY_TIMEOUT_S, replies_max=bounds.max
        )
        found = _read(AgentStatus, f"role {name}", replies, missing)
        missing.extend(_shortage(f"role {name}", len(replies), bounds.min))
        return tuple(sorted(found, key=lambda replica: replica.replica))

    found = await asyncio.gather(*map(of_role, gateway["roles"]))
    return tuple(replica for of_one in found for replica in of_one)


async def _coordinators(gateway: Gateway, missing: list[MissingPart]) -> tuple[CoordinatorStatus, ...]:
    replies = await coordinators_of(gateway)
    found = _read(CoordinatorStatus, "coordinator", replies, missing)
    missing.extend(_shortage("coordinator", len(replies), max((replica.wanted or 1 for replica in found), default=1)))
    return tuple(sorted(found, key=lambda replica: replica.replica))


async def _senders(gateway: Gateway, missing: list[MissingPart]) -> tuple[SenderStatus, ...] | None:
    replies = await senders_of(gateway)
    if replies is None:
        return None
    missing.extend(_shortage("webhooks", len(replies), 1))
    return _read(SenderStatus, "webhooks", replies, missing)


async def _projectors(gateway: Gateway, missing: list[MissingPart]) -> tuple[ProjectorStatus, ...] | None:
    replies = await projectors_of(gateway)
    if replies is None:
        return None
    missing.extend(_shortage("archive", len(replies), 1))
    found = _read(ProjectorStatus, "archive", replies, missing)
    missing.extend(MissingPart(part="archive", detail=each.failure) for each in found if each.failure)
    return found


async def _planners(gateway: Gateway, missing: list[MissingPart]) -> tuple[PlannerStatus, ...] | None:
    replies = await planners_of(gateway)
    return None if replies is None else _read(PlannerStatus, "planning", replies, missing)


class _Replies(NamedTuple):
    """The parts that answered; None where a kind of process is off."""

    agents: tuple[AgentStatus, ...]
    coordinators: tuple[CoordinatorStatus, ...]
    senders: tuple[SenderStatus, ...] | None
    projectors: tuple[ProjectorStatus, ...] | None
    planners: tuple[PlannerStatus, ...] | None

    def by_part(self, roles: Iterable[str]) -> Mapping[str, Sequence[ProcessStatus]]:
        processes = {"webhooks": self.senders, "archive": self.projectors, "planning": self.planners}
        return {
            "coordinator": self.coordinators,
            **{f"role {role}": [each for each in self.agents if each.role == role] for role in roles},
            **{part: found for part, found in processes.items() if found is not None},
        }


async def _ask(gateway: Gateway, missing: list[MissingPart]) -> _Replies:
    async with asyncio.TaskGroup() as group:
        agents = group.create_task(_agents(gateway, missing))
        coordinators = group.create_task(_coordinators(gateway, missing))
        senders = group.create_task(_senders(gateway, missing))
        projectors = group.create_task(_projectors(gateway, missing))
        planners = group.create_task(_planners(gateway, missing))
    return _Replies(agents.result(), coordinators.result(), senders.result(), projectors.result(), planners.result())


async def take_sample(gateway: Gateway) -> None:
    replies = await _ask(gateway, [])
    depth = gateway["catalog"].backlog.throughput().depth
    gateway["history"].take(gateway["clock"].now(), depth, replies.agents, replies.by_part(gateway["roles"]))


async def sample(gateway: Gateway) -> NoReturn:
    """Take a sample every ten seconds, so that the history shows the minutes before a fault. Runs until cancelled."""
    while True:
        await asyncio.sleep(SAMPLE_EVERY_S)
        await take_sample(gateway)


def _applications(replicas: Sequence[ReplicaStatus]) -> tuple[ServeApplication, ...]:
    placed: dict[str, dict[str, list[ReplicaStatus]]] = defaultdict(lambda: defaultdict(list))
    for replica in replicas:
        if replica.application is not None and replica.deployment is not None:
            placed[replica.application][replica.deployment].append(replica)
    return tuple(
        ServeApplication(
            name=application,
            deployments=tuple(
                ServeDeployment(
                    name=name,
                    answered=len(group),
                    wanted=max((replica.wanted for replica in group if replica.wanted is not None), default=None),
                    product=tuple(sorted({replica.versions.product or "" for replica in group} - {""})),
                )
                for name, group in deployments.items()
            ),
        )
        for application, deployments in placed.items()
    )


def _coordinator(replica: CoordinatorStatus) -> CoordinatorView:
    return CoordinatorView(id=replica.replica, **replica.model_dump(include=set(CoordinatorView.model_fields)))


def _agent(replica: AgentStatus) -> AgentView:
    # A hedged call is in flight at two engines.
    at_engines = sum(engine.in_flight for engine in replica.engines)
    return AgentView(
        id=replica.replica,
        running=replica.in_flight,
        waiting=max(0, replica.in_flight - at_engines),
        **replica.model_dump(include=set(AgentView.model_fields) - {"waiting"}),
    )


def _sender(replica: SenderStatus) -> SenderView:
    return SenderView(id=replica.replica, **replica.model_dump(exclude={"replica", "started_at", "versions", "queues"}))


def _projector(replica: ProjectorStatus) -> ProjectorView:
    return ProjectorView(id=replica.replica, **replica.model_dump(exclude={"replica", "started_at", "versions"}))


def _engines(agents: Sequence[AgentStatus]) -> tuple[EngineLoad, ...]:
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
            circuit=max((engine.circuit for _, engine in views), key=lambda circuit: _SEVERITY.index(circuit)),
            in_flight=sum(engine.in_flight for _, engine in views),
            waiting=sum(agent.waiting for agent, _ in views),
            cached_share=cached_share(
                sum(prompt for _, engine in views for _, prompt, _ in engine.recent),
                sum(cached for _, engine in views for _, _, cached in engine.recent),
            ),
            ttft_s=median_s(ttft_ms for _, engine in views for ttft_ms, _, _ in engine.recent),
            unreachable=earliest(engine.unreachable for _, engine in views),
            name=next((engine.name for _, engine in views if engine.name), None),
            list_problem=next((engine.list_problem for _, engine in views if engine.list_problem), ""),
            key_rejected=earliest(engine.key_rejected for _, engine in views),
            trouble=earliest(engine.trouble for _, engine in views),
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


def _distinct(replicas: Sequence[ProcessStatus]) -> tuple[ReplicaVersions, ...]:
    found = {str(replica.versions): replica.versions for replica in replicas}
    return tuple(found[key] for key in sorted(found))


class Survey(NamedTuple):
    """The answers of the parts at one moment. `server_at` is the log server's clock, None while it is away."""

    cluster: Cluster
    agents: tuple[AgentStatus, ...]
    server_at: datetime | None


async def survey(gateway: Gateway) -> Survey:
    missing: list[MissingPart] = []
    async with asyncio.TaskGroup() as group:
        log, asked = group.create_task(_log(gateway, missing)), group.create_task(_ask(gateway, missing))
    if not gateway["catalog"].caught_up:
        missing.append(MissingPart(part="catalog", detail="The log has not been read yet, so the queue is unknown"))
    replies = asked.result()
    replicas = (*replies.coordinators, *replies.agents)
    engines = _engines(replies.agents)
    missing.extend(
        MissingPart(part=f"engine {engine.url}", detail=str(trouble))
        for engine in engines
        for trouble in (engine.unreachable, engine.key_rejected)
        if trouble is not None
    )
    cluster = Cluster(
        at=gateway["clock"].now(),
        missing=tuple(sorted(missing, key=lambda each: (each.part != "log", each.part))),
        versions=ClusterVersions(
            gateway=version("deliberation-gateway"),
            python=platform.python_version(),
            nats_server=log.result().server_version,
            replicas=_distinct(
                [*replicas, *(replies.senders or ()), *(replies.projectors or ()), *(replies.planners or ())]
            ),
            engines=tuple(sorted({engine.version for engine in engines if engine.version})),
        ),
        applications=_applications(replicas),
        coordinators=tuple(map(_coordinator, replies.coordinators)),
        agents=tuple(map(_agent, replies.agents)),
        engines=engines,
        queue=_queue(gateway, gateway["catalog"].backlog),
        streams=log.result().streams,
        consumers=log.result().consumers,
        webhooks=None if replies.senders is None else tuple(map(_sender, replies.senders)),
        projectors=None if replies.projectors is None else tuple(map(_projector, replies.projectors)),
        parts=gateway["history"].parts(replies.by_part(gateway["roles"])),
        samples=tuple(gateway["history"].samples),
    )
    return Survey(cluster, replies.agents, log.result().server_at)


@router.get(
    "/cluster",
    summary="Replicas, queue, log, engines and versions",
    responses={200: answer("The parts that answered", model=Cluster), **problems()},
)
async def get_cluster(gateway: InGateway) -> Response:
    """Always 200 within about a second; parts that did not answer are in `missing`. An answer is at most a second old.

    The queue covers all tenants; the answer contains no task and no result. Samples and restarts are what this gateway
    has seen since its start.
    """

    async def collect() -> bytes:
        return dump((await survey(gateway)).cluster)

    content = await gateway["cluster"].get(collect)
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")
