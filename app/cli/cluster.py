"""`deliberate cluster`: the state of every part of an installation on one screen."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.api.cluster_schemas import Cluster, EngineLoad, ProjectorView, Turn
from app.cli.client import GatewayClient
from app.cli.exits import Exit
from app.cli.render.lanes import is_simulated
from app.cli.render.ranking import plain
from app.cli.show import print_resource
from app.cli.target import on_gateway

_MEGABYTE = 1_000_000


def _rate(per_s: float | None) -> str:
    return "throughput unknown" if per_s is None else f"{per_s:.2g} per second"


def queue_text(found: Cluster) -> str:
    """What runs and what waits."""
    queue = found.queue
    head = f", the oldest for {queue.head_waited_s:.1f} s" if queue.waiting else ""
    return f"{queue.in_hand} running, {queue.waiting} waiting{head}; {_rate(queue.ended_per_s)}"


def versions_text(found: Cluster) -> str:
    """The versions of the gateway's side."""
    versions = found.versions
    return f"{versions.gateway}, Python {versions.python}, nats-server {versions.nats_server}"


def engine_text(engine: EngineLoad) -> str:
    """The name, the load and the version of an engine."""
    version = f", version {engine.version}" if engine.version else ""
    name = f"{engine.name}: " if engine.name else ""
    return f"{name}{engine.in_flight} in flight, circuit {engine.circuit}{version}; {', '.join(engine.roles)}"


def projector_text(projector: ProjectorView) -> str:
    """How far behind a projector is, and what it waits for."""
    waits = f"; waits: {projector.failure}" if projector.failure else ""
    return f"{projector.counts.get('written', 0)} copied, {projector.pending} facts behind{waits}"


def _kind(turn: Turn) -> str:
    return " ".join((*turn.roles, *(("batch",) if turn.priority == "batch" else ())))


def _work(found: Cluster) -> Iterator[tuple[str, str, str]]:
    queue = found.queue
    yield "queue", f"{queue.depth} of {queue.depth_max}", queue_text(found)
    for role in queue.roles:
        if role.depth:
            yield "", role.role, f"{role.depth} of {role.admitted} admitted; {_rate(role.ended_per_s)}"
    for coordinator in found.coordinators:
        turns = "".join(
            f"; {_kind(turn)}: {turn.begun} of {turn.bound} started, {turn.waiting} waiting"
            for turn in coordinator.turns
            if turn.begun or turn.waiting
        )
        yield "coordinator", coordinator.id, f"{coordinator.in_hand} running of {coordinator.bound}{turns}"
    for agent in found.agents:
        simulated = ", simulated" if agent.simulated and not is_simulated(agent.model) else ""
        figures = f"{agent.running} calls of {agent.concurrency}, {agent.waiting} waiting; {agent.model}{simulated}"
        yield f"agent {agent.role}", agent.id, figures
    for engine in found.engines:
        yield "engine", engine.url, engine_text(engine)


def _log(found: Cluster) -> Iterator[tuple[str, str, str]]:
    for stream in found.streams:
        if stream.messages:
            yield "stream", stream.name, f"{stream.messages} messages, {stream.bytes / _MEGABYTE:.1f} MB"
    for consumer in found.consumers:
        figures = f"{consumer.lag} behind, {consumer.unacknowledged} unacknowledged, {consumer.redelivered} redelivered"
        yield "consumer", consumer.name, figures
    for sender in found.webhooks or ():
        yield "webhooks", sender.id, f"{sender.in_flight} in flight, {sender.waiting} waiting"
    for projector in found.projectors or ():
        yield "archive", projector.id, projector_text(projector)
    yield "versions", "gateway", versions_text(found)
    for replicas in found.versions.replicas:
        ray = f"Ray {replicas.ray}" if replicas.ray else "without Ray"
        yield "", "replicas", f"{replicas.product}, Python {replicas.python}, {ray}"


def cluster_text(found: Cluster) -> RenderableType:
    """A row per part, and below them the parts that did not answer."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for style in ("bold", "", "dim"):
        table.add_column(style=style, overflow="fold")
    for row in (*_work(found), *_log(found)):
        table.add_row(*map(plain, row))
    missing = [plain(f"{each.part}: {each.detail}") for each in found.missing]
    return Group(table, *(Text.assemble(("missing", "yellow"), "  ", text) for text in missing))


@on_gateway
async def cluster(gateway: GatewayClient, *, as_json: bool) -> Exit:
    """Show replicas, queue, engines, log and versions. If keys are required, the scope admin is needed."""
    return await print_resource(gateway, "/cluster", Cluster, cluster_text, as_json=as_json)
