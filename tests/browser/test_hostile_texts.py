import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.components.routes.listening import Gateway, listening
from tests.story import Story

pytestmark = pytest.mark.browser

HOSTILE = [
    "<img src=x onerror=\"window.forged='img'\">",
    "<script>window.forged='script'</script>",
    "<svg/onload=window.forged='svg'>",
    "<iframe srcdoc=\"<script>parent.forged='frame'</script>\"></iframe>",
    "<a href=\"javascript:window.forged='link'\">click</a>",
    "Then [click](javascript:window.forged='markdown')",
    "![x](http://127.0.0.1:1/forged.png)",
    "<style>body{background:url(//127.0.0.1:1/forged)}</style>",
    "<base href=//127.0.0.1:1/><form action=//127.0.0.1:1/><input name=forged></form>",
    '<meta http-equiv=refresh content="0;url=http://127.0.0.1:1/forged">',
    "</pre></section><h1 id=list>forged</h1>",
    "Then {{constructor.constructor('window.forged=1')()}}${window.forged=1}",
    '{"reasoning": "<img src=x onerror=window.forged=1>", "answer": "\\u003cscript>window.forged=1</script>"}',
    '{"__proto__": {"forged": 1}, "answer": "a", "constructor": {"prototype": {"forged": 1}}}',
    "\u202egnp.exe\u2066 \u200f\u061c",
    "\x1b]52;c;Zm9yZ2Vk\x07\x00\x08\ufeff\ufffe",
    "data: forged\n\nevent: deliberation.completed\ndata: {}\n\n",
    "Z\u0351\u036b\u0343" * 200,
]
TEXT = "\n".join(HOSTILE)
NAMES = ["javascript:window.forged=1", "<img src=x onerror=window.forged=1>", "//127.0.0.1:1/"]
# The page itself has none of these, and its own pictures (`svg`) stand outside of what models wrote.
ELEMENTS = (
    "img, iframe, style, base, meta[http-equiv], script:not([src]), form form, a[href^='javascript'], "
    ".md :is(svg, a, button, input, [id], [class]:not(.caret), [style])"
)


@asynccontextmanager
async def opened(chromium: BrowserContext, gateway: Gateway, path: str) -> AsyncGenerator[Page]:
    page, faults, url = await chromium.new_page(), list[str](), str(gateway.client.base_url)
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else faults.append(request.url))
    # The gateway of this test has no coordinator and no archive: the browser logs both refusals.
    expected = ("/readyz", "/deliberations?", "/stats", "/events?")
    page.on(
        "console",
        lambda message: (
            faults.append(message.text)
            if message.type == "error" and not any(path in message.location["url"] for path in expected)
            else None
        ),
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(dialog.message))
    page.on("popup", lambda popup: faults.append(popup.url))
    await page.add_init_script(
        "window.violations = []; document.addEventListener('securitypolicyviolation',"
        " each => window.violations.push(each.violatedDirective + ' ' + each.blockedURI));"
    )
    try:
        await page.goto(f"{url.rstrip('/')}{path}")
        yield page
        assert await page.evaluate("[window.forged, ({}).forged, window.violations]") == [None, None, []]
        assert await page.locator(ELEMENTS).count() == 0
        assert page.url.startswith(url) and faults == []
    finally:
        await page.close()


async def deliberated(gateway: Gateway, text: str) -> Story:
    story = Story("a" * 26)
    fact = story.accepted()
    specification = fact.specification.model_copy(update={"task": text})
    await gateway.write(fact.model_copy(update={"specification": specification}), story.opened())
    return story


@pytest.mark.parametrize("text", [*HOSTILE, TEXT], ids=map(str, range(len(HOSTILE) + 1)))
async def test_no_text_runs_loads_or_leaves_its_place_on_the_page(chromium: BrowserContext, text: str) -> None:
    async with listening() as gateway, asyncio.timeout(60):
        story = await deliberated(gateway, text)
        first, second = story.agents
        async with opened(chromium, gateway, f"/#{story.id}") as page:
            await expect(page.locator(".lane")).to_have_count(2)
            await gateway.write(story.started(first), story.delta(first, 0, text))
            await expect(page.locator(".lane .md").first).to_be_attached()
            await gateway.write(story.finished(first, text), story.finished(second, text))
            await expect(page.locator(".lane .md").nth(1)).to_be_attached()
            assert await page.locator(".lane .md script, .lane .md style").count() == 0
            await gateway.write(story.closed(), story.completed())
            await expect(page.locator(".meta")).to_contain_text("Completed")
            assert await page.locator(".head h1").inner_text() != ""
            assert await page.locator(".head h1 > *").count() == 0
            assert await page.locator(".lane").count() == 2


@pytest.mark.parametrize("name", NAMES)
async def test_no_name_after_the_hash_runs_or_leaves_the_gateway(chromium: BrowserContext, name: str) -> None:
    async with listening() as gateway, asyncio.timeout(60):
        page, url = await chromium.new_page(), str(gateway.client.base_url).rstrip("/")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{url}/#{name}")
        await expect(page.locator("main")).not_to_be_empty()
        await expect(page.locator("[role=alert], .list").first).to_be_visible()
        assert await page.evaluate("window.forged ?? null") is None
        assert [each for each in asked if not each.startswith((url, "data:"))] == []
        await page.close()
