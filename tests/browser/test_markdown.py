"""A Markdown text that grows is drawn as if it were drawn at once, and only its open block again and again."""

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
