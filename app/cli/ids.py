"""From what a user typed to an id: a whole id, a unique beginning of one, or `last`."""

from contextlib import aclosing
from datetime import UTC, datetime
from typing import NoReturn

from app.api.schemas import DeliberationPage, DeliberationSummary
from app.cli.client import GatewayClient, parsed
from app.cli.exits import CommandError, Exit, FieldFault
from app.cli.render.ranking import age_text, line_of

LAST = "last"
ID_CHARS = 26
# A beginning is looked for among so many of the newest deliberations.
_SEARCHED_MAX = 5_000
_PAGE = 200
_CANDIDATES_MAX = 10


async def full_id(gateway: GatewayClient, given: str) -> str:
    """The id of the one deliberation that `given` names, deleted or not.

    Raises CommandError when no deliberation or more than one begins with `given`, and lists these.
    """
    if len(given) >= ID_CHARS:
        return given
    found = list[DeliberationSummary]()
    searched = 0
    asked = {"limit": 1, "after": "now"} if given == LAST else {"limit": _PAGE}
    async with aclosing(gateway.pages("/deliberations", asked)) as pages:
        async for document in pages:
            items = parsed(DeliberationPage, document).items
            if given == LAST:
                return _newest(items)
            found += [item for item in items if item.id.startswith(given)]
            searched += len(items)
            if searched >= _SEARCHED_MAX or any(item.id == given for item in items):
                break
    if not found:
        deleted = [id for id in await gateway.deleted_ids() if id.startswith(given)]
        # The gateway says what became of it.
        return deleted[0] if len(deleted) == 1 else _unknown(given, deleted)
    return _the_one(given, found)


def _newest(items: tuple[DeliberationSummary, ...]) -> str:
    if not items:
        remedy = "`deliberate ask TASK` starts one"
        raise CommandError(Exit.REFUSED, "not_found", "there is no deliberation yet", remedy=remedy)
    return items[0].id


def _unknown(given: str, deleted: list[str]) -> NoReturn:
    detail = f"no deliberation that is kept has an id that begins with {given!r}"
    fields = [FieldFault(id, "it is deleted") for id in deleted[:_CANDIDATES_MAX]]
    remedy = "`deliberate list` shows the deliberations that are kept"
    raise CommandError(Exit.REFUSED, "gone" if deleted else "not_found", detail, fields=fields, remedy=remedy)


def _the_one(given: str, found: list[DeliberationSummary]) -> str:
    ids = [item.id for item in found]
    if given in ids or len(ids) == 1:
        return given if given in ids else ids[0]
    now = datetime.now(UTC)
    candidates = [
        FieldFault(item.id, f"{item.status}, {age_text(item.created_at, now)} old: {line_of(item.task, 60)}")
        for item in found[:_CANDIDATES_MAX]
    ]
    detail = f"{len(ids)} ids begin with {given!r}"
    raise CommandError(Exit.USAGE, "ambiguous_id", detail, fields=candidates, remedy="type more of the id")
