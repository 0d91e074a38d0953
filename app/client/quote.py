"""The price of a deliberation before it runs."""

from collections.abc import Mapping
from typing import Any

import httpx

from app.deliberation.quote import Quote


async def quote(http: httpx.AsyncClient, body: Mapping[str, Any]) -> Quote:
    """The price of a body of `POST /deliberations`; raises httpx.HTTPStatusError for a refusal. Nothing is started."""
    response = await http.post("/deliberations/quote", json=body)
    return Quote.model_validate_json(response.raise_for_status().content)
