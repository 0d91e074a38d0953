"""`deliberate status`: one screen about the stack that commands speak to."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.api.cluster_schemas import Cluster, RoleList
from app.api.schemas import Ready, Stats
from app.cli.client import GatewayClient, GatewayRefused, GatewayUnreachable, JsonObject, parsed
from app.cli.cluster import engine_text, projector_text, queue_text, versions_text
from app.cli.exits import Exit, output
from app.cli.render.figures import spend_text
from app.cli.render.prose import counted
from app.cli.render.ranking import plain
from app.cli.show import roles_table
from app.cli.target import on_gateway

_PATHS = {"roles": "/roles", "stats": "/stats", "cluster": "/cluster"}


async def _readiness(gateway: GatewayClient) -> JsonObject:
    """The document of `/readyz`, or the problems of a gateway that is not ready. Raises when none answers."""
    try:
        return await gateway.read("/readyz")
    except GatewayUnreachable as error:
        if error.code != "not_ready":
            raise
        return {"status": "not_ready", "errors": [fault._asdict() for fault in error.fields]}


async def read_status(gateway: GatewayClient) -> JsonObject:
    """All that the key may see, each part by its name; a part that is refused is in `refused` with the reason."""
    found: JsonObject = {
        "url": gateway.url,
        "source": gateway.source,
        "ready": await _readiness(gateway),
        "refused": {},
    }
    for name, path in _PATHS.items():
        try:
            found[name] = await gateway.read(path)
        except (GatewayRefused, GatewayUnreachable) as error:
            found["refused"][name] = f"{error.code}: {error.detail}"
    return found


def _gateway_rows(found: JsonObject) -> Iterator[tuple[str, Text]]:
    yield "gateway", plain(f"{found['url']} (from {found['source']})")
    ready = found["ready"]
    if ready["status"] != "ready":
        yield "", Text("not ready", "red")
        for fault in ready["errors"]:
            yield "", plain(f"{fault['field']}: {fault['detail']}. {fault['remedy']}")
        return
    document = parsed(Ready, ready)
    yield "", Text.assemble(("ready", "green"), f", {'keys required' if document.mode == 'keys' else 'no keys'}")
    for fault in document.degraded:
        yield "", Text.assemble(("degraded ", "yellow"), plain(f"{fault.pointer}: {fault.detail}. {fault.remedy}"))


def _rows(found: JsonObject) -> Iterator[tuple[str, RenderableType]]:
    yield from _gateway_rows(found)
    if "stats" in found:
        stats = parsed(Stats, found["stats"])
        counts = {name: getattr(stats, name) for name in ("active", "completed", "failed", "cancelled", "timeout")}
        known = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "active")
        yield "work", plain(f"{counted(stats.total, 'deliberation')} since {stats.from_.date()}: {known}")
        if stats.spend is not None:
            yield "spend", plain(spend_text(stats.spend))
    if "roles" in found:
        yield "roles", roles_table(parsed(RoleList, found["roles"]).items)
    if "cluster" in found:
        cluster = parsed(Cluster, found["cluster"])
        for engine in cluster.engines:
            yield "engine", plain(f"{engine.url}  {engine_text(engine)}")
        yield "queue", plain(queue_text(cluster))
        for projector in cluster.projectors or ():
            yield "archive", plain(f"{projector.id}  {projector_text(projector)}")
        yield "versions", plain(f"gateway {versions_text(cluster)}")
        for each in cluster.missing:
            yield "missing", Text.assemble((each.part, "yellow"), ": ", plain(each.detail))
    for name, reason in found["refused"].items():
        yield name, Text.assemble(("not shown: ", "yellow"), plain(reason))


def status_text(found: JsonObject) -> Group:
    """The screen."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in _rows(found):
        table.add_row(*row)
    return Group(table)


@on_gateway
async def status(gateway: GatewayClient, *, as_json: bool) -> Exit:
    """Show the stack on one screen: gateway, work, roles, engines, queue and versions.

    Exits with 3 when no gateway answers or it is not ready. What the key may not read is named.
    """
    found = await read_status(gateway)
    output(found, lambda: status_text(found), as_json=as_json)
    return Exit.SUCCESS if found["ready"]["status"] == "ready" else Exit.UNREACHABLE
