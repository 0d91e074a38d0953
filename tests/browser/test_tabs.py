"""A tab that is hidden while twelve texts grow, and seven tabs over one stream."""

import asyncio
import json

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.browser.growing_council import BEFORE, PIECE, SHOWN_WITHIN_MS, council, feed, raw, shown
from tests.components.routes.listening import listening
from tests.story import Story

pytestmark = pytest.mark.browser

FED_S = 2
HIDDEN = """([hidden]) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
# The page's policy allows no `wait_for_function` with a text.
UNTIL = """() => new Promise((done) => {
  const timer = setInterval(() => {
    if (!(%s)) return;
    clearInterval(timer);
    done();
  }, 50);
})"""
WATCHED = """() => {
  window.changes = 0;
  window.changedAt = performance.now();
  new MutationObserver((list) => {
    changes += list.length;
    changedAt = performance.now();
  })
    .observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  window.heard = [];
  new BroadcastChannel("deliberations of default").onmessage = ({ data }) => heard.push(data.event?.type);
}"""


async def test_a_hidden_tab_draws_nothing_and_catches_up_when_it_is_seen(chromium: BrowserContext) -> None:
    async with council(chromium) as (gateway, story, texts, page):
        await shown(page, gateway, story)
        await page.evaluate(HIDDEN, [True])
        await page.evaluate(WATCHED)
        # Whatever was under way ends.
        await page.evaluate(UNTIL % "performance.now() - changedAt > 1_000")
        await page.evaluate("changes = 0")
        at = await feed(gateway, story, texts, FED_S, BEFORE)
        await gateway.write(story.finished(story.agents[0], texts[0]))
        await page.evaluate(UNTIL % "heard.includes('call.finished')")
        # Longer than the page waits until it draws, or asks for figures.
        await page.evaluate("new Promise((done) => setTimeout(done, 1_000))")
        assert await page.evaluate("changes") == 0
        await page.evaluate(HIDDEN, [False])
        await expect(page.locator(".lane .doing").first).to_contain_text("done")
        written = json.loads(texts[1][: at - PIECE].rstrip("\\") + '"}')["answer"]
        heading = written.rpartition("## ")[2].splitlines()[0]
        await expect(page.locator(".lane .md").nth(1)).to_contain_text(heading, timeout=SHOWN_WITHIN_MS)


async def test_a_seventh_tab_works_while_six_watch(chromium: BrowserContext) -> None:
    async with listening() as gateway, asyncio.timeout(120):
        stories = [Story(f"tab{number}") for number in range(7)]
        tabs: list[Page] = []
        streaming: set[int] = set()
        for number, story in enumerate(stories):
            await gateway.write(story.accepted(), story.opened(), story.started(story.agents[0]))
            page = await chromium.new_page()
            page.on("request", lambda request, n=number: streaming.add(n) if "/events?deltas" in request.url else None)
            await page.goto(f"{gateway.client.base_url}/#{story.id}")
            await expect(page.locator(".lane")).to_have_count(2, timeout=SHOWN_WITHIN_MS)
            tabs.append(page)
        for story, page in zip(stories, tabs, strict=True):
            await page.bring_to_front()
            await gateway.write(story.delta(story.agents[0], 0, raw(f"Text of {story.id}")))
            await expect(page.locator(".lane .md").first).to_have_text(f"Text of {story.id}", timeout=SHOWN_WITHIN_MS)
        assert streaming == {0}, "one stream for the browser"
        for page in tabs:
            await page.close()
