"""Routes: health, readiness, metrics."""

import asyncio
from contextlib import suppress
from itertools import chain
from typing import Any

from fastapi import Response

from app.api.cluster_schemas import LogFigures
from app.api.findings import Finding, as_problem, finding
from app.api.problems import NotReady
from app.api.responses import answer, problems
from app.api.schemas import Health, Ready, dump
from app.deliberation.errors import JournalUnavailable
from app.observability.checks import (
    INQUIRY_TIMEOUT_S,
    cluster_findings,
    database_findings,
    engine_findings,
    log_findings,
    projector_findings,
    silence,
    tool_findings,
)
from app.observability.metrics import CONTENT_TYPE
from app.observability.replica_status import (
    COORDINATORS_MAX,
    COORDINATORS_SUBJECT,
    PLANNERS_SUBJECT,
    PROCESSES_MAX,
    PROJECTORS_SUBJECT,
    SENDERS_SUBJECT,
    CoordinatorStatus,
    PlannerStatus,
    ProjectorStatus,
    SenderStatus,
    read,
)
from app.routes.dependencies import Gateway, InGateway, Readiness, api_router
from app.routes.roles import INQUIRY_TIMEOUT_S as REPLICAS_TIMEOUT_S
from app.routes.roles import replicas_of

DRAINING = finding("draining", "This process is stopping", "Use another replica.")
# The number of senders is unknown, so every scrape waits for this long.
SENDERS_TIMEOUT_S = 0.3
_NO_STORE = {"Cache-Control": "no-store"}

router = api_router("operations")


async def _archive_findings(gateway: Gateway, *, named: bool) -> list[Finding]:
    archive = gateway["deliberations"].archive
    if archive is None:
        return []
    return await database_findings(archive, named=named) or await projector_findings(gateway["journal"], named=named)


async def _engine_findings(gateway: Gateway, *, named: bool) -> list[Finding]:
    roles = gateway["roles"].items()
    # No more replies than replicas that always run, so that a role below its maximum costs no time. A role that nothing
    # has used has none, and that is known at once.
    found = await asyncio.gather(*(replicas_of(gateway, name, role, max(1, role.replicas.min)) for name, role in roles))
    replicas = tuple(chain.from_iterable(found))
    return [*engine_findings(replicas, named=named), *tool_findings(replicas, named=named)]


async def _faults(gateway: Gateway, *, named: bool) -> list[Finding]:
    faults = await log_findings(gateway["journal"], gateway["settings"].nats_url, named=named)
    if not gateway["catalog"].caught_up:
        faults.append(finding("catalog_unread", "The log has not been read completely", "Wait."))
    keyring = gateway["access"].keyring
    if keyring is not None and not keyring.caught_up:
        faults.append(finding("keys_unread", "The keys have not been read", "Wait."))
    spends = gateway["deliberations"].spends
    if spends is not None and not spends.caught_up:
        faults.append(finding("spends_unread", "The spends of the day have not been read", "Wait."))
    remedy = "Deploy the coordinator; accepted deliberations wait in the log."
    return faults + await silence(
        gateway["journal"], COORDINATORS_SUBJECT, "coordinator_missing", "coordinator", remedy
    )


@router.get(
    "/healthz",
    summary="Whether the process is alive",
    responses={200: answer("Alive", model=Health), **problems()},
)
async def get_health() -> Response:
    """Checks only the process itself."""
    return Response(dump(Health()), headers=_NO_STORE, media_type="application/json")


@router.get(
    "/readyz",
    summary="Whether work is accepted and will be done",
    responses={200: answer("Ready", model=Ready), **problems(503)},
)
async def get_readiness(gateway: InGateway) -> Response:
    """Ready: the log is reachable with its declared streams, the catalog is loaded, a coordinator answers, no draining.

    `degraded` lists missing webhook senders and takers of plans, labels that no coordinator takes, faults of the
    archive, engines that are unreachable or refuse their key, and tool servers that are away. Another gateway would
    have the same faults.
    """
    if gateway["feed"].draining.is_set():
        raise NotReady("Not ready: draining", [as_problem(DRAINING)])
    # This route answers without a key, so it names addresses only in development mode.
    named = gateway["access"].development
    faults, degraded = await gateway["readiness"].get(lambda: readiness(gateway, named=named))
    if faults:
        raise NotReady(
            f"Not ready: {', '.join(dict.fromkeys(fault.part for fault in faults))}", [*map(as_problem, faults)]
        )
    access, settings, service = gateway["access"], gateway["settings"], gateway["deliberations"]
    present = {
        "journal": True,
        "streams": True,
        "catalog": True,
        "keys": not access.development,
        "spends": service.spends is not None,
        "coordinator": True,
        "webhooks": settings.webhooks and not degraded["webhooks"],
        "archive": service.archive is not None and not degraded["archive"],
        "planning": settings.planning and not degraded["planning"],
        "clusters": bool(settings.clusters) and not degraded["clusters"],
    }
    ready = Ready(
        mode="development" if access.development else "keys",
        checks=tuple(name for name, checked in present.items() if checked),
        degraded=tuple(map(as_problem, chain.from_iterable(degraded.values()))),
    )
    return Response(dump(ready), headers=_NO_STORE, media_type="application/json")


async def readiness(gateway: Gateway, *, named: bool) -> Readiness:
    """The checks of `/readyz`; `named` permits addresses in what they find."""
    settings = gateway["settings"]
    sender = "Run `python -m app.webhooks`; it sends the deliveries that wait in the log."
    planner = "Run `python -m app.planning`; it takes the plans that wait. `POST /plans` works without it."
    journal = gateway["journal"]

    async def of_senders() -> list[Finding]:
        wanted = SENDERS_SUBJECT, "webhooks_missing", "webhook sender", sender
        return await silence(journal, *wanted) if settings.webhooks else []

    async def of_planners() -> list[Finding]:
        wanted = PLANNERS_SUBJECT, "planning_missing", "process that takes plans", planner
        return await silence(journal, *wanted) if settings.planning else []

    async with asyncio.TaskGroup() as group:
        faults = group.create_task(_faults(gateway, named=named))
        lacking = {
            "webhooks": group.create_task(of_senders()),
            "archive": group.create_task(_archive_findings(gateway, named=named)),
            "planning": group.create_task(of_planners()),
            "clusters": group.create_task(cluster_findings(journal, settings.clusters)),
            "engines": group.create_task(_engine_findings(gateway, named=named)),
        }
    return Readiness(faults.result(), {name: task.result() for name, task in lacking.items()})


async def _replies(gateway: Gateway, subject: str) -> list[dict[str, Any]]:
    return await gateway["journal"].inquire(subject, timeout_s=SENDERS_TIMEOUT_S, replies_max=PROCESSES_MAX)


async def coordinators_of(gateway: Gateway) -> list[dict[str, Any]]:
    return await gateway["journal"].inquire(
        COORDINATORS_SUBJECT, timeout_s=REPLICAS_TIMEOUT_S, replies_max=COORDINATORS_MAX
    )


async def _log_figures(gateway: Gateway) -> LogFigures | None:
    with suppress(JournalUnavailable, TimeoutError):
        async with asyncio.timeout(INQUIRY_TIMEOUT_S):
            return await gateway["journal"].figures()
    return None


async def projectors_of(gateway: Gateway) -> list[dict[str, Any]] | None:
    return None if gateway["deliberations"].archive is None else await _replies(gateway, PROJECTORS_SUBJECT)


async def senders_of(gateway: Gateway) -> list[dict[str, Any]] | None:
    return await _replies(gateway, SENDERS_SUBJECT) if gateway["settings"].webhooks else None


async def planners_of(gateway: Gateway) -> list[dict[str, Any]] | None:
    return await _replies(gateway, PLANNERS_SUBJECT) if gateway["settings"].planning else None


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, **answer("Text exposition")}},
)
async def get_metrics(gateway: InGateway) -> Response:
    """Requests of this process, and the figures of log, coordinators, agents and the other processes.

    Every gateway shows the figures of the other processes: take their maximum over gateways, and sum those.
    """
    async with asyncio.TaskGroup() as group:
        inquiries = [group.create_task(replicas_of(gateway, name, role)) for name, role in gateway["roles"].items()]
        coordinators = group.create_task(coordinators_of(gateway))
        log = group.create_task(_log_figures(gateway))
        senders = group.create_task(senders_of(gateway))
        projectors = group.create_task(projectors_of(gateway))
        planners = group.create_task(planners_of(gateway))
    replicas = [replica for task in inquiries for replica in task.result() if replica.counts]
    sent, copied, taken = senders.result(), projectors.result(), planners.result()
    exposition = gateway["metrics"].exposition(
        replicas,
        read(CoordinatorStatus, coordinators.result())[0],
        log.result(),
        None if sent is None else read(SenderStatus, sent)[0],
        None if copied is None else read(ProjectorStatus, copied)[0],
        None if taken is None else read(PlannerStatus, taken)[0],
        gateway["settings"].clusters,
    )
    return Response(exposition, headers={"Content-Type": CONTENT_TYPE})
