"""Twelve lanes that grow block the page for no tenth of a second."""

import pytest
from playwright.async_api import BrowserContext, expect

from tests.browser.growing_council import BEFORE, LANES, SHOWN_WITHIN_MS, council, feed, shown
from tests.browser.long_tasks import long_tasks

pytestmark = pytest.mark.browser

FED_S = 6


async def test_twelve_lanes_at_a_hundred_tokens_a_second_and_a_new_stage_are_drawn_without_a_long_task(
    chromium: BrowserContext,
) -> None:
    async with council(chromium) as (gateway, story, texts, page):
        async with long_tasks(page) as long:
            await shown(page, gateway, story)
            await feed(gateway, story, texts, FED_S, BEFORE)
            await gateway.write(*(story.finished(agent, text) for agent, text in zip(story.agents, texts, strict=True)))
            done = page.locator(".lane .doing", has_text="done")
            await expect(done).to_have_count(LANES, timeout=SHOWN_WITHIN_MS)
            started = [story.started(agent, stage=2) for agent in story.agents]
            await gateway.write(story.closed(), story.opened(2), *started)
            # Each lane shows its last text until the new one comes.
            ends = page.locator(".lane .md.dim > :last-child")
            await expect(ends).to_have_count(LANES, timeout=SHOWN_WITHIN_MS)
        assert long == []
