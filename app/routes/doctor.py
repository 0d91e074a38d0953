"""Route: the findings of the installation, from the checks of `/readyz` and the inquiry of `/cluster`."""

import asyncio
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import chain

from fastapi import Response

from app.api.cluster_schemas import Cluster
from app.api.findings import Diagnosis, Finding, finding, ordered
from app.api.responses import answer, problems
from app.api.schemas import dump
from app.observability.checks import capability_findings
from app.routes.cluster import survey
from app.routes.dependencies import Gateway, InGateway, api_router
from app.routes.health import DRAINING, readiness

# Older ones have known holes that a client can reach.
NATS_SERVER_MIN = (2, 15, 1)
VLLM_MIN = (0, 33, 0)
# An inquiry takes up to a second.
CLOCK_DIFFERS_S = 3.0
STORE_SHARE_MAX = 0.8

router = api_router("operations")


@router.get(
    "/doctor",
    summary="The faults of the installation, with their effects and remedies",
    responses={200: answer("The findings", model=Diagnosis), **problems()},
)
async def get_diagnosis(gateway: InGateway) -> Response:
    """Always 200 within about a second; without a finding the installation is sound. An answer is at most a second old.

    The gravest stands first, and of one severity causes before their effects.
    """
    content = await gateway["doctor"].get(lambda: _diagnose(gateway))
    return Response(content, headers={"Cache-Control": "no-store"}, media_type="application/json")


async def _diagnose(gateway: Gateway) -> bytes:
    async with asyncio.TaskGroup() as group:
        checked = group.create_task(readiness(gateway, named=True))
        surveyed = group.create_task(survey(gateway))
    faults, degraded = checked.result()
    cluster, agents, server_at = surveyed.result()
    tokens_max = {name: role.sampling.max_tokens for name, role in gateway["roles"].items()}
    found = [
        *faults,
        *chain.from_iterable(degraded.values()),
        *capability_findings(agents, tokens_max),
        *_shortages(cluster),
        *_versions(cluster),
        *_state(gateway, cluster, server_at),
    ]
    return dump(Diagnosis(at=cluster.at, version=cluster.versions.gateway, findings=ordered(found)))


def _shortages(cluster: Cluster) -> Iterator[Finding]:
    """The replicas that did not answer; `/readyz` checks the other parts."""
    for part, detail in ((each.part, each.detail) for each in cluster.missing):
        if "is not valid" in detail:
            yield finding("reply_invalid", f"{part}: {detail}", "Run one version of all parts.")
        elif part.startswith("role "):
            code = "role_missing" if detail.startswith("None") else "replicas_few"
            remedy = "Read the log of the agents; `deliberate cluster` shows Serve's deployments."
            yield finding(code, f"{part}: {detail}", remedy)
        elif part == "coordinator" and cluster.coordinators:
            yield finding("coordinators_few", f"coordinator: {detail}", "Read the log of those that do not answer.")


def _versions(cluster: Cluster) -> Iterator[Finding]:
    versions = cluster.versions
    products = sorted({each.product for each in versions.replicas if each.product} - {versions.gateway})
    if products:
        detail = f"The gateway has version {versions.gateway}, and other parts have {', '.join(products)}"
        yield finding("versions_differ", detail, "End the rolling update, or deploy one image for all parts.")
    for name in ("ray", "python"):
        found = sorted({value for each in versions.replicas if (value := getattr(each, name))})
        if len(found) > 1:
            detail = f"Replicas have {name.capitalize()} {' and '.join(found)}"
            yield finding("versions_differ", detail, "Deploy one image on all nodes: Ray refuses nodes that differ.")
    server = versions.nats_server
    if server is not None and _number(server) < NATS_SERVER_MIN:
        least = ".".join(map(str, NATS_SERVER_MIN))
        yield finding("server_old", f"nats-server has version {server}", f"Update it to {least} or newer.")
    for engine in cluster.engines:
        if engine.version and not engine.simulated and _number(engine.version) < VLLM_MIN:
            least = ".".join(map(str, VLLM_MIN))
            yield finding("server_old", f"vLLM at {engine.url} has version {engine.version}", f"Update it to {least}.")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])


def _state(gateway: Gateway, cluster: Cluster, server_at: datetime | None) -> Iterator[Finding]:
    if gateway["feed"].draining.is_set():
        yield DRAINING
    queue, settings = cluster.queue, gateway["settings"]
    # JetStream reports the server's bound to its system account alone.
    stored, stored_max = sum(stream.bytes for stream in cluster.streams), settings.nats_store_max
    if stored_max is not None and stored >= STORE_SHARE_MAX * stored_max:
        detail = f"The streams hold {stored >> 20} MiB of the {stored_max >> 20} that nats-server may store"
        yield finding(
            "store_filling", detail, "Shorten DELIBERATION_CLEANUP, or raise `max_file_store` and the volume."
        )
    if queue.depth >= queue.depth_max:
        remedy = "Add engines or replicas, or raise QUEUE_DEPTH_MAX."
        yield finding("queue_full", f"{queue.depth} deliberations of {queue.depth_max} are unfinished", remedy)
    apart_s = 0.0 if server_at is None else (gateway["clock"].now() - server_at).total_seconds()
    if abs(apart_s) > CLOCK_DIFFERS_S:
        detail = f"The gateway's clock is {abs(apart_s):.0f} s {'ahead of' if apart_s > 0 else 'behind'} nats-server's"
        yield finding("clock_differs", detail, "Run an NTP client, such as chrony, on every host.")
    if refused := gateway["journal"].refused:
        remedy = "Give every part the same LOG_KEY_FILE; the warning `log_record_refused` names the subject."
        yield finding("records_refused", f"{refused} records were refused since this gateway's start", remedy)
    if settings.key_pepper is not None and settings.log_key_file is None:
        remedy = "Give every part a LOG_KEY_FILE, for example with what `openssl rand -hex 32` writes."
        yield finding("records_unsigned", "The log has no key", remedy)
