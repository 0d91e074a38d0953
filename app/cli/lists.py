"""`deliberate list | stats`: many deliberations of a gateway. Models are imported in functions: help needs none."""

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.exits import Exit, naming_options
from app.cli.options import pairs
from app.cli.target import on_gateway

if TYPE_CHECKING:
    from app.cli.client import GatewayClient

_FILTERS = {
    **{name: f"--{name}" for name in ("status", "role", "strategy", "limit", "cursor")},
    "q": "--search",
    "created_after": "--created-after",
    "created_before": "--created-before",
    "metadata": "--meta {}",
    **{name: f"--{name}" for name in ("from", "to", "by")},
}

BenchOption = Annotated[bool, typer.Option(help="With or without what `deliberate bench` asked.")]


def _check_metadata(*, meta: list[str] | None, **_: object) -> None:
    pairs(meta or [], "--meta")


@partial(on_gateway, check=_check_metadata)
async def list_deliberations(
    gateway: "GatewayClient",
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
    bench: BenchOption = True,
    limit: Annotated[int, typer.Option(help="Entries per page, at most 200.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Show the page after this cursor.")] = None,
) -> Exit:
    """List deliberations, newest first."""
    from app.api.schemas import DeliberationPage
    from app.cli.render.lists import deliberations_table
    from app.cli.resources import print_resource

    asked: dict[str, Any] = {
        "q": search,
        "status": status,
        "role": role,
        "strategy": strategy,
        "created_after": created_after,
        "created_before": created_before,
        "bench": None if bench else False,
        "limit": limit,
        "cursor": cursor,
        **{f"metadata.{key}": value for key, value in pairs(meta or [], "--meta").items()},
    }
    filters = {key: value for key, value in asked.items() if value is not None}
    table = partial(deliberations_table, now=datetime.now(UTC))
    with naming_options(_FILTERS):
        return await print_resource(gateway, "/deliberations", DeliberationPage, table, as_json=as_json, params=filters)


@on_gateway
async def stats(
    gateway: "GatewayClient",
    *,
    as_json: bool,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Accepted at this RFC 3339 time or later; 30 days ago.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Accepted before; now.")] = None,
    bench: BenchOption = True,
    by: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Also by day, strategy, role, model, or tenant (scope admin).")
    ] = None,
) -> Exit:
    """Show counts, durations, tokens, cost, agreement, and how often each role or model won."""
    from app.api.schemas import Stats
    from app.cli.render.figures import stats_text
    from app.cli.resources import print_resource

    asked = {"from": since, "to": until, "bench": None if bench else False, "by": by}
    params = {name: value for name, value in asked.items() if value is not None}
    with naming_options(_FILTERS):
        return await print_resource(gateway, "/stats", Stats, stats_text, as_json=as_json, params=params)
