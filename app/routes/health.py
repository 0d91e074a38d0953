"""Routes: health, readiness, metrics."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from fastapi import Response

from app.api.cluster_schemas import LogFigures
from app.api.problems import NotReady
from app.api.responses import answer, problems
from app.api.schemas import FieldProblem, Health, Ready, dump
from app.archive.database.connection import MIGRATE
from app.deliberation.errors import ArchiveUnavailable, JournalUnavailable, StreamsDiffer
from app.observability.metrics import CONTENT_TYPE
from app.observability.replica_status import (
    COORDINATORS_MAX,
    COORDINATORS_SUBJECT,
    PLANNERS_SUBJECT,
    PROCESSES_MAX,
    PROJECTORS_SUBJECT,
    SENDERS_SUBJECT,
    AgentStatus,
    CoordinatorStatus,
    EngineStatus,
    PlannerStatus,
    ProjectorStatus,
    SenderStatus,
    Trouble,
    read,
)
from app.routes.dependencies import Gateway, InGateway, Readiness, api_router
from app.routes.roles import INQUIRY_TIMEOUT_S as REPLICAS_TIMEOUT_S
from app.routes.roles import replicas_of

INQUIRY_TIMEOUT_S = 1.0
# The number of senders is unknown, so every scrape waits for this long.
SENDERS_TIMEOUT_S = 0.3
_NO_STORE = {"Cache-Control": "no-store"}

router = api_router("operations")


def _missing(check: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(location="service", pointer=check, code="not_ready", detail=detail, remedy=remedy)


async def _stream_faults(gateway: Gateway) -> list[FieldProblem]:
    # This route answers without a key, so it names the log's URL only in development mode.
    url = gateway["settings"].nats_url.rpartition("@")[2]
    named = f" (now {url})" if gateway["access"].development else ""
    try:
        lines = await gateway["journal"].differences()
    except JournalUnavailable as exc:
        remedy = f"Start nats-server, or set NATS_URL{named}. If its disk is full, free space and restart it."
        return [_missing("journal", str(exc), remedy)]
    except StreamsDiffer as exc:
        lines = [str(exc)]
    return [
        _missing("streams", line, "Run `deliberate streams plan`, then `deliberate streams apply`.") for line in lines
    ]


async def _archive_faults(gateway: Gateway) -> list[FieldProblem]:
    """The archive's faults: its database is away or has other tables, or no projector answers."""
    archive = gateway["deliberations"].archive
    if archive is None:
        return []
    try:
        await archive.check()
    except ArchiveUnavailable as exc:
        # This route answers without a key, so it names the database only in development mode.
        detail = str(exc) if gateway["access"].development else "The archive's database does not answer as it should"
        return [_missing("archive", detail, f"Start the database that DATABASE_URL names. {MIGRATE}")]
    replies = await gateway["journal"].inquire(PROJECTORS_SUBJECT, timeout_s=INQUIRY_TIMEOUT_S)
    if replies:
        waiting = [each for each in read(ProjectorStatus, replies)[0] if each.failure]
        # Without a key a client learns that it waits; `GET /cluster` has the cause.
        detail = waiting[0].failure if waiting and gateway["access"].development else "A projector waits"
        return [_missing("archive", detail, "`deliberate cluster` shows what it waits for.")] if waiting else []
    remedy = "Run `python -m app.archive`, or give it CPU if it runs; it copies what waits in the log."
    return [_missing("archive", f"No projector answered within {INQUIRY_TIMEOUT_S:g} s", remedy)]


async def _unanswered(
    gateway: Gateway, subject: str, check: str, which: str, remedy: str, *, wanted: bool = True
) -> list[FieldProblem]:
    if not wanted or await gateway["journal"].inquire(subject, timeout_s=INQUIRY_TIMEOUT_S):
        return []
    return [_missing(check, f"No {which} answered within {INQUIRY_TIMEOUT_S:g} s", remedy)]


def _troubled(
    replicas: Iterable[AgentStatus], trouble_of: Callable[[EngineStatus], Trouble | None]
) -> Mapping[str, tuple[set[str], Trouble]]:
    """The roles and the first trouble of each engine that has one, by its URL."""
    found: dict[str, tuple[set[str], Trouble]] = {}
    for replica in replicas:
        for engine in replica.engines:
            if (trouble := trouble_of(engine)) is not None:
                names, first = found.get(engine.url, (set[str](), trouble))
                found[engine.url] = names | {replica.role}, min(first, trouble, key=lambda each: each.since)
    return found


async def _unusable_engines(gateway: Gateway) -> list[FieldProblem]:
    roles = gateway["roles"].items()
    # No more replies than replicas that always run, so that a role below its maximum costs no time. A role that nothing
    # has used has none, and that is known at once.
    found = await asyncio.gather(*(replicas_of(gateway, name, role, max(1, role.replicas.min)) for name, role in roles))
    replicas = list(chain.from_iterable(found))
    # This route answers without a key, so it names an engine's URL only in development mode.
    development = gateway["access"].development
    restart = f"Restart it, or correct its URL{'' if development else ', which `GET /roles` names'}"

    def fault(url: str, names: set[str], state: str, remedy: str) -> FieldProblem:
        engine = f"Engine {url}" if development else "An engine"
        return _missing("engines", f"{engine} of {', '.join(sorted(names))} {state}", remedy)

    return (
        [
            fault(url, names, str(outage), f"{restart} (VLLM_URL, or `engines` of the role).")
            for url, (names, outage) in _troubled(replicas, lambda engine: engine.unreachable).items()
        ]
        + [
            fault(
                url,
                names,
                "refuses its key",
                f"{rejected.remedy[0].upper()}{rejected.remedy[1:]}."
                if development
                else "Correct its key as `GET /roles` says.",
            )
            for url, (names, rejected) in _troubled(replicas, lambda engine: engine.key_rejected).items()
        ]
        + [
            fault(
                engine.url,
                {replica.role},
                f"has a list of models that {engine.list_problem if development else 'is of no use'}",
                "Correct it, or give the engine a `model`; with one, calls do without the list.",
            )
            for replica in replicas
            for engine in replica.engines
            if engine.list_problem
        ]
    )


async def _faults(gateway: Gateway) -> list[FieldProblem]:
    faults = await _stream_faults(gateway)
    if not gateway["catalog"].caught_up:
        faults.append(_missing("catalog", "The log has not been read completely", "Wait."))
    keyring = gateway["access"].keyring
    if keyring is not None and not keyring.caught_up:
        faults.append(_missing("keys", "The keys have not been read", "Wait."))
    spends = gateway["deliberations"].spends
    if spends is not None and not spends.caught_up:
        faults.append(_missing("spends", "The spends of the day have not been read", "Wait."))
    remedy = "Deploy the coordinator; accepted deliberations wait in the log."
    return faults + await _unanswered(gateway, COORDINATORS_SUBJECT, "coordinator", "coordinator", remedy)


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

    `degraded` lists missing webhook senders and takers of plans, faults of the archive, and engines that are
    unreachable or refuse their key. Another gateway would have the same faults.
    """
    if gateway["feed"].draining.is_set():
        raise NotReady(
            "Not ready: draining", [_missing("draining", "This process is stopping", "Use another replica.")]
        )
    faults, degraded = await gateway["readiness"].get(lambda: _readiness(gateway))
    if faults:
        raise NotReady(f"Not ready: {', '.join(dict.fromkeys(fault.pointer for fault in faults))}", faults)
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
    }
    ready = Ready(
        mode="development" if access.development else "keys",
        checks=tuple(name for name, checked in present.items() if checked),
        degraded=tuple(chain.from_iterable(degraded.values())),
    )
    return Response(dump(ready), headers=_NO_STORE, media_type="application/json")


async def _readiness(gateway: Gateway) -> Readiness:
    settings = gateway["settings"]
    sender = "Run `python -m app.webhooks`; it sends the deliveries that wait in the log."
    planner = "Run `python -m app.planning`; it takes the plans that wait. `POST /plans` works without it."
    senders = _unanswered(gateway, SENDERS_SUBJECT, "webhooks", "webhook sender", sender, wanted=settings.webhooks)
    planners = _unanswered(
        gateway, PLANNERS_SUBJECT, "planning", "process that takes plans", planner, wanted=settings.planning
    )
    async with asyncio.TaskGroup() as group:
        faults = group.create_task(_faults(gateway))
        lacking = {
            "webhooks": group.create_task(senders),
            "archive": group.create_task(_archive_faults(gateway)),
            "planning": group.create_task(planners),
            "engines": group.create_task(_unusable_engines(gateway)),
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
    )
    return Response(exposition, headers={"Content-Type": CONTENT_TYPE})
