"""A Markdown text that grows is drawn as if it were drawn at once, and only its open block again and again."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page

from tests.components.routes.listening import listening

pytestmark = pytest.mark.browser

PIECES = [
    "# A heading\n", "Words of a line", "Words\n", "\n", "\n\n", "===\n", "---\n", "- one\n", "- two", "  more of it\n",
    "1. first\n", "2. second\n\n", "* star\n", "    indented\n", "```\n", "```js\ncode *a*\n", "~~~\n", "> quoted\n",
    "| a | b |\n|---|---|\n", "\n| a | b |\n|---|:-:|\n| 1 | 2 |\n", "**bold", "**", "*", "_it_ ", "`code", "`",
    "lazy\n", "<div>\n", "<code> ", "<!-- ", "-->\n", "<pre>\n", "</pre>", "<b>x</b> ", "[x](http://a.b)",
    "[x][ref] ", "</div>\n", "#", " ", "\t", "\r\n", "***\n", "- [ ] task\n", "&amp; ",
    "http://a.b ", "\\*", "+ plus\n\n\n",
]  # fmt: skip
DEFINITION = "\n\n[ref]: http://127.0.0.1:1/defined\n\n"

# Differences as [text, grown, at once]; a caret is no part of the text.
GROWN = """async ([texts]) => {
  const { draw, fragment } = await import("/ui/markdown.js");
  const content = (box) => {
    const copy = box.cloneNode(true);
    copy.querySelectorAll(".caret").forEach((caret) => caret.remove());
    copy.normalize();
    return copy.innerHTML;
  };
  const atOnce = (text) => {
    const box = document.createElement("div");
    box.append(fragment(text));
    return content(box);
  };
  const wrong = [];
  for (const { text, ends } of texts) {
    const [box, drawn] = [document.createElement("div"), { settled: "", open: [] }];
    for (const end of ends) {
      const part = text.slice(0, end);
      while (!draw(box, drawn, part, "write"));
      if (!part.includes("]:") && content(box) !== atOnce(part)) wrong.push([part, content(box), atOnce(part)]);
    }
    while (!draw(box, drawn, text, null));
    if (content(box) !== atOnce(text)) wrong.push([text, content(box), atOnce(text)]);
  }
  return wrong;
}"""

ONCE = """async ([text, size]) => {
  const { draw } = await import("/ui/markdown.js");
  const [box, drawn] = [document.createElement("div"), { settled: "", open: [] }];
  const [made, longest] = [[], []];
  for (let end = size; end <= text.length; end += size) {
    while (!draw(box, drawn, text.slice(0, end), "write"));
    const settled = [...box.children].filter((each) => !drawn.open.includes(each));
    if (made.some((each, index) => each !== settled[index])) return "drawn again";
    made.splice(0, made.length, ...settled);
    longest.push(end - drawn.settled.length);
  }
  return Math.max(...longest);
}"""


# Of a few kilobytes each, on which a parser of Markdown takes seconds or more, or makes a page of gigabytes.
EXPLODING = {
    "a wide table": "|a" * 1_000 + "\n" + "|-" * 1_000 + "\n" + "|\n" * 2_000,
    "many tables": ("|a" * 60 + "\n" + "|-" * 60 + "\n" + "|\n" * 250 + "\n") * 20,
    "quotes in quotes": ">" * 20_000,
    "lists in lists": "- " * 10_000 + "a",
    "lists in lists on each line": ("- " * 16 + "a\n") * 900,
    "emphasis in emphasis": "*a **b " * 3_000,
    "a list of one long item": "- a\n" + "b\n" * 20_000,
    "an address in one word": "a." * 30_000 + "@",
    "a definition in every word": f"[a]: /{'x' * 1_900}\n\n" + "[a] " * 5_000,
}
SHOWN_WITHIN_MS = 2_000

# The longest step in ms, the elements, and what is shown of a text and of the one behind it.
SHOWN = """async ([text]) => {
  const { draw } = await import("/ui/markdown.js");
  const [boxes, steps] = [[], []];
  for (const written of [text, "A **later** text."]) {
    const [box, drawn] = [document.createElement("div"), { settled: "", open: [] }];
    for (let whole = false; !whole; ) {
      const began = performance.now();
      whole = draw(box, drawn, written, null);
      steps.push(performance.now() - began);
    }
    boxes.push(box);
  }
  const [box, later] = boxes;
  return [Math.max(...steps), box.querySelectorAll("*").length, box.textContent.length, later.innerHTML.trim()];
}"""


@pytest.fixture(scope="module")
async def page(chromium: BrowserContext) -> AsyncIterator[Page]:
    async with listening() as gateway:
        opened = await chromium.new_page()
        await opened.goto(str(gateway.client.base_url))
        yield opened
        await opened.close()


@pytest.mark.parametrize("seed", range(2))
async def test_a_text_that_grows_is_drawn_as_at_once(page: Page, seed: int) -> None:
    chance = random.Random(seed)
    texts: list[dict[str, Any]] = []
    for number in range(150):
        pieces = chance.choices(PIECES, k=chance.randint(2, 14))
        # A definition of a link reaches back into blocks that were drawn before it.
        text = "".join([*pieces, DEFINITION, *pieces] if number % 10 == 0 else pieces)
        ends = sorted(chance.sample(range(len(text)), k=min(len(text), 12)))
        texts.append({"text": text, "ends": ends})
    # Several steps each, from the first draw on.
    for _ in range(20):
        text = "".join(chance.choices(PIECES, k=600))
        texts.append({"text": text, "ends": sorted(chance.sample(range(len(text)), k=4))})
    assert await page.evaluate(GROWN, [texts]) == []


async def test_a_block_that_has_ended_is_drawn_once(page: Page) -> None:
    block = "A paragraph with **bold** words and `code`, of some hundred characters, as models write them.\n\n"
    item = "- an item of a list\n- and another\n\n## A heading\n\n"
    assert await page.evaluate(ONCE, [(block + item) * 20, 7]) <= len(block) + len(item)


@pytest.mark.parametrize("name", EXPLODING)
async def test_a_text_that_takes_too_much_work_is_shown_as_it_is_written(page: Page, name: str) -> None:
    text = EXPLODING[name]
    async with asyncio.timeout(30):
        longest_ms, elements, shown, later = await page.evaluate(SHOWN, [text])
    assert longest_ms < SHOWN_WITHIN_MS
    assert elements < len(text) and shown >= len(text) // 2
    assert later == '<p dir="auto">A <strong>later</strong> text.</p>'
