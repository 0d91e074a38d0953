"""`deliberate open`: the page of one deliberation in the browser."""

import webbrowser

from app.cli.client import GatewayClient
from app.cli.exits import Exit, output
from app.cli.options import IdArgument
from app.cli.render.text import plain
from app.cli.resources import full_id
from app.cli.target import on_gateway


@on_gateway
async def open_page(gateway: GatewayClient, deliberation_id: IdArgument, *, as_json: bool) -> Exit:
    """Open the page of a deliberation in the browser, and print its address.

    A machine without a browser, or a refusing one, leaves the address to open elsewhere.
    """
    address = f"{gateway.url}/#/deliberations/{await full_id(gateway, deliberation_id)}"
    opened = webbrowser.open(address)
    return output({"url": address, "opened": opened}, lambda: plain(address), as_json=as_json)
