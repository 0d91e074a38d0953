"""`deliberate plan approve | show`: starts one deliberation per role of a plan, and shows what became of them."""

import json
import os
import sys
from datetime import UTC, datetime
from functools import partial
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import quote
from uuid import uuid4

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.client import GatewayClient, JsonObject, parsed
from app.cli.exits import EXIT_HELP, CommandError, Exit, cause, naming_options, output
from app.cli.render.text import plain, status_text
from app.cli.resources import print_resource
from app.cli.target import on_gateway
from app.deliberation.roles import Complexity
from app.planning.resources import ApprovedPlan

plan_cli = typer.Typer()

_TASKS: dict[Complexity, tuple[str, str]] = {
    "basic": ("Show the time of the last login", "Users see below their name when they logged in last."),
    "medium": ("Log in by a link", "Users log in by a link that is sent to them, valid once and for ten minutes."),
    "complex": (
        "Move sessions out of the database",
        "Sessions move to a store of their own, without a user being logged out and with a way back.",
    ),
}

CaseOption = Annotated[
    Complexity | None, typer.Option("--case", help="An example of a plan with two, three or four roles.")
]
FileOption = Annotated[str | None, typer.Option("--file", metavar="FILE", help="A plan as JSON; - reads stdin.")]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="Id of the plan.")]


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):
        # Users of containers often have no name.
        return str(os.getuid())


def _example_plan(case: Complexity) -> JsonObject:
    title, description = _TASKS[case]
    return {
        "story_id": f"story-{uuid4().hex[:8]}",
        "plan_id": f"plan-{uuid4().hex[:8]}",
        "approved_by": _user(),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "title": title,
        "description": description,
        "complexity": case,
    }


def _read_plan(file: str) -> JsonObject:
    remedy = "name a file with a plan as JSON, or - for stdin"
    try:
        text = sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
        document: Any = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(Exit.USAGE, "unreadable_file", f"--file {file}: {cause(error)}", remedy=remedy) from error
    except json.JSONDecodeError as error:
        raise CommandError(Exit.USAGE, "invalid_json", f"--file {file}: {error}", remedy=remedy) from error
    if not isinstance(document, dict):
        raise CommandError(Exit.USAGE, "invalid_json", f"--file {file} holds no JSON object", remedy=remedy)
    return cast(JsonObject, document)


def _plan_text(plan: ApprovedPlan) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for role in plan.roles:
        table.add_row("  ", plain(role.role), status_text(role.status), role.deliberation_id)
    return Group(Text.assemble(plain(f"{plan.id} of {plan.story_id}: "), status_text(plan.status)), table)


def _check_source(*, case: Complexity | None, file: str | None, **_: object) -> None:
    if (case is None) == (file is None):
        detail = "a plan comes from --case or from --file, and from one of them"
        remedy = "give --case basic, or --file FILE"
        raise CommandError(Exit.USAGE, "missing_option", detail, remedy=remedy)


@plan_cli.command(epilog=EXIT_HELP)
@partial(on_gateway, check=_check_source)
async def approve(gateway: GatewayClient, case: CaseOption = None, file: FileOption = None, *, as_json: bool) -> Exit:
    """Start one deliberation per role of a plan. The same plan again starts nothing twice."""
    plan = _example_plan(case) if case is not None else _read_plan(file or "")
    # A faulty field of the file is an error of usage.
    with naming_options({} if file is None else {"": "--file {}"}):
        document = await gateway.request("POST", "/plans", body=plan)
    return output(document, lambda: _plan_text(parsed(ApprovedPlan, document)), as_json=as_json)


@plan_cli.command(epilog=EXIT_HELP)
@on_gateway
async def show(gateway: GatewayClient, plan_id: PlanArgument, *, as_json: bool) -> Exit:
    """Show the state of each role of a plan, and of the whole."""
    path = f"/plans/{quote(plan_id, safe='')}"
    unknown = "`deliberate show ID` of one of its deliberations names its plan_id"
    return await print_resource(gateway, path, ApprovedPlan, _plan_text, as_json=as_json, unknown=unknown)
