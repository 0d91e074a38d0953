"""The list of deliberations: its search field, its rows under way, and its deletions."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, Request, Route, expect

from tests.browser.axe import violations
from tests.browser.list_rows import summary
from tests.components.routes.listening import listening, whole
from tests.story import Story

pytestmark = pytest.mark.browser

TYPED = "which queue is the best for us"


async def test_no_letter_that_is_typed_is_lost_while_the_list_is_slow(chromium: BrowserContext) -> None:
    async def slowly(route: Route) -> None:
        await asyncio.sleep(0.4)
        await route.fulfill(json={"items": [summary(1)], "next_cursor": None, "behind_s": 0})

    async with listening() as gateway, asyncio.timeout(90):
        page = await chromium.new_page()
        await page.route("**/deliberations?*", slowly)
        await page.goto(f"{gateway.client.base_url}/#/deliberations?q=before")
        field = page.get_by_role("searchbox")
        await expect(field).to_have_value("before")
        for pace_ms in (20, 120, 260, 300):
            await field.fill("")
            await field.press_sequentially(TYPED, delay=pace_ms)
            await expect(field).to_have_value(TYPED)
            await page.wait_for_url("**/*q=which+queue+is+the+best+for+us")
            await expect(field).to_have_value(TYPED)
        # An address that something else wrote is followed.
        await page.evaluate("location.hash = '/deliberations?q=another'")
        await expect(field).to_have_value("another")
        await page.close()


async def playing(page: Page, *rows: dict[str, Any]) -> None:
    """Answers each request for the list with rows, but those that were deleted meanwhile."""
    deleted: set[str] = set()

    async def answer(route: Route) -> None:
        kept = [row for row in rows if row["id"] not in deleted]
        await route.fulfill(json={"items": kept, "next_cursor": None, "behind_s": 0})

    def heard(request: Request) -> None:
        if request.method == "DELETE":
            deleted.add(request.url.rpartition("/")[2])

    page.on("request", heard)
    await page.route("**/deliberations?*", answer)


async def test_a_row_under_way_shows_how_many_calls_of_its_stage_ended(chromium: BrowserContext) -> None:
    story = Story("u" * 26)
    progress = {"stage": 1, "purpose": "propose", "round": 0, "calls_total": 2}
    async with listening() as gateway, asyncio.timeout(60):
        await gateway.write(story.accepted(), story.opened(), story.finished(story.agents[0], "red"))
        page = await chromium.new_page()
        await playing(page, summary(1) | {"id": story.id, "status": "in_progress", "progress": progress})
        await page.goto(str(gateway.client.base_url))
        state = page.locator(f".list [data-id='{story.id}'] .c-st")
        await expect(state).to_have_text("Running: propose 1 of 2")
        await expect(state.locator(".bar")).to_be_visible()
        await page.close()


async def test_an_ended_row_is_deleted_once_it_was_asked_for_twice(chromium: BrowserContext) -> None:
    story, other = Story("e" * 26), Story("o" * 26)
    async with listening() as gateway, asyncio.timeout(60):
        await gateway.write(*whole(story), *whole(other))
        page = await chromium.new_page()
        await playing(page, summary(1) | {"id": story.id}, summary(2) | {"id": other.id})
        await page.goto(str(gateway.client.base_url))
        row = page.locator(f".list [data-id='{story.id}']")
        await row.hover()
        await row.get_by_role("button", name="Delete").click()
        await row.get_by_role("button", name="No").click()
        assert (await gateway.client.get(f"/deliberations/{story.id}")).status_code == 200
        await row.get_by_role("button", name="Delete").click()
        await row.get_by_role("button", name="Yes, delete").click()
        await expect(row).to_have_count(0)
        assert (await gateway.client.get(f"/deliberations/{story.id}")).status_code == 410
        await expect(page.locator(f".list [data-id='{other.id}']")).to_be_visible()
        await page.close()


async def test_the_keys_are_shown_over_the_list(chromium: BrowserContext) -> None:
    async def one(route: Route) -> None:
        page_of_one: dict[str, Any] = {"items": [summary(1)], "next_cursor": None, "behind_s": 0}
        await route.fulfill(json=page_of_one)

    async with listening() as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.route("**/deliberations?*", one)
        await page.goto(str(gateway.client.base_url))
        await page.locator(".list [data-id]").wait_for()
        await page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        await expect(keys).to_be_in_viewport()
        await expect(keys).to_contain_text("new deliberation")
        assert await violations(page) == []
        await page.keyboard.press("Escape")
        await expect(keys).to_have_count(0)
        await page.close()
