from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from docsite.build import WORK

pytestmark = pytest.mark.browser
PAGES = ("index.html", "docs/quickstart.html", "docs/facts.html", "reference/deliberations.html")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    folder = WORK / "site"
    assert (folder / "index.html").exists(), "`make docs` builds the site"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
async def reader(chromium: BrowserContext) -> AsyncIterator[tuple[Page, list[str]]]:
    page = await chromium.new_page()
    requested = list[str]()
    page.on("request", lambda request: requested.append(request.url))
    yield page, requested
    await page.close()


async def test_search_finds_a_setting_and_leads_to_its_page(site: str, reader: tuple[Page, list[str]]) -> None:
    page, requested = reader
    # The keys are heard once the page's scripts have run.
    await page.goto(f"{site}/index.html", wait_until="networkidle")
    await page.keyboard.press("/")
    await page.keyboard.type("KEY_PEPPER")
    result = page.locator("a[href*='security.html']").filter(has_text="Keys").first
    await expect(result).to_be_visible()
    await result.click()
    await page.wait_for_url("**/docs/security.html*")
    assert [url for url in requested if not url.startswith((site, "data:", "blob:"))] == []


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_fetches_nothing_from_other_hosts(site: str, reader: tuple[Page, list[str]], path: str) -> None:
    page, requested = reader
    await page.goto(f"{site}/{path}", wait_until="networkidle")
    await expect(page.locator("article h1").first).to_be_visible()
    assert [url for url in requested if not url.startswith((site, "data:", "blob:"))] == []
