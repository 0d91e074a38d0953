"""A council of twelve whose texts grow at the pace of an engine, as a page follows it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import BrowserContext, Page, expect

from tests.components.routes.listening import Gateway, listening
from tests.story import Story

LANES, TOKENS_PER_S, CHARS_PER_TOKEN = 12, 100, 4
# As a replica publishes them (ARCHITECTURE.md).
FRAME_S = 0.05
PIECE = int(TOKENS_PER_S * FRAME_S) * CHARS_PER_TOKEN
CHARS, BEFORE = 8_000, 4_000
SHOWN_WITHIN_MS = 30_000
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
    """A council whose texts have BEFORE of their characters, and a page that is yet to be opened."""
    async with listening() as gateway, asyncio.timeout(120):
        story = Story("b" * 26, LANES)
        texts = [raw(answer(number)) for number in range(LANES)]
        await gateway.write(story.accepted(), story.opened(), *(story.started(agent) for agent in story.agents))
        for agent, text in zip(story.agents, texts, strict=True):
            await gateway.write(story.delta(agent, 0, text[:BEFORE]))
        page = await chromium.new_page()
        yield gateway, story, texts, page
        await page.close()


async def shown(page: Page, gateway: Gateway, story: Story) -> None:
    """Opens the council's view, until texts stand in it."""
    await page.goto(f"{gateway.client.base_url}/#{story.id}")
    await expect(page.locator(".lane .md h3, .lane .md h4").nth(LANES)).to_be_attached(timeout=SHOWN_WITHIN_MS)
