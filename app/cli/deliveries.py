"""`deliberate deliveries | redeliver`: the deliveries of a deliberation's webhook."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.client import GatewayClient, parsed
from app.cli.exits import CommandError, Exit, FieldFault, output
from app.cli.ids import LAST, full_id
from app.cli.options import IdArgument
from app.cli.render.ranking import plain
from app.cli.render.transcript import delivery_line
from app.cli.target import on_gateway
from app.webhooks.resources import Delivery

_STYLES = {"delivered": "green", "failed": "red", "stopped": "red"}

DeliveryArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DELIVERY", help="Id of the delivery, a unique beginning of it, or `last`. (default: the only one)"
    ),
]


async def _deliveries(gateway: GatewayClient, deliberation_id: str) -> list[Delivery]:
    return [parsed(Delivery, each) for each in await gateway.deliveries(deliberation_id)]


def _attempt_rows(delivery: Delivery) -> Table:
    table = Table.grid(padding=(0, 2))
    for attempt in delivery.attempts:
        outcome = attempt.problem.code if attempt.problem is not None else "accepted"
        status = "" if attempt.status_code is None else str(attempt.status_code)
        at = f"{attempt.at:%H:%M:%S}"
        table.add_row("  ", str(attempt.number), at, plain(outcome), status, f"{attempt.duration_ms} ms")
    return table


def deliveries_text(found: list[Delivery]) -> RenderableType:
    """A line per delivery, and below it a line per attempt."""
    if not found:
        return Text("no deliveries: it has no webhook, or nothing has happened yet", "dim")
    parts: list[RenderableType] = []
    for delivery in found:
        parts += [Text(delivery_line(delivery), _STYLES.get(delivery.status, "yellow")), _attempt_rows(delivery)]
    return Group(*parts)


@on_gateway
async def deliveries(gateway: GatewayClient, deliberation_id: IdArgument, *, as_json: bool) -> Exit:
    """List the deliveries of a deliberation's webhook with their attempts."""
    found = await _deliveries(gateway, await full_id(gateway, deliberation_id))
    document = {"items": [each.model_dump(mode="json") for each in found]}
    return output(document, lambda: deliveries_text(found), as_json=as_json)


def chosen(found: list[Delivery], given: str | None) -> Delivery:
    """The delivery that `given` names; without it the only one. Raises CommandError that lists the candidates."""
    matching = found[-1:] if given == LAST else [each for each in found if each.id.startswith(given or "")]
    if len(matching) == 1:
        return matching[0]
    candidates = [FieldFault(each.id, f"{each.type}, {each.status}") for each in matching or found]
    if not matching:
        detail = "there is no such delivery" if found else "there are no deliveries"
        remedy = "name one of these" if found else "`deliberate ask --webhook URL` asks for some"
        raise CommandError(Exit.REFUSED, "not_found", detail, fields=candidates, remedy=remedy)
    detail = f"{len(matching)} deliveries could be meant"
    raise CommandError(Exit.USAGE, "ambiguous_id", detail, fields=candidates, remedy="name one of these, or `last`")


@on_gateway
async def redeliver(
    gateway: GatewayClient, deliberation_id: IdArgument, delivery: DeliveryArgument = None, *, as_json: bool
) -> Exit:
    """Request one more attempt of a delivery now, besides its schedule."""
    id = await full_id(gateway, deliberation_id)
    wanted = chosen(await _deliveries(gateway, id), delivery)
    document = await gateway.redeliver(id, wanted.id)
    return output(document, lambda: plain(delivery_line(parsed(Delivery, document))), as_json=as_json)
