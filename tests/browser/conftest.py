"""A real Chromium, started once, and the stack that the end-to-end tests have."""

import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

from tests.e2e.conftest import Stack, running, stack, up

__all__ = ["running", "stack", "up"]

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrowserContext]:
    assert os.access(CHROMIUM, os.X_OK), f"{CHROMIUM} is missing: `make test-browser` installs it"
    profile = tmp_path_factory.mktemp("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, headless=True, args=FLAGS
        )
        yield browser
        await browser.close()


@pytest.fixture
async def page(chromium: BrowserContext, stack: Stack) -> AsyncIterator[Page]:
    opened = await chromium.new_page()
    await opened.goto(f"{stack.url}/healthz")
    yield opened
    await opened.close()
