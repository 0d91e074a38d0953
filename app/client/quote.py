"""The price of a deliberation before it runs."""

from collections.abc import Mapping
from typing import Any

import httpx

from app.deliberation.quote import Quote


async def quote(http: httpx.AsyncClient, body: Mapping[str, Any]) -> Quote:
    """Ask the price of a deliberation; nothing is started.

    Args:
        http: A client with the gateway's base URL and credentials.
        body: The body of `POST /deliberations`.

    Returns:
        The calls, tokens and cost of each stage and of the whole, at most and as expected.

    Raises:
        httpx.HTTPStatusError: The gateway refuses the body.
        httpx.TransportError: The gateway cannot be reached.
    """
    response = await http.post("/deliberations/quote", json=body)
    return Quote.model_validate_json(response.raise_for_status().content)
