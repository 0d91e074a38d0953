"""`deliberate show | cancel | delete | deliveries | redeliver`: one deliberation of a gateway."""

import json
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from app.api.schemas import Deliberation
from app.cli.client import GatewayClient, JsonObject, parsed
from app.cli.exits import CommandError, Exit, FieldFault, naming_options, output, print_json
from app.cli.options import IdArgument
from app.cli.render.lines import WAIT_EVENT_TYPES, waits_text
from app.cli.render.report import deliberation_report, overview_table
from app.cli.render.text import plain, status_text
from app.cli.render.transcript import EVENT_TYPES, delivery_line, transcript
from app.cli.resources import LAST, full_id
from app.cli.target import on_gateway
from app.deliberation.facts import TERMINAL_STATUS, CancelledBy, Event, Fact, NewerEvent, decode
from app.webhooks.resources import Delivery

DeliveryArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="DELIVERY", help="Id of the delivery, a unique beginning of it, or `last`. (default: the only one)"
    ),
]


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

        def report() -> Group:
            deliberation = parsed(Deliberation, resource)
            return Group(overview_table(deliberation), "", deliberation_report(deliberation), *filter(None, [waits]))

        return output(resource, report, as_json=as_json)
    events, deliveries = await gateway.events(EVENT_TYPES, id), await gateway.deliveries(id)
    if as_json:
        print_json({"deliberation": resource, "events": events, "deliveries": deliveries})
        return Exit.SUCCESS
    facts = [fact for fact in map(_event, events) if isinstance(fact, Fact)]
    text = transcript(parsed(Deliberation, resource), facts, [parsed(Delivery, delivery) for delivery in deliveries])
    if as_markdown:
        print(text)
    else:
        Console(highlight=False).print(Markdown(text, hyperlinks=False), *filter(None, [waits]))
    return Exit.SUCCESS


async def _waits(gateway: GatewayClient, resource: JsonObject) -> Text:
    if resource["status"] in TERMINAL_STATUS.values():
        return Text()
    events = await gateway.events(WAIT_EVENT_TYPES, str(resource["id"]))
    return waits_text([event for event in map(_event, events) if event is not None], datetime.now(UTC))


def _event(document: JsonObject) -> Event | None:
    try:
        event = decode(json.dumps(document).encode())
    except ValidationError:
        return None
    return None if isinstance(event, NewerEvent) else event


@on_gateway
async def cancel(
    gateway: GatewayClient,
    deliberation_id: IdArgument,
    *,
    as_json: bool,
    reason: Annotated[str | None, typer.Option(help="Reason to record with the request.")] = None,
    by: Annotated[CancelledBy | None, typer.Option(help="Who stops it. (default: client)")] = None,
    wait: Annotated[int, typer.Option(metavar="SECONDS", min=0, max=60, help="Wait for the end up to this long.")] = 0,
) -> Exit:
    """Cancel a deliberation. A repeated or late request changes nothing."""
    id = await full_id(gateway, deliberation_id)
    with naming_options({"/reason": "--reason", "/by": "--by"}):
        body = {name: argument for name, argument in (("reason", reason), ("by", by)) if argument is not None}
        resource = await gateway.request("POST", f"/deliberations/{id}/cancel", body=body, wait_s=wait)
    status = str(resource.get("status", "cancelling"))
    if status in ("completed", "failed", "timeout"):
        words = Text.assemble(plain(id), " had ended before: ", status_text(status), "; nothing was cancelled")
    else:
        words = Text.assemble(plain(id), " is ", status_text(status))
    return output(resource, lambda: words, as_json=as_json)


@on_gateway
async def delete(gateway: GatewayClient, deliberation_id: IdArgument, *, as_json: bool) -> Exit:
    """Delete a deliberation that has ended: its facts are removed for good."""
    id = await full_id(gateway, deliberation_id)
    await gateway.request("DELETE", f"/deliberations/{id}")
    return output({"id": id, "deleted": True}, lambda: plain(f"{id} is deleted"), as_json=as_json)


async def _deliveries(gateway: GatewayClient, deliberation_id: str) -> list[Delivery]:
    return [parsed(Delivery, document) for document in await gateway.deliveries(deliberation_id)]


def _deliveries_text(listed: list[Delivery]) -> RenderableType:
    if not listed:
        return Text("no deliveries: it has no webhook, or nothing has happened yet", "dim")
    parts: list[RenderableType] = []
    for delivery in listed:
        attempts = Table.grid(padding=(0, 2))
        for attempt in delivery.attempts:
            outcome = "accepted" if attempt.problem is None else attempt.problem.code
            status = "" if attempt.status_code is None else str(attempt.status_code)
            took = f"{attempt.duration_ms} ms"
            attempts.add_row("  ", str(attempt.number), f"{attempt.at:%H:%M:%S}", plain(outcome), status, took)
        parts += [Text(delivery_line(delivery), status_text(delivery.status).style), attempts]
    return Group(*parts)


@on_gateway
async def deliveries(gateway: GatewayClient, deliberation_id: IdArgument, *, as_json: bool) -> Exit:
    """List the deliveries of a deliberation's webhook with their attempts."""
    listed = await _deliveries(gateway, await full_id(gateway, deliberation_id))
    document = {"items": [delivery.model_dump(mode="json") for delivery in listed]}
    return output(document, lambda: _deliveries_text(listed), as_json=as_json)


def chosen(listed: list[Delivery], beginning: str | None) -> Delivery:
    """The delivery that `beginning` names; without it the only one. Raises CommandError that lists the candidates."""
    matching = (
        listed[-1:]
        if beginning == LAST
        else [delivery for delivery in listed if delivery.id.startswith(beginning or "")]
    )
    if len(matching) == 1:
        return matching[0]
    candidates = [FieldFault(delivery.id, f"{delivery.type}, {delivery.status}") for delivery in matching or listed]
    if not matching:
        detail = "there is no such delivery" if listed else "there are no deliveries"
        remedy = "name one of these" if listed else "`deliberate ask --webhook URL` asks for some"
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
    document = await gateway.request("POST", f"/deliberations/{id}/deliveries/{wanted.id}/redeliver")
    return output(document, lambda: plain(delivery_line(parsed(Delivery, document))), as_json=as_json)
