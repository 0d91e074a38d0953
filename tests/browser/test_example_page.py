import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Error, Page, Route

from tests.conftest import free_port
from tests.e2e.conftest import Stack

PROXY = Path(__file__).parents[2] / "examples/browser.py"
pytestmark = [pytest.mark.browser, pytest.mark.e2e]


@asynccontextmanager
async def proxied(url: str) -> AsyncGenerator[str]:
    port = free_port()
    command = (sys.executable, PROXY, "--url", url, "--port", str(port))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


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
