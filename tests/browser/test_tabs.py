"""A tab that is hidden while twelve texts grow, and seven tabs over one stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.components.routes.listening import Gateway, listening
from tests.story import Story

pytestmark = pytest.mark.browser

LANES, TOKENS_PER_S, CHARS_PER_TOKEN = 12, 100, 4
# As a replica publishes them (ARCHITECTURE.md).
FRAME_S = 0.05
FED_S = 2
PIECE = int(TOKENS_PER_S * FRAME_S) * CHARS_PER_TOKEN
CHARS = 8_000
SHOWN_WITHIN_MS = 30_000
BEFORE = CHARS - int(FED_S / FRAME_S) * PIECE
SECTION = """## A queue in {0} steps

The database holds **every job** until a worker has done it, so that a crash in step {0} loses none. `LISTEN` wakes the
workers, and a poll each second finds what a lost notification has left behind: 2,000 jobs a second are far below both.

- a worker takes a row with `SKIP LOCKED`, and *nobody* else does
- its transaction ends with the job
- a failed job waits for {0} seconds, then it is tried again

```sql
SELECT id FROM jobs WHERE run_at <= now() ORDER BY id FOR UPDATE SKIP LOCKED LIMIT {0};
```

| step | costs | holds |
|---|---|---|
| {0} | one write | the row |

"""


def raw(text: str) -> str:
    """The structured output with an answer, as an engine writes it."""
    return json.dumps({"answer": text})


def answer(number: int) -> str:
    """An answer of CHARS characters. The lanes are at different places of their blocks."""
    sections = "".join(SECTION.format(each) for each in range(2, 2 + 2 * CHARS // len(SECTION)))
    return sections[number * 37 :][:CHARS]


async def feed(gateway: Gateway, story: Story, texts: list[str], seconds: float, at: int) -> int:
    """Writes each lane's next frames at the pace of TOKENS_PER_S; returns the characters that each then has."""
    clock = asyncio.get_running_loop().time
    began, frames = clock(), int(seconds / FRAME_S)
    for frame in range(frames):
        await asyncio.sleep(began + frame * FRAME_S - clock())
        for agent, text in zip(story.agents, texts, strict=True):
            await gateway.write(story.delta(agent, at, text[at : at + PIECE]))
        at += PIECE
    assert clock() - began < 1.05 * seconds, "the tokens came more slowly than the test promises"
    return at


@asynccontextmanager
async def council(chromium: BrowserContext) -> AsyncIterator[tuple[Gateway, Story, list[str], Page]]:
    async with listening() as gateway, asyncio.timeout(120):
        story = Story("b" * 26, LANES)
        texts = [raw(answer(number)) for number in range(LANES)]
        await gateway.write(story.accepted(), story.opened(), *(story.started(agent) for agent in story.agents))
        for agent, text in zip(story.agents, texts, strict=True):
            await gateway.write(story.delta(agent, 0, text[:BEFORE]))
        page = await chromium.new_page()
        await page.goto(f"{gateway.client.base_url}/#{story.id}")
        await expect(page.locator(".lane .md h3, .lane .md h4").nth(LANES)).to_be_attached(timeout=SHOWN_WITHIN_MS)
        yield gateway, story, texts, page
        await page.close()


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
