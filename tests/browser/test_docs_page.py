"""The page of the OpenAPI document works in a browser that reaches nothing but the gateway."""

import pytest
from playwright.async_api import Page

from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.browser, pytest.mark.e2e]


async def test_the_page_shows_every_operation_and_asks_nobody_else(page: Page, stack: Stack) -> None:
    asked: list[str] = []
    refused: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    await page.goto(f"{stack.url}/docs")
    await page.locator("#operations-deliberations-create_deliberation").wait_for()
    assert await page.locator(".opblock").count() > 20
    assert refused == []
    assert [url for url in asked if not url.startswith((stack.url, "data:"))] == []
