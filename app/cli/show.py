"""`deliberate list | show | cancel | roles`: reads resources of a gateway and prints them."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from app.api.schemas import Deliberation, DeliberationPage, DeliberationSummary, RoleList, RoleResource
from app.cli.client import GatewayClient, JsonObject, parsed
from app.cli.exits import Exit, output, run
from app.cli.options import DEFAULT_URL, ApiKeyOption, IdArgument, JsonOption, UrlOption, pairs
from app.cli.render.lanes import is_simulated
from app.cli.render.panels import seconds, style_of
from app.cli.render.prose import printable
from app.cli.render.ranking import brief, deliberation_report, duration_s, plain, status_text

_Model = TypeVar("_Model", bound=BaseModel)


def print_resource(
    path: str,
    model: type[_Model],
    rendered: Callable[[_Model], RenderableType],
    url: str,
    api_key: str | None,
    *,
    as_json: bool,
    params: JsonObject | None = None,
) -> NoReturn:
    """Read a resource of the gateway, print it as JSON or `rendered`, and exit."""

    async def work() -> Exit:
        async with GatewayClient(url, api_key) as gateway:
            document = await gateway.read(path, params)
        return output(document, lambda: rendered(parsed(model, document)), as_json=as_json)

    run(work, as_json=as_json)


def _age(then: datetime, now: datetime) -> str:
    passed_s = max(0.0, (now - then).total_seconds())
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {unit}"
    return f"{int(passed_s)} s"


def _row(found: DeliberationSummary, now: datetime) -> list[RenderableType]:
    took_s = duration_s(found.created_at, found.ended_at)
    council = (entry.role if entry.count == 1 else f"{entry.count}×{entry.role}" for entry in found.agents)
    return [
        plain(found.id),
        status_text(found.status),
        _age(found.created_at, now),
        "–" if took_s is None else seconds(took_s),
        plain(" ".join(council)),
    ]


def deliberations_table(page: DeliberationPage, now: datetime) -> Table:
    """One row per deliberation of a page, its strategy if they differ, and the option for the next page."""
    strategies_differ = len({found.strategy for found in page.items}) > 1
    more = f"more: --cursor {page.next_cursor}" if page.next_cursor else None
    table = Table(box=None, pad_edge=False, caption=more, caption_justify="left")
    for column, chars in (("id", 26), ("status", 9), ("age", 5), ("took", 6)):
        table.add_column(column, no_wrap=True, min_width=chars)
    table.add_column("council", min_width=8)
    if strategies_differ:
        table.add_column("strategy", min_width=8)
    table.add_column("task", ratio=1)
    for found in page.items:
        strategy = [plain(found.strategy)] if strategies_differ else []
        table.add_row(*_row(found, now), *strategy, brief(found.task, 50))
    return table


def list_deliberations(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
    status: Annotated[str | None, typer.Option(help="Only with this status.")] = None,
    role: Annotated[str | None, typer.Option(help="Only with an agent of this role.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only with this strategy.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only with this metadata.")] = None,
    created_after: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 time.")] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 time.")] = None,
    limit: Annotated[int, typer.Option(help="Entries per page, at most 200.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Show the page after this cursor.")] = None,
) -> None:
    """List deliberations, newest first."""
    given: dict[str, Any] = {
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
    print_resource("/deliberations", DeliberationPage, table, url, api_key, as_json=as_json, params=filters)


def show(
    deliberation_id: IdArgument, url: UrlOption = DEFAULT_URL, api_key: ApiKeyOption = None, as_json: JsonOption = False
) -> None:
    """Show one deliberation: ranking, scores, confidence, cost, and the winning text."""
    path = f"/deliberations/{deliberation_id}"
    print_resource(path, Deliberation, deliberation_report, url, api_key, as_json=as_json)


def cancel(
    deliberation_id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
    reason: Annotated[str | None, typer.Option(help="Reason to record with the request.")] = None,
    wait: Annotated[int, typer.Option(metavar="SECONDS", min=0, max=60, help="Wait for the end up to this long.")] = 0,
) -> None:
    """Cancel a deliberation. A repeated or late request changes nothing."""

    async def work() -> Exit:
        async with GatewayClient(url, api_key) as gateway:
            resource = await gateway.cancel(deliberation_id, reason, wait_s=wait)
        status = str(resource.get("status", "cancelling"))
        line = Text.assemble(plain(deliberation_id), " is ", status_text(status))
        return output(resource, lambda: line, as_json=as_json)

    run(work, as_json=as_json)


def _models_text(role: RoleResource) -> Text:
    if role.live is None:
        return Text("no replica answers", "yellow")
    text = plain(", ".join(role.live.models) or "no model")
    if role.live.simulated or any(is_simulated(name) for name in role.live.models):
        text.append(" simulated ", "black on yellow")
    for engine in role.live.engines:
        circuit = "" if engine.circuit == "closed" else f", circuit {engine.circuit}"
        text.append(f" at {printable(engine.url)}").append("" if engine.healthy else f" (down{circuit})", "red")
    return text


def _roles_text(found: RoleList) -> Group:
    parts: list[RenderableType] = []
    for role in found.items:
        replicas = f"{role.live.replicas if role.live else 0} of {role.replicas.min}–{role.replicas.max} replicas"
        figures = f" · {replicas} · temperature {role.sampling.temperature:g}"
        head = Text.assemble((role.name, f"bold {style_of(role.name)}"), "  ", _models_text(role), (figures, "dim"))
        parts += [head, Padding(plain(" ".join(role.persona.split())), (0, 0, 1, 2))]
    return Group(*parts)


def roles(url: UrlOption = DEFAULT_URL, api_key: ApiKeyOption = None, as_json: JsonOption = False) -> None:
    """List the roles of agents."""
    print_resource("/roles", RoleList, _roles_text, url, api_key, as_json=as_json)
