import asyncio
import os
import signal

import pytest
from playwright.async_api import Error, Page, Route

from tests.e2e.conftest import Stack
from tests.e2e.documented.test_examples import proxied

pytestmark = [pytest.mark.browser, pytest.mark.e2e]


async def shown(page: Page, url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await page.goto(url)
                return
            except Error:
                await asyncio.sleep(0.05)


async def test_the_page_shows_the_verdict_although_its_proxy_refused_it_meanwhile(stack: Stack, page: Page) -> None:
    await stack.script(duration_ms=1_500, faults=[], behaviour="normal")
    async with proxied(stack.url) as origin:
        await shown(page, f"{origin}/")
        await page.click("#ask button")
        await page.wait_for_function("[...document.querySelectorAll('.lane pre')].some((each) => each.textContent)")
        refused = asyncio.Event()

        async def refuse(route: Route) -> None:
            await route.fulfill(status=502)
            refused.set()

        await page.route("**/events?*", refuse, times=1)
        os.kill(stack.child("gateway")["pid"], signal.SIGKILL)
        async with asyncio.timeout(30):
            await refused.wait()
        await page.wait_for_function("document.getElementById('state').textContent === 'completed'", timeout=60_000)
        verdict = await page.text_content("#verdict")
    newest = (await stack.client.get("/deliberations?limit=1&after=now")).json()["items"][0]["id"]
    assert verdict == (await stack.read(newest))["verdict"]["content"]
    await stack.until_ready()
