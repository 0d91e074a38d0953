"""Resources of a gateway, as commands name and print them."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel
from rich.console import RenderableType

from app.api.schemas import DeliberationPage, DeliberationSummary
from app.cli.client import GatewayClient, GatewayRefused, JsonObject, parsed
from app.cli.exits import CommandError, Exit, FieldFault, output
from app.cli.render.text import age_text, line_of

LAST = "last"
_ID_CHARS = 26
# The number of newest deliberations among which the beginning of an id is searched.
_SEARCHED_MAX = 5_000
_CANDIDATES_MAX = 10

_Model = TypeVar("_Model", bound=BaseModel)


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
        document = await gateway.read(path, params)
    except GatewayRefused as error:
        if error.code == "not_found":
            error.remedy = unknown or error.remedy
        raise
    return output(document, lambda: rendered(parsed(model, document)), as_json=as_json)


async def full_id(gateway: GatewayClient, beginning: str) -> str:
    """The id of the one deliberation that a whole id, a unique beginning of one, or `last` names.

    Raises CommandError when no deliberation or more than one begins with `beginning`, and lists these.
    """
    if len(beginning) >= _ID_CHARS:
        return beginning
    if beginning == LAST:
        newest = parsed(DeliberationPage, await gateway.read("/deliberations", {"limit": 1, "after": "now"})).items
        if not newest:
            remedy = "`deliberate ask TASK` starts one"
            raise CommandError(Exit.REFUSED, "not_found", "there is no deliberation yet", remedy=remedy)
        return newest[0].id
    matching, searched = list[DeliberationSummary](), 0
    async with aclosing(gateway.pages("/deliberations", {"limit": 200})) as pages:
        async for document in pages:
            items = parsed(DeliberationPage, document).items
            matching += [item for item in items if item.id.startswith(beginning)]
            searched += len(items)
            if searched >= _SEARCHED_MAX or any(item.id == beginning for item in items):
                break
    if not matching:
        detail = f"no deliberation that is kept has an id that begins with {beginning!r}"
        remedy = "`deliberate list` shows the deliberations that are kept"
        raise CommandError(Exit.REFUSED, "not_found", detail, remedy=remedy)
    return _the_one(beginning, matching)


def _the_one(beginning: str, matching: Sequence[DeliberationSummary]) -> str:
    ids = [item.id for item in matching]
    if beginning in ids or len(ids) == 1:
        return beginning if beginning in ids else ids[0]
    now = datetime.now(UTC)
    candidates = [
        FieldFault(item.id, f"{item.status}, {age_text(item.created_at, now)} old: {line_of(item.task, 60)}")
        for item in matching[:_CANDIDATES_MAX]
    ]
    detail = f"{len(ids)} ids begin with {beginning!r}"
    raise CommandError(Exit.USAGE, "ambiguous_id", detail, fields=candidates, remedy="type more of the id")
