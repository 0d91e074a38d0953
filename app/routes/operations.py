"""Routes of operators: health, and by one survey readiness, metrics and the state of the installation."""

from fastapi import Response

from app.api.findings import as_problem
from app.api.installation import Installation
from app.api.problems import NotReady
from app.api.responses import answer, problems
from app.api.schemas import Health, Ready, dump
from app.observability.metrics import CONTENT_TYPE
from app.operations.checks import BLOCKING, DRAINING, readiness_findings
from app.operations.document import installation
from app.routes.dependencies import InGateway, api_router

_NO_STORE = {"Cache-Control": "no-store"}

router = api_router("operations")


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
    """Ready: the log is reachable with its declared streams and read, a coordinator and every role answer, no draining.

    A role that starts at its first use need not answer. `degraded` lists missing webhook senders, labels that no
    coordinator takes, faults of the archive, engines that are unreachable or fail, and tool servers that are away.
    Another gateway would have the same faults.
    """
    if gateway["feed"].draining.is_set():
        raise NotReady("Not ready: draining", [as_problem(DRAINING)])
    access, settings = gateway["access"], gateway["settings"]
    # This route answers without a key, so it names addresses only in development mode.
    faults = readiness_findings(await gateway["surveyor"].brief(), named=access.development)
    if blocking := [fault for fault in faults if fault.code in BLOCKING]:
        parts = ", ".join(dict.fromkeys(fault.part for fault in blocking))
        raise NotReady(f"Not ready: {parts}", [*map(as_problem, blocking)])
    degraded, service = {fault.part for fault in faults}, gateway["deliberations"]
    present = {
        "journal": True,
        "streams": True,
        "catalog": True,
        "keys": not access.development,
        "spends": service.spends is not None,
        "coordinator": True,
        "roles": True,
        "webhooks": settings.webhooks,
        "archive": service.archive is not None,
        "clusters": bool(settings.clusters),
    }
    ready = Ready(
        mode="development" if access.development else "keys",
        checks=tuple(name for name, checked in present.items() if checked and name not in degraded),
        degraded=tuple(map(as_problem, faults)),
    )
    return Response(dump(ready), headers=_NO_STORE, media_type="application/json")


@router.get(
    "/status",
    summary="The installation: its faults with their remedies, replicas, queue, log, engines and versions",
    responses={200: answer("The findings, and the parts that answered", model=Installation), **problems()},
)
async def get_status(gateway: InGateway) -> Response:
    """Always 200 within about two seconds: each replica asks its engines anew. An answer is at most a second old.

    Without a finding the installation is sound. The gravest stands first, and of one severity causes before their
    effects. The queue covers all tenants; the answer contains no task and no result.
    """
    shown = installation(await gateway["surveyor"].whole())
    return Response(dump(shown), headers=_NO_STORE, media_type="application/json")


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, **answer("Text exposition")}},
)
async def get_metrics(gateway: InGateway) -> Response:
    """Requests of this process, and the figures of log, coordinators, agents and the other processes.

    Every gateway shows the figures of the other processes: take their maximum over gateways, and sum those.
    """
    survey = await gateway["surveyor"].whole()
    exposition = gateway["metrics"].exposition(
        [agent for agent in survey.agents or () if agent.counts],
        survey.coordinators or (),
        survey.log and survey.log.figures,
        survey.senders,
        survey.projectors,
        survey.declared.clusters,
    )
    return Response(exposition, headers={"Content-Type": CONTENT_TYPE})
