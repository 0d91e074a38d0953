"""A finished council without its views, which expire before its facts."""

import pytest
from playwright.async_api import BrowserContext, expect

from tests.components.routes.listening import listening
from tests.story import Story

pytestmark = pytest.mark.browser


async def test_a_call_whose_start_has_expired_is_drawn_over_its_duration(chromium: BrowserContext) -> None:
    story = Story("expired")
    async with listening() as gateway:
        await gateway.write(story.accepted(), story.opened())
        await gateway.write(*(story.finished(agent, "red") for agent in story.agents))
        await gateway.write(story.closed(), story.completed())
        page = await chromium.new_page()
        await page.goto(f"{gateway.client.base_url}/#{story.id}")
        await expect(page.locator(".wf .r")).to_have_count(len(story.agents))
        await expect(page.locator(".wf .b.ttft")).to_have_count(len(story.agents))
        await expect(page.locator(".wf .b.wait")).to_have_count(0)
        await page.locator(".calls summary").click()
        await page.get_by_role("button", name="As a table").click()
        await expect(page.locator("tbody tr", has_text="propose").first.get_by_role("cell").nth(4)).to_have_text("1")
        await page.close()
