"""`deliberate list | stats | show | cancel | delete | roles`: reads, changes and prints resources of a gateway."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.api.cluster_schemas import EngineView, RoleList, RoleResource
from app.api.schemas import Deliberation, DeliberationPage, DeliberationSummary, Stats
from app.cli.client import GatewayClient, GatewayRefused, JsonObject, parsed
from app.cli.exits import Exit, naming_options, output, print_json
from app.cli.ids import full_id
from app.cli.options import IdArgument, pairs
from app.cli.render.figures import stats_text
from app.cli.render.lanes import is_simulated
from app.cli.render.overview import overview_table
from app.cli.render.panels import seconds, style_of
from app.cli.render.ranking import age_text, brief, deliberation_report, duration_s, plain, status_text
from app.cli.render.silence import WAIT_EVENT_TYPES, waits_text
from app.cli.render.transcript import EVENT_TYPES, transcript
from app.cli.target import on_gateway
from app.deliberation.facts import TERMINAL_STATUS, Event, Fact, decode
from app.webhooks.resources import Delivery

_Model = TypeVar("_Model", bound=BaseModel)
_ID_CHARS_MIN = 10
_COUNCIL_WIDTH_MAX = 11
_TASK_WIDTH_MIN = 22
_TASK_CHARS_MAX = 60
_FILTERS = {
    **{name: f"--{name}" for name in ("status", "role", "strategy", "limit", "cursor")},
    "q": "--search",
    "created_after": "--created-after",
    "created_before": "--created-before",
    "metadata": "--meta {}",
    **{name: f"--{name}" for name in ("from", "to", "by")},
}


async def print_resource(
    gateway: GatewayClient,
    path: str,
    model: type[_Model],
    rendered: Callable[[_Model], RenderableType],
    *,
    as_json: bool,
    params: JsonObject | None = None,
    unknown: str | None = None,
) -> Exit:
    """Read a resource of the gateway, and print it as JSON or `rendered`. `unknown` is the remedy for a 404."""
    try:
        with naming_options(_FILTERS):
            document = await gateway.read(path, params)
    except GatewayRefused as error:
        if error.code == "not_found":
            error.remedy = unknown or error.remedy
        raise
    return output(document, lambda: rendered(parsed(model, document)), as_json=as_json)


def short_ids(ids: list[str]) -> list[str]:
    """The beginnings of ids, as long as they must be to differ on this page."""
    chars, longest = _ID_CHARS_MIN, max(map(len, ids), default=0)
    while chars < longest and len({each[:chars] for each in ids}) < len(ids):
        chars += 1
    return [each[:chars] for each in ids]


def _row(found: DeliberationSummary, id: str, now: datetime, *, strategy: bool) -> list[RenderableType]:
    took_s = duration_s(found.created_at, found.ended_at)
    council = (entry.role if entry.count == 1 else f"{entry.count}×{entry.role}" for entry in found.agents)
    return [
        plain(id),
        status_text(found.status),
        age_text(found.created_at, now),
        "–" if took_s is None else seconds(took_s),
        plain(f"{f'{found.strategy} ' if strategy else ''}{' '.join(council)}"),
    ]


def deliberations_table(page: DeliberationPage, now: datetime) -> RenderableType:
    """One row per deliberation of a page; strategies if they differ, and the option for the next page."""
    if not page.items:
        return Text("no deliberations", "dim")
    strategies_differ = len({found.strategy for found in page.items}) > 1
    more = f"more: --cursor {page.next_cursor}" if page.next_cursor else None
    table = Table(box=None, pad_edge=False, caption=more, caption_justify="left")
    for column in ("id", "status", "age", "took"):
        table.add_column(column, no_wrap=True)
    # A cell begins with the strategy where they differ: `vote 3×DEV`.
    table.add_column("strategy" if strategies_differ else "council", max_width=_COUNCIL_WIDTH_MAX)
    table.add_column("task", ratio=1, min_width=_TASK_WIDTH_MIN)
    for id, found in zip(short_ids([item.id for item in page.items]), page.items, strict=True):
        table.add_row(*_row(found, id, now, strategy=strategies_differ), brief(found.task, _TASK_CHARS_MAX))
    return table


def _check_metadata(*, meta: list[str] | None, **_: object) -> None:
    pairs(meta or [], "--meta")


@partial(on_gateway, check=_check_metadata)
async def list_deliberations(
    gateway: GatewayClient,
    *,
    as_json: bool,
    search: Annotated[
        str | None, typer.Option(metavar="WORDS", help="Only with these words in the task, the verdict or an answer.")
    ] = None,
    status: Annotated[str | None, typer.Option(help="Only with this status.")] = None,
    role: Annotated[str | None, typer.Option(help="Only with an agent of this role.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only with this strategy.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only with this metadata.")] = None,
    created_after: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 time.")] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 time.")] = None,
    limit: Annotated[int, typer.Option(help="Entries per page, at most 200.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Show the page after this cursor.")] = None,
) -> Exit:
    """List deliberations, newest first."""
    given: dict[str, Any] = {
        "q": search,
        "status": status,
        "role": role,
        "strategy": strategy,
        "created_after": created_after,
        "created_before": created_before,
        "limit": limit,
        "cursor": cursor,
        **{f"metadata.{key}": value for key, value in pairs(meta or [], "--meta").items()},
    }
    filters = {key: value for key, value in given.items() if value is not None}
    table = partial(deliberations_table, now=datetime.now(UTC))
    return await print_resource(gateway, "/deliberations", DeliberationPage, table, as_json=as_json, params=filters)


@on_gateway
async def stats(
    gateway: GatewayClient,
    *,
    as_json: bool,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Accepted at this RFC 3339 time or later; 30 days ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Accepted before; now.")] = None,
    by: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Also by day, strategy, role, model, or tenant (scope admin).")
    ] = None,
) -> Exit:
    """Show counts, durations, tokens, cost, agreement, and how often each role or model won."""
    given = {"from": since, "to": until, "by": by}
    params = {name: value for name, value in given.items() if value is not None}
    return await print_resource(gateway, "/stats", Stats, stats_text, as_json=as_json, params=params)


def _check_form(*, as_json: bool, as_markdown: bool, **_: object) -> None:
    if as_json and as_markdown:
        raise typer.BadParameter("--transcript prints Markdown and --json prints JSON: give one of them")


@partial(on_gateway, check=_check_form)
async def show(
    gateway: GatewayClient,
    deliberation_id: IdArgument,
    *,
    as_json: bool,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also the texts of evidence, and every answer, critique, ballot, check and delivery."
        ),
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--transcript", help="Print all of it as a Markdown document to keep.")
    ] = False,
) -> Exit:
    """Show one deliberation: what was asked, ranking, scores, confidence, cost, and the winning text."""
    resource = await gateway.deliberation(id := await full_id(gateway, deliberation_id))
    waits = Text() if as_json else await _waits(gateway, resource)
    if not full and not as_markdown:
        return output(resource, lambda: _report(parsed(Deliberation, resource), waits), as_json=as_json)
    events, deliveries = await gateway.events(id, EVENT_TYPES), await gateway.deliveries(id)
    if as_json:
        print_json({"deliberation": resource, "events": events, "deliveries": deliveries})
        return Exit.SUCCESS
    facts = [fact for fact in map(_event, events) if isinstance(fact, Fact)]
    text = transcript(parsed(Deliberation, resource), facts, [parsed(Delivery, each) for each in deliveries])
    if as_markdown:
        print(text)
    else:
        Console(highlight=False).print(Markdown(text, hyperlinks=False), *filter(None, [waits]))
    return Exit.SUCCESS


async def _waits(gateway: GatewayClient, resource: JsonObject) -> Text:
    """What the calls of a running deliberation wait for; empty for one that has ended."""
    if resource["status"] in TERMINAL_STATUS.values():
        return Text()
    events = await gateway.events(str(resource["id"]), WAIT_EVENT_TYPES)
    return waits_text([event for event in map(_event, events) if event is not None], datetime.now(UTC))


def _report(found: Deliberation, waits: Text) -> Group:
    return Group(overview_table(found), "", deliberation_report(found), *filter(None, [waits]))


def _event(document: JsonObject) -> Event | None:
    """The event of a document; None for one that this version cannot read."""
    try:
        return decode(json.dumps(document).encode())
    except ValidationError:
        return None


@on_gateway
async def cancel(
    gateway: GatewayClient,
    deliberation_id: IdArgument,
    *,
    as_json: bool,
    reason: Annotated[str | None, typer.Option(help="Reason to record with the request.")] = None,
    wait: Annotated[int, typer.Option(metavar="SECONDS", min=0, max=60, help="Wait for the end up to this long.")] = 0,
) -> Exit:
    """Cancel a deliberation. A repeated or late request changes nothing."""
    id = await full_id(gateway, deliberation_id)
    with naming_options({"/reason": "--reason"}):
        resource = await gateway.cancel(id, reason, wait_s=wait)
    status = status_text(str(resource.get("status", "cancelling")))
    return output(resource, lambda: Text.assemble(plain(id), " is ", status), as_json=as_json)


@on_gateway
async def delete(gateway: GatewayClient, deliberation_id: IdArgument, *, as_json: bool) -> Exit:
    """Delete a deliberation that has ended: its facts are removed for good."""
    id = await full_id(gateway, deliberation_id)
    await gateway.delete(id)
    return output({"id": id, "deleted": True}, lambda: plain(f"{id} is deleted"), as_json=as_json)


def _model_text(role: RoleResource) -> Text:
    if role.live is None:
        return Text("no replica answers", "yellow") if role.replicas.min else Text("starts at its first use", "dim")
    named = any(map(is_simulated, role.live.models))
    text = plain(", ".join(role.live.models) or "no model")
    text.append(" simulated" if role.live.simulated and not named else "")
    text.stylize("yellow" if role.live.simulated or named else "")
    return text


def replicas_text(role: RoleResource) -> str:
    """How many replicas answer, beside the bounds where these say more."""
    answering, low, high = role.live.replicas if role.live else 0, role.replicas.min, role.replicas.max
    bounds = f" of {low}–{high}" if low < high else f" of {high}" if answering != high else ""
    return f"{answering}{bounds} replica{'' if f'{answering}{bounds}' == '1' else 's'}"


def _engine_state(engine: EngineView) -> Text:
    circuit = "" if engine.circuit == "closed" else f", circuit {engine.circuit}"
    refused = f" ({engine.key_rejected})" if engine.key_rejected else ""
    return plain(engine.url).append(("" if engine.healthy else f" (down{circuit})") + refused, "red")


def roles_table(roles: Iterable[RoleResource]) -> Table:
    """A line per role, and one below it for each of its engines that is down or refuses its key."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for _ in ("replicas", "temperature"):
        table.add_column(style="dim", no_wrap=True)
    for role in roles:
        name = Text(role.name, f"bold {style_of(role.name)}")
        table.add_row(name, _model_text(role), replicas_text(role), f"temperature {role.sampling.temperature:g}")
        for engine in role.live.engines if role.live else ():
            if not engine.healthy or engine.key_rejected:
                table.add_row("", _engine_state(engine))
    return table


def _roles_with_personas(found: RoleList) -> Group:
    parts: list[RenderableType] = []
    for role in found.items:
        parts += [roles_table([role]), Padding(plain(" ".join(role.persona.split())), (0, 0, 1, 2))]
    return Group(*parts)


def _role_text(role: RoleResource) -> Group:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("persona", plain(role.persona.strip()))
    facts.add_row("model", plain(role.model or "the first of the engine"))
    declared = plain(", ".join(role.engines) or "the default ones")
    engines = [_engine_state(engine) for engine in role.live.engines] if role.live else [declared]
    facts.add_row("engines", Text("\n").join(engines))
    if role.fallback and role.live is None:
        facts.add_row("fallback", plain(", ".join(role.fallback)))
    facts.add_row("sampling", f"temperature {role.sampling.temperature:g}, {role.sampling.max_tokens} tokens")
    in_flight = f"{role.live.in_flight} running, " if role.live else ""
    facts.add_row("calls", f"{in_flight}{role.concurrency} at a time for each replica")
    return Group(roles_table([role]), facts)


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
