"""axe-core over what a page shows."""

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

_AXE = Axe()


async def violations(page: Page) -> list[str]:
    """What axe-core finds, by all of its rules: each rule with the elements that break it."""
    found = await _AXE.run(page)
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes']]}"
        for each in found.response["violations"]
    ]
