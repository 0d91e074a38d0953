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
async def test_the_page_shows_the_reading_of_the_core(page: Page, gateway: Gateway, name: str, live: bool) -> None:
    facts = story(name)
    id = f"{'live' if live else 'late'}-{SHOWN.index(name)}"
    events = [event.model_copy(update={"deliberation_id": id}) for event in events_of(facts)]
    await gateway.write(*events[: 1 if live else None])
    await page.evaluate(f"location.hash = {id!r}")
    await expect(page.locator(".lane")).to_have_count(3)
    await gateway.write(*events[1 if live else len(events) :])
    await expect(page.locator("[data-done]")).to_have_attribute("data-done", id, timeout=20_000)
    await page.get_by_role("switch", name="Reveal names").check(force=True)
    works = read(facts)
    answered = {agent_id for agent_id, work in works.items() if work["content"]}
    candidates = page.get_by_label("Candidate", exact=True)
    if answered:
        assert set(await candidates.locator("option").all_inner_texts()) == answered
    for agent_id in sorted(answered):
        await candidates.select_option(agent_id)
        text = page.locator(".diff .md").last
        await expect(text).to_contain_text(works[agent_id]["content"], use_inner_text=False)
