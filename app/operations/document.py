"""The documents of a survey: the installation for operators, and the live replicas of a role for its users."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median

from app.api.installation import (
    AgentView,
    CircuitState,
    CoordinatorView,
    EngineLoad,
    EngineView,
    Installation,
    InstallationVersions,
    LiveRole,
    LogFigures,
    PartView,
    ProjectorView,
    ReplicaVersions,
    SenderView,
    ServeApplication,
    ServeDeployment,
)
from app.deliberation.engine_troubles import gravest
from app.observability.process import STARTED_AT, VERSIONS
from app.observability.replica_status import (
    AgentStatus,
    CoordinatorStatus,
    EngineStatus,
    ProcessStatus,
    ProjectorStatus,
    ReplicaStatus,
    SenderStatus,
)
from app.operations.checks import findings
from app.operations.survey import Survey

_SEVERITY: Mapping[CircuitState, int] = {"closed": 0, "half_open": 1, "open": 2}


def installation(survey: Survey) -> Installation:
    """The document of a whole survey."""
    assert survey.queue is not None, "the survey is a whole one"
    figures = (survey.log.figures if survey.log else None) or LogFigures(server_version=None, streams=(), consumers=())
    engines = engine_loads(survey.agents or ())
    processes = [process for part in survey.parts.values() for process in part]
    return Installation(
        at=survey.at,
        findings=findings(survey),
        versions=InstallationVersions(
            gateway=str(VERSIONS["product"]),
            python=str(VERSIONS["python"]),
            nats_server=figures.server_version,
            replicas=_distinct(processes),
            engines=tuple(sorted({engine.version for engine in engines if engine.version})),
        ),
        applications=_applications((*(survey.coordinators or ()), *(survey.agents or ()))),
        coordinators=tuple(map(_coordinator, survey.coordinators or ())),
        agents=tuple(map(_agent, survey.agents or ())),
        engines=engines,
        queue=survey.queue,
        streams=figures.streams,
        consumers=figures.consumers,
        webhooks=None if survey.senders is None else tuple(map(_sender, survey.senders)),
        projectors=None if survey.projectors is None else tuple(map(_projector, survey.projectors)),
        parts=_parts(survey),
    )


def live_role(agents: Sequence[AgentStatus]) -> LiveRole | None:
    """The replicas of one role; None where none answered."""
    if not agents:
        return None
    return LiveRole(
        replicas=len(agents),
        models=tuple(sorted({agent.model for agent in agents if agent.model})),
        simulated=any(agent.simulated for agent in agents),
        in_flight=sum(agent.in_flight for agent in agents),
        engines=tuple(
            EngineView(**engine.model_dump(include=set(EngineView.model_fields))) for engine in engine_loads(agents)
        ),
    )


def engine_loads(agents: Iterable[AgentStatus]) -> tuple[EngineLoad, ...]:
    """Each engine once, over the replicas that use it."""
    by_url: dict[str, list[tuple[AgentStatus, EngineStatus]]] = defaultdict(list)
    for agent in agents:
        for engine in agent.engines:
            by_url[engine.url].append((agent, engine))
    return tuple(_load(url, views) for url, views in by_url.items())


def _load(url: str, views: Sequence[tuple[AgentStatus, EngineStatus]]) -> EngineLoad:
    models = tuple(sorted({model for _, engine in views for model in engine.models}))
    recent = [answer for _, engine in views for answer in engine.recent]
    prompt_tokens, ttft_ms = sum(prompt for _, prompt, _ in recent), [ms for ms, _, _ in recent if ms is not None]
    return EngineLoad(
        url=url,
        roles=tuple(sorted({agent.role for agent, _ in views})),
        models=models,
        version=next((engine.version for _, engine in views if engine.version), None),
        simulated=any("simulated" in model for model in models),
        healthy=all(engine.healthy for _, engine in views),
        circuit=max((engine.circuit for _, engine in views), key=lambda circuit: _SEVERITY[circuit]),
        in_flight=sum(engine.in_flight for _, engine in views),
        waiting=sum(agent.waiting for agent, _ in views),
        cached_share=round(sum(cached for _, _, cached in recent) / prompt_tokens, 3) if prompt_tokens else None,
        ttft_s=round(median(ttft_ms) / 1_000, 3) if ttft_ms else None,
        name=next((engine.name for _, engine in views if engine.name), None),
        trouble=gravest(engine.trouble for _, engine in views),
    )


def _parts(survey: Survey) -> tuple[PartView, ...]:
    own = PartView(part="gateway", replicas=1, started_at=datetime.fromisoformat(STARTED_AT))
    started = {
        part: [process.started_at for process in answered if process.started_at is not None]
        for part, answered in survey.parts.items()
    }
    return (
        own,
        *(
            PartView(part=part, replicas=len(answered), started_at=max(started[part], default=None))
            for part, answered in survey.parts.items()
        ),
    )


def _applications(replicas: Iterable[ReplicaStatus]) -> tuple[ServeApplication, ...]:
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


def _distinct(processes: Iterable[ProcessStatus]) -> tuple[ReplicaVersions, ...]:
    by_text = {str(process.versions): process.versions for process in processes}
    return tuple(by_text[text] for text in sorted(by_text))
