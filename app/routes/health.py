"""Routes: health, readiness, statistics, metrics."""

import asyncio
from itertools import chain
from typing import Any

from fastapi import Response

from app.api.problems import NotReady
from app.api.responses import answer, problems
from app.api.schemas import FieldProblem, Health, Ready, Stats, dump
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.deliberation.facts import Unreachable
from app.observability.metrics import CONTENT_TYPE
from app.observability.replica_status import SENDERS_MAX, SENDERS_SUBJECT, SenderStatus, read
from app.routes.dependencies import Gateway, InGateway, OfTenant, api_router
from app.routes.roles import replicas_of

INQUIRY_TIMEOUT_S = 1.0
# The number of senders is unknown, so every scrape waits for this long.
SENDERS_TIMEOUT_S = 0.3
_NO_STORE = {"Cache-Control": "no-store"}

router = api_router("operations")


def _missing(check: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(location="service", pointer=check, code="not_ready", detail=detail, remedy=remedy)


async def _stream_faults(gateway: Gateway) -> list[FieldProblem]:
    """The log's faults: unreachable, or streams that are not as declared."""
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


async def _missing_senders(gateway: Gateway) -> list[FieldProblem]:
    """The fault of missing senders, where webhooks are on."""
    if not gateway["settings"].webhooks:
        return []
    if await gateway["journal"].inquire(SENDERS_SUBJECT, timeout_s=INQUIRY_TIMEOUT_S):
        return []
    remedy = "Run `python -m app.webhooks`; it sends the deliveries that wait in the log."
    return [_missing("webhooks", f"No webhook sender answered within {INQUIRY_TIMEOUT_S:g} s", remedy)]


async def _unreachable_engines(gateway: Gateway) -> list[FieldProblem]:
    """The engines that a role's replicas cannot connect to."""
    roles = gateway["roles"].items()
    # No more replies than replicas that always run, so that a role below its maximum costs no time.
    found = await asyncio.gather(*(replicas_of(gateway, name, role, role.replicas.min) for name, role in roles))
    affected: dict[str, tuple[set[str], Unreachable]] = {}
    for replica in chain.from_iterable(found):
        for engine in replica.engines:
            if engine.unreachable is not None:
                names, outage = affected.setdefault(engine.url, (set(), engine.unreachable))
                names.add(replica.role)
                affected[engine.url] = names, min(outage, engine.unreachable, key=lambda each: each.since)
    # This route answers without a key, so it names an engine's URL only in development mode.
    development = gateway["access"].development
    where = "" if development else ", which `GET /roles` names"
    return [
        _missing(
            "engines",
            f"{f'Engine {url}' if development else 'An engine'} of {', '.join(sorted(names))} {outage}",
            f"Restart it, or correct its URL{where} (VLLM_URL, or `engines` of the role).",
        )
        for url, (names, outage) in affected.items()
    ]


async def _faults(gateway: Gateway) -> list[FieldProblem]:
    """Every missing dependency of the gateway."""
    faults: list[FieldProblem] = []
    if gateway["feed"].draining.is_set():
        faults.append(_missing("draining", "This process is stopping", "Use another replica."))
    faults += await _stream_faults(gateway)
    if not gateway["catalog"].caught_up:
        faults.append(_missing("catalog", "The log has not been read completely", "Wait."))
    keyring = gateway["access"].keyring
    if keyring is not None and not keyring.caught_up:
        faults.append(_missing("keys", "The keys have not been read", "Wait."))
    replies = await gateway["journal"].inquire("control.coordinator", timeout_s=INQUIRY_TIMEOUT_S)
    if not replies:
        remedy = "Deploy the coordinator; accepted deliberations wait in the log."
        faults.append(_missing("coordinator", f"No coordinator answered within {INQUIRY_TIMEOUT_S:g} s", remedy))
    return faults


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

    `degraded` lists missing webhook senders and unreachable engines: another gateway would not have them either.
    """
    async with asyncio.TaskGroup() as group:
        faulty, sending = group.create_task(_faults(gateway)), group.create_task(_missing_senders(gateway))
        reaching = group.create_task(_unreachable_engines(gateway))
    faults = faulty.result()
    if faults:
        raise NotReady(f"Not ready: {', '.join(dict.fromkeys(fault.pointer for fault in faults))}", faults)
    access = gateway["access"]
    keys = () if access.development else ("keys",)
    webhooks = ("webhooks",) if gateway["settings"].webhooks and not sending.result() else ()
    ready = Ready(
        mode="development" if access.development else "keys",
        checks=("journal", "streams", "catalog", *keys, "coordinator", *webhooks),
        degraded=(*sending.result(), *reaching.result()),
    )
    return Response(dump(ready), headers=_NO_STORE, media_type="application/json")


@router.get(
    "/stats",
    summary="Counts, durations and tokens",
    responses={200: answer("Over the retained deliberations", model=Stats), **problems(503)},
)
async def get_stats(gateway: InGateway, tenant: OfTenant) -> Response:
    """Durations are seconds from acceptance to a verdict; tokens are what the engines reported."""
    return Response(
        dump(gateway["catalog"].require_caught_up().stats(tenant)), headers=_NO_STORE, media_type="application/json"
    )


async def senders_of(gateway: Gateway) -> list[dict[str, Any]] | None:
    """The status replies of webhook senders; None where webhooks are off."""
    if not gateway["settings"].webhooks:
        return None
    return await gateway["journal"].inquire(SENDERS_SUBJECT, timeout_s=SENDERS_TIMEOUT_S, replies_max=SENDERS_MAX)


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, **answer("Text exposition")}},
)
async def get_metrics(gateway: InGateway) -> Response:
    """Requests of this process, deliberations of the whole log, and calls of the agents."""
    async with asyncio.TaskGroup() as group:
        inquiries = [group.create_task(replicas_of(gateway, name, role)) for name, role in gateway["roles"].items()]
        senders = group.create_task(senders_of(gateway))
    replicas = [replica for task in inquiries for replica in task.result() if replica.counts]
    replies = senders.result()
    described = None if replies is None else read(SenderStatus, replies)[0]
    return Response(gateway["metrics"].exposition(replicas, described), headers={"Content-Type": CONTENT_TYPE})
