"""A list of thousands draws only the rows that are seen."""

import asyncio

import pytest
from playwright.async_api import BrowserContext, Route, expect

from tests.browser.list_rows import summary
from tests.browser.long_tasks import long_tasks
from tests.components.routes.listening import listening

pytestmark = pytest.mark.browser

ROWS, FIRST = 5_000, 50

DRAWN = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
  done(document.elementFromPoint(200, 300).closest(".list tr:not(.space)") !== null))))"""


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_list_of_thousands_is_scrolled_and_used_by_keys(chromium: BrowserContext, width: int) -> None:
    items = sorted(map(summary, range(ROWS)), key=lambda each: each["created_at"], reverse=True)

    async def answer(route: Route) -> None:
        older = "cursor=" in route.request.url
        await route.fulfill(
            json={"items": items[FIRST:] if older else items[:FIRST], "next_cursor": None if older else "c"}
        )

    async with listening() as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.set_viewport_size({"width": width, "height": 900})
        await page.route("**/deliberations?*", answer)
        async with long_tasks(page) as long:
            await page.goto(str(gateway.client.base_url))
            await page.get_by_role("button", name="Older ones").wait_for()
            await page.get_by_role("button", name="Older ones").click()
            await expect(page.locator(".foot")).to_contain_text(f"{ROWS:,} deliberations")
            for share in (0.2, 0.5, 0.9, 1):
                await page.evaluate("(share) => scrollTo(0, share * document.documentElement.scrollHeight)", share)
                assert await page.evaluate(DRAWN), "a row stands where one looks, two frames later"
        assert long == []
        last = page.locator(f".list [data-id='{items[-1]['id']}']")
        await expect(last).to_be_in_viewport()
        assert await page.locator(".list tr").count() < 120
        heights = await page.evaluate(
            "[...document.querySelectorAll('.list [data-id]')].map((row) => row.offsetHeight)"
        )
        assert set(heights) == {41 if width == 1280 else 110}
        await page.evaluate("scrollTo(0, 60_000)")
        await page.evaluate(DRAWN)
        await page.keyboard.press("j")
        chosen = page.locator(".list tr[aria-selected=true]")
        await expect(chosen).to_be_in_viewport()
        before = await chosen.get_attribute("data-id")
        for _ in range(40):
            await page.keyboard.press("j")
            await expect(chosen).to_be_in_viewport()
        ids = [each["id"] for each in items]
        assert ids.index(str(await chosen.get_attribute("data-id"))) == ids.index(str(before)) + 40
        await page.close()
