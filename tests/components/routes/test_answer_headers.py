"""The headers of every answer that bind browsers and shared caches."""

import pytest

from tests.components.routes.served import Served

PATHS = ("/roles", "/strategies", "/v1/models", "/deliberations/a", "/nope", "/healthz", "/login", "/", "/ui/page.js")


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_neither_sniffed_nor_stored_for_others(gateway: Served, path: str) -> None:
    headers = (await gateway.client.get(path)).headers
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    (cached,) = headers.get_list("cache-control")
    assert {"no-store", "no-cache"} & {part.strip() for part in cached.split(",")}


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_that_opened_this_one_keeps_no_handle_on_it(gateway: Served, path: str) -> None:
    assert (await gateway.client.get(path)).headers["cross-origin-opener-policy"] == "same-origin"
