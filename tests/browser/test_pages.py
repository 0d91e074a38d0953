import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, ConsoleMessage, Page, expect

from tests.components.access.keyed import PEPPER, make_key
from tests.components.docs.tables import ROOT
from tests.components.routes.listening import listening
from tests.e2e.conftest import FAST, SLOW, TASK, Stack

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

ENDED_WITHIN_MS = 60_000
PROGRESS = """() => {
  const progress = document.getElementById("progress");
  window.stages = [];
  new MutationObserver(() => window.stages.push(progress.textContent)).observe(progress, { childList: true });
}"""
"""Collects every text of the progress line in `window.stages`."""


@pytest.fixture
async def quiet(page: Page, stack: Stack) -> AsyncIterator[Page]:
    asked: list[str] = []
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"{message.text} {message.location['url']}")

    page.on("request", lambda request: asked.append(request.url))
    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    assert (complaints, [url for url in asked if not url.startswith((stack.url, "data:"))]) == ([], [])


async def test_the_page_of_the_document_shows_every_operation(quiet: Page, stack: Stack) -> None:
    await quiet.goto(f"{stack.url}/docs")
    await quiet.locator("#operations-deliberations-create_deliberation").wait_for()
    assert await quiet.locator(".opblock").count() > 20


async def test_a_council_is_asked_watched_and_judged_on_the_dashboard(quiet: Page, stack: Stack) -> None:
    await stack.script(**SLOW)
    task = 'A <b>task</b> with "quotes" & 𝄞'
    await quiet.goto(stack.url)
    await expect(quiet.locator("#mode")).to_contain_text("development mode")
    await expect(quiet.locator("#mode")).to_contain_text("simulated engine")
    await quiet.evaluate(PROGRESS)
    await quiet.get_by_label("Task").fill(task)
    await quiet.get_by_role("button", name="Deliberate").click()
    await expect(quiet.locator(".lane")).to_have_count(3)
    await expect(quiet.locator("#progress")).to_contain_text("calls")
    await expect(quiet.locator(".lane pre").first).not_to_be_empty()
    await expect(quiet.locator("#verdict")).to_be_visible(timeout=ENDED_WITHIN_MS)
    await expect(quiet.locator("#facts")).to_contain_text("completed")
    # A strategy repeats critiques, and scores once.
    stages = await quiet.evaluate("window.stages")
    assert {"critique, round 1: 3 calls", "score: 3 calls"} <= set(stages), stages
    await expect(quiet.locator("#detail h2")).to_have_text(task)
    shown = await quiet.locator("#verdict").inner_text()
    assert shown.count("dev-00") >= 3 and "★" in shown
    newest = quiet.locator("#list tr").first
    await expect(newest).to_contain_text("completed")
    await expect(newest).to_have_attribute("aria-current", "")
    # A link is enough to see the same again.
    await quiet.reload()
    await expect(quiet.locator("#verdict")).to_be_visible()
    assert await quiet.locator("#verdict").inner_text() == shown


async def test_the_strategy_chooses_the_number_of_agents_unless_one_is_given(quiet: Page, stack: Stack) -> None:
    await stack.script(**FAST)
    await quiet.goto(stack.url)
    for given, agents in (("", "1"), ("2", "2")):
        await quiet.get_by_label("Task").fill(f"With {agents}.")
        await quiet.get_by_label("Strategy").select_option("single" if agents == "1" else "vote")
        await quiet.get_by_label("Agents").fill(given)
        await quiet.get_by_role("button", name="Deliberate").click()
        row = quiet.locator("#list tr", has_text=f"With {agents}.")
        await expect(row.locator("td").nth(2)).to_have_text(agents)
        await expect(row).to_contain_text("completed", timeout=ENDED_WITHIN_MS)


async def test_a_finished_council_is_shown_with_its_ranking_as_in_the_documentations_picture(
    page: Page, stack: Stack
) -> None:
    deliberation_id = await stack.submit(task=TASK, role="DEV", num_agents=3, seed=7)
    await stack.until(deliberation_id, status="completed")
    await page.set_viewport_size({"width": 1280, "height": 760})
    await page.goto(f"{stack.url}/#{deliberation_id}")
    await expect(page.locator("#detail h2")).to_have_text(TASK)
    await expect(page.locator("#verdict")).to_contain_text("★")
    cells = page.locator("#list tr").first.locator("td")
    await expect(cells).to_have_text([TASK, "council", "3", "completed"])
    picture = await page.screenshot(path=ROOT / "build" / "images" / "dashboard.png")
    assert picture.startswith(b"\x89PNG")


async def test_a_council_is_stopped_on_the_dashboard(quiet: Page, stack: Stack) -> None:
    await stack.script(**SLOW)
    await quiet.goto(stack.url)
    await quiet.get_by_label("Task").fill("A long one.")
    await quiet.get_by_label("Strategy").select_option("tournament")
    await quiet.get_by_role("button", name="Deliberate").click()
    await quiet.get_by_role("button", name="Stop").click()
    await expect(quiet.locator("#facts")).to_contain_text("cancelled", timeout=ENDED_WITHIN_MS)
    await expect(quiet.get_by_role("button", name="Stop")).to_be_hidden()


async def test_deliberations_of_other_clients_appear_and_end_in_the_list(quiet: Page, stack: Stack) -> None:
    await stack.script(**FAST)
    await quiet.goto(stack.url)
    await expect(quiet.locator("#board")).to_be_visible()
    deliberation_id = await stack.submit(strategy="single")
    row = quiet.locator("#list tr", has=quiet.locator(f'a[href="#{deliberation_id}"]'))
    await expect(row).to_contain_text("completed", timeout=ENDED_WITHIN_MS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ('{"reasoning": "why", "answer": "so"}', "why\n\nso"),
        ('{"answer": "a \\"word\\"\\nand \\u00fc"}', 'a "word"\nand ü'),
        ('{"reasoning": "still writ', "still writ"),
        ('{"issues": [{"severity": "major"}], "n": 1}', "major"),
    ],
)
async def test_text_shown_to_people_is_the_strings_of_the_json(
    quiet: Page, stack: Stack, text: str, shown: str
) -> None:
    await quiet.goto(stack.url)
    script = f'import("/ui/prose.js").then(({{ prose }}) => prose({json.dumps(text)}))'
    assert await quiet.evaluate(script) == shown


async def test_the_page_shows_a_rejection_and_a_missing_deliberation(page: Page, stack: Stack) -> None:
    await page.goto(f"{stack.url}/#nothing-here")
    await expect(page.locator("#progress")).to_contain_text("There is no deliberation nothing-here")
    await page.get_by_label("Task").fill("t")
    await page.get_by_label("Agents").evaluate("input => { input.removeAttribute('max'); input.value = '99'; }")
    await page.get_by_role("button", name="Deliberate").click()
    await expect(page.locator("#ask [role=alert]")).to_contain_text("/num_agents")


async def test_a_key_opens_the_dashboard_and_leaving_closes_it(chromium: BrowserContext) -> None:
    async with listening(key_pepper=PEPPER) as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        url = str(gateway.client.base_url)
        await page.goto(url)
        await page.get_by_label("API key").fill("dlb_no_such_key")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("#enter [role=alert]")).not_to_be_empty()
        await page.get_by_label("API key").fill(await make_key(gateway.journal))
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("#board")).to_be_visible()
        assert await page.evaluate("document.cookie") == "", "no script can read the session"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.locator("#enter")).to_be_visible()
        await expect(page.locator("#board")).to_be_hidden()
        await page.close()
