from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.components.routes.listening import Gateway, listening
from tests.unit.strategies.stories import STORIES, events_of, read, story

pytestmark = pytest.mark.browser

SHOWN = [name for name in STORIES if name.startswith(("council", "test-relay"))]


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening(lists=True) as made:
        yield made


@pytest.fixture(scope="module")
async def page(chromium: BrowserContext, gateway: Gateway) -> AsyncIterator[Page]:
    opened = await chromium.new_page()
    await opened.goto(str(gateway.client.base_url))
    yield opened
    await opened.close()


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("live", [True, False], ids=["live", "afterwards"])
async def test_lanes_show_the_reading_of_the_core(page: Page, gateway: Gateway, name: str, live: bool) -> None:
    facts = story(name)
    id = f"{'live' if live else 'late'}-{SHOWN.index(name)}"
    events = [event.model_copy(update={"deliberation_id": id}) for event in events_of(facts)]
    await gateway.write(*events[: 1 if live else None])
    await page.evaluate(f"location.hash = {id!r}")
    await expect(page.locator(".lane")).to_have_count(3)
    await gateway.write(*events[1 if live else len(events) :])
    for agent_id, work in read(facts).items():
        lane = page.locator(".lane", has=page.get_by_role("heading", name=agent_id))
        doing = {"answered": "", "failed": "broken off"}.get(work["status"], work["status"])
        await expect(lane.locator("p")).to_have_text(doing)
        if work["content"]:
            await expect(lane.locator("pre")).to_have_text(work["content"])
