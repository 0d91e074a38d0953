"""`deliberate list | show | cancel | roles | strategies`: what a gateway holds and offers, read once and printed."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.client import Gateway, JsonObject, understood
from app.cli.exits import Exit, print_json, run
from app.cli.lanes import is_simulated
from app.cli.options import DEFAULT_URL, IdArgument, JsonOption, UrlOption, pairs
from app.cli.panels import seconds, style_of
from app.cli.ranking import account, duration_s, plain, status_text
from app.schemas import Deliberation, DeliberationPage, RoleList, RoleResource, StrategyList

_TASK_CHARS_MAX = 60


def _output(document: JsonObject, rendered: Callable[[], RenderableType], *, as_json: bool) -> Exit:
    if as_json:
        print_json(document)
    else:
        Console(highlight=False).print(rendered())
    return Exit.SUCCESS


def _age(then: datetime, now: datetime) -> str:
    passed_s = max(0.0, (now - then).total_seconds())
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{int(passed_s // unit_s)} {unit}"
    return f"{int(passed_s)} s"


def deliberations_table(page: DeliberationPage, now: datetime) -> Table:
    """One row per deliberation of a page, and how the next page is asked for."""
    more = f"more: --cursor {page.next_cursor}" if page.next_cursor else None
    table = Table(box=None, pad_edge=False, caption=more, caption_justify="left")
    for column in ("id", "status", "strategy", "council", "age", "took"):
        table.add_column(column, no_wrap=True)
    table.add_column("task", ratio=1)
    for found in page.items:
        task = " ".join(found.task.split())
        took_s = duration_s(found.created_at, found.ended_at)
        table.add_row(
            plain(found.id),
            status_text(found.status),
            plain(found.strategy),
            plain(", ".join(f"{agents.count} {agents.role}" for agents in found.agents)),
            _age(found.created_at, now),
            "–" if took_s is None else seconds(took_s),
            plain(task if len(task) <= _TASK_CHARS_MAX else task[: _TASK_CHARS_MAX - 1] + "…"),
        )
    return table


def list_deliberations(
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    status: Annotated[str | None, typer.Option(help="Only this status.")] = None,
    role: Annotated[str | None, typer.Option(help="Only with an agent of this role.")] = None,
    strategy: Annotated[str | None, typer.Option(help="Only by this strategy.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only with this metadata.")] = None,
    created_after: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339.")] = None,
    created_before: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339.")] = None,
    limit: Annotated[int, typer.Option(help="Entries of a page, at most 200.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="The page after this cursor.")] = None,
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

    async def work() -> Exit:
        async with Gateway(url) as gateway:
            page = await gateway.deliberations(filters)
        now = datetime.now(UTC)
        return _output(page, lambda: deliberations_table(understood(DeliberationPage, page), now), as_json=as_json)

    run(work, as_json=as_json)


def show(deliberation_id: IdArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show one deliberation: ranking, scores, doubts, cost, and the winning text."""

    async def work() -> Exit:
        async with Gateway(url) as gateway:
            resource = await gateway.deliberation(deliberation_id)
        return _output(resource, lambda: account(understood(Deliberation, resource)), as_json=as_json)

    run(work, as_json=as_json)


def cancel(
    deliberation_id: IdArgument,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    reason: Annotated[str | None, typer.Option(help="Recorded with the request.")] = None,
    wait: Annotated[int, typer.Option(metavar="SECONDS", min=0, max=60, help="Wait for its end so long.")] = 0,
) -> None:
    """Stop a deliberation. Asking twice, or after its end, changes nothing."""

    async def work() -> Exit:
        async with Gateway(url) as gateway:
            resource = await gateway.cancel(deliberation_id, reason, wait_s=wait)
        status = str(resource.get("status", "cancelling"))
        line = Text.assemble(plain(deliberation_id), " is ", status_text(status))
        return _output(resource, lambda: line, as_json=as_json)

    run(work, as_json=as_json)


def _models(role: RoleResource) -> Text:
    names = role.live.models if role.live is not None else (role.model,)
    text = plain("\n".join(name for name in names if name) or "–")
    if role.live is not None and (role.live.simulated or any(is_simulated(name) for name in names)):
        text.stylize("yellow")
        text.append("\nsimulated", "black on yellow")
    return text


def _engines(role: RoleResource) -> Text:
    if role.live is None:
        return plain("\n".join(role.engines) or "default")
    return Text("\n").join(
        plain(engine.url).append("" if engine.healthy else " down", "red") for engine in role.live.engines
    )


def roles_table(roles_found: RoleList) -> Table:
    """One row per role: what serves it now, how it samples, and who it is."""
    table = Table()
    for column in ("role", "model", "engines", "replicas", "temperature"):
        table.add_column(column)
    table.add_column("persona", ratio=1)
    for role in roles_found.items:
        alive = "no answer" if role.live is None else str(role.live.replicas)
        table.add_row(
            Text(role.name, style_of(role.name)),
            _models(role),
            _engines(role),
            f"{alive} of {role.replicas.min}–{role.replicas.max}",
            f"{role.sampling.temperature:g}",
            plain(" ".join(role.persona.split())),
        )
    return table


def roles(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the roles that councils are made of."""

    async def work() -> Exit:
        async with Gateway(url) as gateway:
            document = await gateway.read("/roles")
        return _output(document, lambda: roles_table(understood(RoleList, document)), as_json=as_json)

    run(work, as_json=as_json)


def strategies_table(found: StrategyList) -> Table:
    """One row per strategy: its steps and what it costs."""
    table = Table()
    for column in ("strategy", "steps", "calls"):
        table.add_column(column)
    table.add_column("what it does", ratio=1)
    for strategy in found.items:
        table.add_row(
            Text.assemble((strategy.name, "bold"), (f" v{strategy.version}", "dim")),
            plain("\n".join(strategy.steps)),
            plain(strategy.calls),
            plain(strategy.summary),
        )
    return table


def strategies(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the strategies and what they cost."""

    async def work() -> Exit:
        async with Gateway(url) as gateway:
            document = await gateway.read("/strategies")
        return _output(document, lambda: strategies_table(understood(StrategyList, document)), as_json=as_json)

    run(work, as_json=as_json)
