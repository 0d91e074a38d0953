"""`deliberate status | roles`: the parts of the installation that commands speak to, and their state."""

from collections.abc import Iterable, Iterator
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.api.installation import EngineLoad, EngineView, Installation, ProjectorView, RoleList, RoleResource
from app.api.schemas import Ready, Stats
from app.cli.client import GatewayClient, GatewayRefused, GatewayUnreachable, JsonObject, parsed
from app.cli.exits import Exit, output
from app.cli.render.figures import spend_text
from app.cli.render.lanes import is_simulated
from app.cli.render.text import counted, named_rows, plain, role_style
from app.cli.resources import print_resource
from app.cli.target import on_gateway

_MEGABYTE = 1_000_000


def _rate(per_s: float | None) -> str:
    return "throughput unknown" if per_s is None else f"{per_s:.2g} per second"


def _queue_text(installation: Installation) -> str:
    queue = installation.queue
    head = f", the oldest for {queue.head_waited_s:.1f} s" if queue.waiting else ""
    return f"{queue.in_hand} running, {queue.waiting} waiting{head}; {_rate(queue.ended_per_s)}"


def _versions_text(installation: Installation) -> str:
    versions = installation.versions
    return f"{versions.gateway}, Python {versions.python}, nats-server {versions.nats_server}"


def _engine_text(engine: EngineLoad) -> str:
    version = f", version {engine.version}" if engine.version else ""
    name = f"{engine.name}: " if engine.name else ""
    cached = "" if engine.cached_share is None else f", {engine.cached_share:.0%} cached"
    ttft = "" if engine.ttft_s is None else f", first token after {engine.ttft_s:.2f} s"
    figures = f"{engine.in_flight} in flight, {engine.waiting} waiting{cached}{ttft}, circuit {engine.circuit}{version}"
    return f"{name}{figures}; {', '.join(engine.roles)}"


def _projector_text(projector: ProjectorView) -> str:
    waits = f"; waits: {projector.failure}" if projector.failure else ""
    return f"{projector.counts.get('written', 0)} copied, {projector.pending} facts behind{waits}"


def _work(installation: Installation) -> Iterator[tuple[str, str, str]]:
    queue = installation.queue
    yield "queue", f"{queue.depth} of {queue.depth_max}", _queue_text(installation)
    for role in queue.roles:
        if role.depth:
            yield "", role.role, f"{role.depth} of {role.admitted} admitted; {_rate(role.ended_per_s)}"
    for coordinator in installation.coordinators:
        line = f"{coordinator.in_hand} running of {coordinator.bound}"
        for turn in coordinator.turns:
            if turn.begun or turn.waiting:
                kind = " ".join(turn.roles) + " batch" * (turn.priority == "batch")
                line += f"; {kind}: {turn.begun} of {turn.bound} started, {turn.waiting} waiting"
        if coordinator.clusters:
            line += f"; takes {', '.join(coordinator.clusters)}"
        yield "coordinator", coordinator.id, line
    for agent in installation.agents:
        simulated = ", simulated" if agent.simulated and not is_simulated(agent.model) else ""
        figures = f"{agent.running} calls of {agent.concurrency}, {agent.waiting} waiting; {agent.model}{simulated}"
        yield f"agent {agent.role}", agent.id, figures
    for engine in installation.engines:
        yield "engine", engine.url, _engine_text(engine)


def _log(installation: Installation) -> Iterator[tuple[str, str, str]]:
    for stream in installation.streams:
        if stream.messages:
            yield "stream", stream.name, f"{stream.messages} messages, {stream.bytes / _MEGABYTE:.1f} MB"
    for consumer in installation.consumers:
        figures = f"{consumer.lag} behind, {consumer.unacknowledged} unacknowledged, {consumer.redelivered} redelivered"
        yield "consumer", consumer.name, figures
    for sender in installation.webhooks or ():
        yield "webhooks", sender.id, f"{sender.in_flight} in flight, {sender.waiting} waiting"
    for projector in installation.projectors or ():
        yield "archive", projector.id, _projector_text(projector)
    yield "versions", "gateway", _versions_text(installation)
    for replicas in installation.versions.replicas:
        ray = f"Ray {replicas.ray}" if replicas.ray else "without Ray"
        yield "", "replicas", f"{replicas.product}, Python {replicas.python}, {ray}"


def parts_table(installation: Installation) -> Table:
    """A line for each replica, engine, stream and consumer."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for style in ("bold", "", "dim"):
        table.add_column(style=style, overflow="fold")
    for row in (*_work(installation), *_log(installation)):
        table.add_row(*map(plain, row))
    return table


def _model_text(role: RoleResource) -> Text:
    if role.live is None:
        return Text("no replica answers", "yellow") if role.replicas.min else Text("starts at its first use", "dim")
    named = any(map(is_simulated, role.live.models))
    text = plain(", ".join(role.live.models) or "no model")
    text.append(" simulated" if role.live.simulated and not named else "")
    text.stylize("yellow" if role.live.simulated or named else "")
    return text


def _replicas_text(role: RoleResource) -> str:
    answering, low, high = role.live.replicas if role.live else 0, role.replicas.min, role.replicas.max
    bounds = f" of {low}–{high}" if low < high else f" of {high}" if answering != high else ""
    return f"{answering}{bounds} replica{'' if f'{answering}{bounds}' == '1' else 's'}"


def _engine_state(engine: EngineView) -> Text:
    told = f" {engine.trouble}. {engine.trouble.remedy}" if engine.trouble else ""
    return Text.assemble(plain(engine.url), (plain(told).plain, "red"))


def roles_table(roles: Iterable[RoleResource], *, troubles: bool = True) -> Table:
    """A line per role, and with `troubles` one below it for each of its engines that has one, with the remedy."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for _ in ("replicas", "temperature"):
        table.add_column(style="dim", no_wrap=True)
    for role in roles:
        name = Text(role.name, f"bold {role_style(role.name)}")
        table.add_row(name, _model_text(role), _replicas_text(role), f"temperature {role.sampling.temperature:g}")
        for engine in role.live.engines if role.live and troubles else ():
            if engine.trouble is not None:
                table.add_row("", _engine_state(engine))
    return table


def _roles_with_personas(roles: RoleList) -> Group:
    parts: list[RenderableType] = []
    for role in roles.items:
        parts += [roles_table([role]), Padding(plain(" ".join(role.persona.split())), (0, 0, 1, 2))]
    return Group(*parts)


def _role_text(role: RoleResource) -> Group:
    live = role.live
    declared = plain(", ".join(role.engines) or "the default ones")
    rows: list[tuple[str, RenderableType]] = [
        ("persona", plain(role.persona.strip())),
        ("model", plain(role.model or "the first of the engine")),
        ("engines", Text("\n").join(map(_engine_state, live.engines)) if live else declared),
        *([("fallback", plain(", ".join(role.fallback)))] if role.fallback and live is None else []),
        ("sampling", f"temperature {role.sampling.temperature:g}, {role.sampling.max_tokens} tokens"),
        ("calls", f"{f'{live.in_flight} running, ' if live else ''}{role.concurrency} at a time for each replica"),
    ]
    return Group(roles_table([role]), named_rows(rows))


@on_gateway
async def roles(
    gateway: GatewayClient,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this role with its persona.")] = None,
    *,
    as_json: bool,
) -> Exit:
    """List the roles of agents, or show one."""
    if name is None:
        return await print_resource(gateway, "/roles", RoleList, _roles_with_personas, as_json=as_json)
    path, unknown = f"/roles/{quote(name, safe='')}", "`deliberate roles` lists the roles"
    return await print_resource(gateway, path, RoleResource, _role_text, as_json=as_json, unknown=unknown)


async def _readiness(gateway: GatewayClient) -> JsonObject:
    try:
        return await gateway.read("/readyz")
    except GatewayUnreachable as error:
        if error.code != "not_ready":
            raise
        return {"status": "not_ready", "errors": [fault._asdict() for fault in error.fields]}


async def _read_status(gateway: GatewayClient) -> JsonObject:
    """Every part by its name; a part that the key may not read is in `refused` with the reason."""
    read: JsonObject = {
        "url": gateway.url,
        "source": gateway.source,
        "ready": await _readiness(gateway),
        "refused": {},
    }
    for name in ("roles", "stats", "status"):
        try:
            read[name] = await gateway.read(f"/{name}")
        except (GatewayRefused, GatewayUnreachable) as error:
            read["refused"][name] = f"{error.code}: {error.detail}"
    return read


def _gateway_rows(read: JsonObject) -> Iterator[tuple[str, Text]]:
    yield "gateway", plain(f"{read['url']} (from {read['source']})")
    ready = read["ready"]
    if ready["status"] != "ready":
        yield "", Text("not ready", "red")
        for fault in ready["errors"]:
            yield "", plain(f"{fault['field']}: {fault['detail']}. {fault['remedy']}")
        return
    document = parsed(Ready, ready)
    yield "", Text.assemble(("ready", "green"), f", {'keys required' if document.mode == 'keys' else 'no keys'}")
    if "status" not in read:
        for fault in document.degraded:
            yield "", Text.assemble(("degraded ", "yellow"), plain(f"{fault.pointer}: {fault.detail}. {fault.remedy}"))


def _rows(read: JsonObject) -> Iterator[tuple[str, RenderableType]]:
    yield from _gateway_rows(read)
    installation = parsed(Installation, read["status"]) if "status" in read else None
    for fault in installation.findings if installation else ():
        if fault.severity != "info":
            yield "", Text.assemble((f"{fault.part} ", "yellow"), plain(f"{fault.detail}. {fault.remedy}"))
    if "stats" in read:
        stats = parsed(Stats, read["stats"])
        counts = {name: getattr(stats, name) for name in ("active", "completed", "failed", "cancelled", "timeout")}
        known = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "active")
        yield "work", plain(f"{counted(stats.total, 'deliberation')} since {stats.from_.date()}: {known}")
        if stats.spend is not None:
            yield "spend", plain(spend_text(stats.spend))
    if "roles" in read:
        yield "roles", roles_table(parsed(RoleList, read["roles"]).items, troubles=installation is None)
    if installation is not None:
        for engine in installation.engines:
            yield "engine", plain(f"{engine.url}  {_engine_text(engine)}")
        yield "queue", plain(_queue_text(installation))
        for projector in installation.projectors or ():
            yield "archive", plain(f"{projector.id}  {_projector_text(projector)}")
        yield "versions", plain(f"gateway {_versions_text(installation)}")
    for name, reason in read["refused"].items():
        yield name, Text.assemble(("not shown: ", "yellow"), plain(reason))


def _parts(read: JsonObject) -> Iterator[RenderableType]:
    if "status" in read:
        yield ""
        yield parts_table(parsed(Installation, read["status"]))


@on_gateway
async def status(
    gateway: GatewayClient,
    every: Annotated[bool, typer.Option("--all", help="List every replica, engine, stream and consumer too.")] = False,
    *,
    as_json: bool,
) -> Exit:
    """Show the stack on one screen: gateway, faults, work, roles, engines, queue and versions.

    Exits with 3 when no gateway answers or it is not ready. Parts that the key may not read are named.
    """
    read = await _read_status(gateway)
    output(
        read,
        lambda: Group(named_rows(_rows(read), "bold"), *(_parts(read) if every else ())),
        as_json=as_json,
    )
    return Exit.SUCCESS if read["ready"]["status"] == "ready" else Exit.UNREACHABLE
