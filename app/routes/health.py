"""Routes: alive, ready, statistics, metrics."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from app.api.problems import NotReady
from app.api.responses import answer, problems
from app.api.schemas import FieldProblem, Health, Ready, Stats, dump
from app.api.webhook_stats import CONTROL_SUBJECT, SENDERS_MAX
from app.deliberation.errors import JournalUnavailable, StreamsDiffer
from app.observability.metrics import CONTENT_TYPE
from app.routes.dependencies import Gateway, InGateway, OfTenant
from app.routes.roles import replicas_of

INQUIRY_TIMEOUT_S = 1.0
# Nobody knows how many there are, so that a scrape waits as long as this.
SENDERS_TIMEOUT_S = 0.3
_NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(tags=["operations"])


def _missing(check: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(location="service", pointer=check, code="not_ready", detail=detail, remedy=remedy)


async def _stream_faults(gateway: Gateway) -> list[FieldProblem]:
    """What is wrong with the log: out of reach, or its streams not as declared."""
    # Where the log lives is nothing for strangers, whom this route answers too.
    url = gateway["settings"].nats_url.rpartition("@")[2]
    named = f" (now {url})" if gateway["access"].development else ""
    try:
        lines = await gateway["journal"].differences()
    except JournalUnavailable as exc:
        remedy = f"Start nats-server, or set NATS_URL{named}. Where its disk was full: make room, and start it again."
        return [_missing("journal", str(exc), remedy)]
    except StreamsDiffer as exc:
        lines = [str(exc)]
    return [
        _missing("streams", line, "Run `deliberate streams plan`, then `deliberate streams apply`.") for line in lines
    ]


async def _lacking(gateway: Gateway) -> list[FieldProblem]:
    """What is not there and nothing accepted or answered depends on: who sends webhooks, where they are on."""
    if not gateway["settings"].webhooks:
        return []
    if await gateway["journal"].inquire(CONTROL_SUBJECT, timeout_s=INQUIRY_TIMEOUT_S):
        return []
    remedy = "Run `python -m app.webhooks`; what is to be sent waits in the log, and is sent then."
    return [_missing("webhooks", f"No sender of webhooks answered within {INQUIRY_TIMEOUT_S:g} s", remedy)]


async def _faults(gateway: Gateway) -> list[FieldProblem]:
    """Everything that serving needs and is not there."""
    faults: list[FieldProblem] = []
    if gateway["feed"].draining.is_set():
        faults.append(_missing("draining", "This process is stopping", "Use another replica."))
    faults += await _stream_faults(gateway)
    if not gateway["catalog"].caught_up:
        faults.append(_missing("catalog", "The log has not been read to its end", "Wait."))
    keyring = gateway["access"].keyring
    if keyring is not None and not keyring.caught_up:
        faults.append(_missing("keys", "The keys have not been read", "Wait."))
    replies = await gateway["journal"].inquire("control.coordinator", timeout_s=INQUIRY_TIMEOUT_S)
    if not replies:
        remedy = "Deploy the coordinator; what is accepted meanwhile waits in the log."
        faults.append(_missing("coordinator", f"No coordinator answered within {INQUIRY_TIMEOUT_S:g} s", remedy))
    return faults


@router.get(
    "/healthz",
    operation_id="get_health",
    summary="Whether the process is alive",
    response_class=Response,
    responses={200: {"model": Health, **answer("Alive")}, **problems()},
)
async def get_health() -> Response:
    """Nothing but the process itself is asked."""
    return Response(dump(Health()), headers=_NO_STORE, media_type="application/json")


@router.get(
    "/readyz",
    operation_id="get_readiness",
    summary="Whether work is accepted and will be done",
    response_class=Response,
    responses={200: {"model": Ready, **answer("Ready")}, **problems(503)},
)
async def get_readiness(gateway: InGateway) -> Response:
    """The log reachable, its streams as declared, the catalog caught up, a coordinator alive, and not draining.

    Without a sender of webhooks it is ready all the same, and `degraded` tells: no deliberation waits for one.
    """
    async with asyncio.TaskGroup() as group:
        finding, looking = group.create_task(_faults(gateway)), group.create_task(_lacking(gateway))
    faults, degraded = finding.result(), looking.result()
    if faults:
        raise NotReady(f"Not ready: {', '.join(dict.fromkeys(fault.pointer for fault in faults))}", faults)
    access = gateway["access"]
    keys = () if access.development else ("keys",)
    webhooks = ("webhooks",) if gateway["settings"].webhooks and not degraded else ()
    ready = Ready(
        mode="development" if access.development else "keys",
        checks=("journal", "streams", "catalog", *keys, "coordinator", *webhooks),
        degraded=tuple(degraded),
    )
    return Response(dump(ready), headers=_NO_STORE, media_type="application/json")


@router.get(
    "/stats",
    operation_id="get_stats",
    summary="Counts, durations and tokens",
    response_class=Response,
    responses={200: {"model": Stats, **answer("Over the retained deliberations")}, **problems(503)},
)
async def get_stats(gateway: InGateway, tenant: OfTenant) -> Response:
    """Durations are seconds from acceptance to a verdict; tokens are what the engines reported."""
    return Response(
        dump(gateway["catalog"].require_caught_up().stats(tenant)), headers=_NO_STORE, media_type="application/json"
    )


async def senders_of(gateway: Gateway) -> list[dict[str, Any]] | None:
    """What the senders of webhooks say of themselves; None where there need be none."""
    if not gateway["settings"].webhooks:
        return None
    return await gateway["journal"].inquire(CONTROL_SUBJECT, timeout_s=SENDERS_TIMEOUT_S, replies_max=SENDERS_MAX)


@router.get(
    "/metrics",
    operation_id="get_metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, **answer("Text exposition")}},
)
async def get_metrics(gateway: InGateway) -> Response:
    """Requests are this process's; deliberations are those of all who share the log, and calls the agents' own."""
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(replicas_of(gateway, name, role)) for name, role in gateway["roles"].items()]
        senders = group.create_task(senders_of(gateway))
    replicas = [replica for task in asked for replica in task.result() if replica.counts]
    return Response(gateway["metrics"].exposition(replicas, senders.result()), headers={"Content-Type": CONTENT_TYPE})
