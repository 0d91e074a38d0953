import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, ConsoleMessage, Locator, Page, Route, expect

from tests.browser.axe import violations
from tests.browser.councils import MIXED, QUEUE
from tests.components.access.keyed import PEPPER, make_key
from tests.components.docs.tables import ROOT
from tests.components.routes.listening import listening
from tests.e2e.conftest import FAST, SLOW, TASK, Stack

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

ENDED_WITHIN_MS = 60_000
IMAGES = ROOT / "build" / "images"


@pytest.fixture
async def quiet(page: Page, stack: Stack) -> AsyncIterator[Page]:
    asked: list[str] = []
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        # Of the fixture's first page, which has no icon.
        if message.type == "error" and not message.location["url"].endswith("/favicon.ico"):
            complaints.append(f"{message.text} {message.location['url']}")

    page.on("request", lambda request: asked.append(request.url))
    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    assert (complaints, [url for url in asked if not url.startswith((stack.url, "data:", "blob:"))]) == ([], [])


async def finished(stack: Stack, **body: object) -> str:
    await stack.script(**FAST)
    deliberation_id = await stack.submit(**{"seed": 7, **body})
    await stack.until(deliberation_id, status="completed")
    return deliberation_id


def row_of(page: Page, deliberation_id: str) -> Locator:
    return page.locator(f'.list [data-id="{deliberation_id}"]')


async def ask(page: Page, stack: Stack, task: str, strategy: str = "council") -> None:
    await page.goto(f"{stack.url}/#/new")
    await page.get_by_label("Task", exact=True).fill(task)
    await page.locator(".strats").get_by_text(strategy, exact=True).click()
    await page.get_by_role("button", name="Deliberate").click()


async def test_the_page_of_the_document_shows_every_operation(quiet: Page, stack: Stack) -> None:
    await quiet.goto(f"{stack.url}/docs")
    await quiet.locator("#operations-deliberations-create_deliberation").wait_for()
    assert await quiet.locator(".opblock").count() > 20


async def test_a_council_is_asked_watched_and_judged(quiet: Page, stack: Stack) -> None:
    await stack.script(**SLOW)
    task = 'A <b>task</b> with "quotes" & 𝄞'
    await ask(quiet, stack, task)
    await expect(quiet.get_by_role("heading", name=task)).to_be_visible()
    await expect(quiet).to_have_title(re.compile(rf"^\w+( \d of \d)?: {re.escape(task)} · Deliberation Gateway$"))
    await expect(quiet.locator(".top .sim")).to_contain_text("Simulated")
    await expect(quiet.locator(".lane")).to_have_count(3)
    await expect(quiet.locator(".lane .md").first).not_to_be_empty()
    await expect(quiet.locator(".rail")).to_contain_text("critique")
    await expect(quiet.locator(".rail")).to_contain_text("3 of 3")
    verdict = quiet.locator("#verdict")
    await expect(verdict).to_be_visible(timeout=ENDED_WITHIN_MS)
    await expect(verdict).to_contain_text("Why it won")
    shown = await verdict.inner_text()
    # A link is enough to see the same again.
    await quiet.reload()
    await expect(verdict).to_be_visible()
    assert await verdict.inner_text() == shown
    await quiet.go_back()
    await expect(quiet.get_by_label("Task", exact=True)).to_have_value("")
    await quiet.keyboard.press("Escape")
    await expect(quiet).to_have_title("Deliberations · Deliberation Gateway")
    await expect(quiet.locator(".list tbody")).to_contain_text(task)


async def test_figures_grow_while_a_council_is_under_way(quiet: Page, stack: Stack) -> None:
    await stack.script(**SLOW)
    deliberation_id = await stack.submit(seed=3)
    await quiet.goto(f"{stack.url}/#/deliberations/{deliberation_id}")
    tokens = quiet.locator(".gauge .figs > div", has_text="tokens").locator("dd")
    await expect(tokens).not_to_contain_text("0 ", timeout=ENDED_WITHIN_MS)
    assert await quiet.locator(".gauge").is_visible(), "the council is still under way"
    await expect(quiet.locator(".wf .r").first).to_be_visible()
    await expect(quiet.locator(".facts")).to_contain_text("stage.opened")


async def test_the_form_shows_the_price_and_the_same_request_for_other_clients(quiet: Page, stack: Stack) -> None:
    await quiet.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await quiet.goto(f"{stack.url}/#/new")
    await quiet.get_by_role("button", name="medium").click()
    quote = quiet.locator(".quotebox")
    await expect(quote).to_contain_text("tokens, at most")
    before = await quote.inner_text()
    await quiet.get_by_role("button", name="dev: more").click()
    await expect(quote).not_to_have_text(before)
    await quiet.get_by_role("button", name="curl").click()
    await quiet.wait_for_function("navigator.clipboard.readText().then((text) => text.startsWith('curl'))")
    copied = await quiet.evaluate("navigator.clipboard.readText()")
    body = json.loads(copied.partition("-d '")[2].removesuffix("'"))
    assert body["strategy"] == "council" and {"role": "DEV", "count": 3} in body["agents"]
    assert (await stack.client.post("/deliberations/quote", json=body)).status_code == 200
    await quiet.get_by_label("Task", exact=True).press("Control+Enter")
    await quiet.wait_for_url("**/#/deliberations/*")
    accepted = await stack.read(quiet.url.rpartition("/")[2])
    assert [each["role"] for each in accepted["agents"]].count("DEV") == 3


async def test_a_role_whose_engines_serve_several_models_is_asked_with_the_chosen_one(page: Page, stack: Stack) -> None:
    async def with_another(route: Route) -> None:
        listed = await (await route.fetch()).json()
        engine = {"url": "http://engine", "name": None, "models": ["another", "its-own"], "trouble": None}
        live = {"replicas": 1, "models": ["its-own"], "simulated": True, "in_flight": 0, "engines": [engine]}
        for role in listed["items"]:
            role["live"] = live
        await route.fulfill(json=listed)

    await page.route("**/roles", with_another)
    await page.goto(f"{stack.url}/#/new")
    await page.get_by_label("Model of dev").select_option("another")
    await expect(page.get_by_role("button", name="CLI")).to_be_disabled()
    await page.get_by_label("Task", exact=True).fill("A task for another model")
    async with page.expect_request(lambda each: each.url.endswith("/deliberations") and each.method == "POST") as asked:
        await page.get_by_role("button", name="Deliberate").click()
    assert (await asked.value).post_data_json["agents"] == [{"role": "DEV", "count": 3, "model": "another"}]
    await page.locator(".head h1", has_text="A task for another model").wait_for()
    again = page.url.rpartition("/")[2]
    await page.goto(f"{stack.url}/#/new?from={again}")
    await expect(page.get_by_label("Model of dev")).to_have_value("another")


async def test_why_one_won_is_shown_with_its_ballots_critiques_versions_and_bill(page: Page, stack: Stack) -> None:
    deliberation_id = await finished(stack, task=QUEUE, agents=MIXED, rounds=2)
    resource = await stack.read(deliberation_id)
    winner = resource["verdict"]["winner"]
    await page.goto(f"{stack.url}/#{deliberation_id}")
    await page.locator("#verdict").wait_for()
    await page.get_by_role("switch", name="Reveal names").uncheck(force=True)
    assert winner not in await page.locator("#verdict").inner_text(), "judges and readers see letters first"
    await page.get_by_role("switch", name="Reveal names").check(force=True)
    await expect(page.locator("#verdict .by")).to_contain_text(winner)
    matrix = page.locator(".matrix")
    await expect(matrix.locator("tbody tr")).to_have_count(4)
    await expect(matrix.locator("td.own")).to_have_count(4)
    await matrix.locator("td button").first.click()
    await expect(page.get_by_role("region", name="Reasons")).to_contain_text("Correctness")
    work = next(each for each in resource["proposals"] if each["agent_id"] == winner)
    issues = page.locator(".issues")
    for critique in work["critiques"]:
        await expect(issues).to_contain_text(f"{critique['agent_id']} in round {critique['round']}")
    if work["revisions"]:
        await expect(page.locator(".diff ins").first).to_be_visible()
    bill = page.locator(".bill tfoot")
    usage = resource["usage"]
    await expect(bill).to_contain_text(f"{usage['prompt_tokens'] + usage['completion_tokens']:,}")
    await page.get_by_role("switch", name="Reveal names").uncheck(force=True)


async def test_replay_shows_the_council_of_an_earlier_moment(quiet: Page, stack: Stack) -> None:
    deliberation_id = await finished(stack)
    await quiet.goto(f"{stack.url}/#/deliberations/{deliberation_id}")
    stages = quiet.locator("#replay .rail li")
    await expect(stages.last).to_contain_text("score")
    await quiet.get_by_label("Moment").evaluate(
        "(input) => { input.value = 0; input.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    await expect(stages.filter(has_text="score")).to_have_count(0)


async def test_a_finished_council_is_saved_as_one_page_without_scripts(
    quiet: Page, stack: Stack, tmp_path: Path
) -> None:
    deliberation_id = await finished(stack)
    await quiet.goto(f"{stack.url}/#/deliberations/{deliberation_id}")
    await quiet.locator(".menu summary").click()
    async with quiet.expect_download() as saved:
        await quiet.get_by_role("button", name="One page (HTML)").click()
    file = tmp_path / (await saved.value).suggested_filename
    await (await saved.value).save_as(file)
    text = file.read_text()
    assert "<script" not in text and "Why it won" in text and TASK in text
    opened = await quiet.context.new_page()
    requested: list[str] = []
    opened.on("request", lambda request: requested.append(request.url))
    await opened.goto(file.as_uri())
    await expect(opened.locator("#verdict")).to_be_visible()
    assert requested == [file.as_uri()]
    await opened.close()


async def test_run_again_asks_the_same_council(quiet: Page, stack: Stack) -> None:
    deliberation_id = await finished(stack, agents=MIXED, task=QUEUE)
    await quiet.goto(f"{stack.url}/#/deliberations/{deliberation_id}")
    await quiet.get_by_role("link", name="Run again").click()
    await expect(quiet.get_by_label("Task", exact=True)).to_have_value(QUEUE)
    await quiet.get_by_role("button", name="Deliberate").click()
    await quiet.locator(".head h1", has_text=QUEUE).wait_for()
    again = await stack.read(quiet.url.rpartition("/")[2])
    assert [each["agent_id"] for each in again["agents"]] == [
        each["agent_id"] for each in (await stack.read(deliberation_id))["agents"]
    ]


async def test_a_member_with_a_persona_is_made_asked_and_asked_again(quiet: Page, stack: Stack) -> None:
    persona = "You look for the flaw that makes the plan fail."
    await quiet.goto(f"{stack.url}/#/new")
    await quiet.get_by_role("button", name="Member with a persona").click()
    own = quiet.locator(".adding")
    await own.get_by_label("Name").fill("Not a name")
    await own.get_by_label("Persona").fill(persona)
    await own.get_by_role("button", name="Add this member").click()
    await expect(own).to_be_visible()
    await own.get_by_label("Name").fill("sceptic")
    await own.get_by_role("button", name="Add this member").click()
    await expect(quiet.get_by_role("group", name="Council")).to_contain_text("4 members")
    await quiet.get_by_label("Task", exact=True).fill("A task for a sceptic")
    await quiet.get_by_role("button", name="Deliberate").click()
    await quiet.locator(".head h1", has_text="A task for a sceptic").wait_for()
    id = quiet.url.rpartition("/")[2]
    agents = (await stack.read(id))["agents"]
    assert [each["agent_id"] for each in agents] == ["dev-001", "dev-002", "dev-003", "sceptic"]
    assert [each.get("persona") for each in agents] == [None, None, None, persona]
    await quiet.goto(f"{stack.url}/#/new?from={id}")
    await expect(quiet.locator(".ev", has_text="sceptic")).to_contain_text(persona)
    await quiet.get_by_role("button", name="Remove sceptic").click()
    await expect(quiet.get_by_role("group", name="Council")).to_contain_text("3 members")


async def test_a_council_is_cancelled(quiet: Page, stack: Stack) -> None:
    await stack.script(**SLOW)
    await ask(quiet, stack, "A long one.", "tournament")
    await quiet.get_by_role("button", name="Cancel").click()
    await quiet.get_by_role("button", name="Yes, cancel").click()
    await expect(quiet.locator(".meta")).to_contain_text("Cancelled", timeout=ENDED_WITHIN_MS)
    await expect(quiet.get_by_role("button", name="Cancel")).to_have_count(0)


async def test_filters_and_search_stand_in_the_address(quiet: Page, stack: Stack) -> None:
    deliberation_id = await finished(stack, strategy="single", task="Needle in a haystack")
    await quiet.goto(f"{stack.url}/#/deliberations?q=needle&strategy=single")
    await expect(row_of(quiet, deliberation_id)).to_be_visible()
    await quiet.locator(".filter", has_text="Strategy").locator("select").select_option("vote")
    await expect(row_of(quiet, deliberation_id)).to_have_count(0)
    assert "strategy=vote" in quiet.url and "q=needle" in quiet.url
    await quiet.reload()
    await expect(quiet.locator(".empty")).to_contain_text("Nothing matches")


async def test_deliberations_of_other_clients_appear_with_their_stage_and_end_with_their_figures(
    quiet: Page, stack: Stack
) -> None:
    await finished(stack, strategy="single")
    await stack.script(**SLOW)
    await quiet.goto(f"{stack.url}/")
    await expect(quiet.locator(".list")).to_be_visible()
    deliberation_id = await stack.submit(seed=13)
    row = row_of(quiet, deliberation_id)
    stage = re.compile(r"Running: (propose|critique|revise|score)( \d of \d)?$")
    await expect(row.locator(".c-st")).to_have_text(stage, timeout=ENDED_WITHIN_MS)
    await expect(row).to_contain_text("Completed", timeout=ENDED_WITHIN_MS)
    resource = await stack.read(deliberation_id)
    tokens = resource["usage"]["prompt_tokens"] + resource["usage"]["completion_tokens"]
    await expect(row.locator(".c-tok")).to_have_text(f"{tokens:,}" if tokens < 10_000 else f"{tokens / 1_000:.1f} k")
    await expect(row.locator(".c-win")).to_contain_text(resource["verdict"]["winner"])


async def test_the_list_is_used_by_keys(quiet: Page, stack: Stack) -> None:
    await finished(stack, strategy="single")
    await quiet.goto(f"{stack.url}/")
    await expect(quiet.locator(".list tbody tr").nth(1)).to_be_visible()
    await quiet.keyboard.press("/")
    await expect(quiet.get_by_role("searchbox")).to_be_focused()
    await quiet.get_by_role("searchbox").blur()
    await quiet.keyboard.press("j")
    await quiet.keyboard.press("Enter")
    await expect(quiet.locator(".head h1")).to_be_visible()
    await quiet.go_back()
    # The row that was left has the focus again, so that keys of the list are heard.
    await expect(quiet.locator(".list tbody tr").nth(1)).to_be_visible()
    await quiet.keyboard.press("n")
    await expect(quiet.get_by_role("dialog")).to_be_visible()


async def test_two_tabs_share_one_stream_and_the_second_takes_over(stack: Stack, page: Page) -> None:
    await stack.script(**(SLOW | {"duration_ms": 1_500}))
    deliberation_id = await stack.submit(seed=11)
    other = await page.context.new_page()
    streams: list[str] = []
    other.on("request", lambda request: streams.append(request.url) if "/events?" in request.url else None)
    address = f"{stack.url}/#/deliberations/{deliberation_id}"
    await page.goto(address)
    await expect(page.locator(".lane .md").first).not_to_be_empty()
    await other.goto(address)
    await expect(other.locator(".lane .md").first).not_to_be_empty()
    assert [url for url in streams if f"{stack.url}/events?" in url] == []
    await page.goto("about:blank")
    await expect(other.locator("#verdict")).to_be_visible(timeout=ENDED_WITHIN_MS)
    assert [url for url in streams if f"{stack.url}/events?" in url] != []
    await other.close()


async def test_a_view_goes_on_after_its_gateway_was_killed(stack: Stack, page: Page) -> None:
    await stack.script(**(SLOW | {"duration_ms": 1_500}))
    deliberation_id = await stack.submit(seed=12)
    await page.goto(f"{stack.url}/#/deliberations/{deliberation_id}")
    await expect(page.locator(".lane .md").first).not_to_be_empty()
    os.kill(stack.child("gateway")["pid"], signal.SIGKILL)
    await expect(page.locator(".top .side")).to_contain_text("Reconnecting")
    await expect(page.locator("#verdict")).to_be_visible(timeout=ENDED_WITHIN_MS)
    events = page.locator("#facts header p")
    followed = await events.inner_text()
    await page.reload()
    await expect(events).to_have_text(followed)
    await stack.until_ready()


async def test_the_page_shows_a_rejection_and_a_missing_deliberation(page: Page, stack: Stack) -> None:
    await page.goto(f"{stack.url}/#nothing-here")
    await expect(page.locator("[role=alert]")).to_contain_text("There is no deliberation nothing-here")
    await page.goto(f"{stack.url}/#/new")
    await page.get_by_label("Task", exact=True).fill("t")
    await page.get_by_label("Tokens at most").fill("-1")
    tokens = page.get_by_label("Tokens at most")
    await expect(tokens).to_have_accessible_description(re.compile("It is too small"))
    await expect(page.locator(".quotebox")).to_contain_text("no price until the marked fields are mended")
    await tokens.fill("")
    await expect(page.locator(".quotebox")).to_contain_text("tokens, at most")
    assert await page.locator("[aria-invalid], .drawer .fault").count() == 0, "an emptied field is no fault"


async def test_a_key_opens_the_page_and_leaving_closes_it(chromium: BrowserContext) -> None:
    async with listening(key_pepper=PEPPER, lists=True) as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.goto(str(gateway.client.base_url))
        await page.get_by_label("API key").fill("dlb_no_such_key")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator("[role=alert]")).not_to_be_empty()
        await page.get_by_label("API key").fill(await make_key(gateway.journal))
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".nav")).to_be_visible()
        assert await page.evaluate("document.cookie") == "", "no script can read the session"
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        await expect(page.locator(".nav")).to_have_count(0)
        await page.close()


async def test_an_empty_house_explains_itself(chromium: BrowserContext) -> None:
    async with listening(lists=True) as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.goto(str(gateway.client.base_url))
        await expect(page.get_by_role("heading", name="Nobody has deliberated here yet")).to_be_visible()
        await expect(page.get_by_role("button", name="Ask this")).to_have_count(3)
        await page.close()


VIEWS = {
    "deliberations": ("/", ".list tbody tr"),
    "new": ("/#/new", ".quote"),
    "running": ("", ".lane .md li"),
    "done": ("", "#verdict"),
    "councils": ("/#/councils", ".strategies li"),
    "system": ("/#/system", "#eh"),
}


async def test_every_view_fits_a_phone_passes_axe_and_is_pictured_in_both_themes(page: Page, stack: Stack) -> None:
    council = {"task": QUEUE, "agents": MIXED, "rounds": 2}
    done = await finished(stack, **council)
    await stack.script(**(SLOW | {"duration_ms": 6_000}))
    for width, height in ((1280, 900), (390, 844)):
        await page.set_viewport_size({"width": width, "height": height})
        running = await stack.submit(**council, seed=width)
        ids = {"running": running, "done": done}
        for view in sorted(VIEWS, key=lambda name: name != "running"):
            path, ready = VIEWS[view]
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                await page.goto("about:blank")
                await page.goto(f"{stack.url}{f'/#{ids[view]}' if view in ids else path}")
                await page.locator(ready).first.wait_for(state="attached")
                wider = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wider <= 0, f"{view} is {wider} px wider than {width} px"
                assert await violations(page) == [], f"{view}, {scheme}, {width} px"
                name = f"page-{view}{'-phone' if width < 640 else ''}{'-dark' if scheme == 'dark' else ''}.png"
                picture = await page.screenshot(path=IMAGES / name)
                assert picture.startswith(b"\x89PNG")
        await stack.client.post(f"/deliberations/{running}/cancel", json={})


@pytest.mark.parametrize("settings", [{"lists": True}, {"key_pepper": PEPPER, "lists": True}], ids=["first", "login"])
async def test_the_first_views_pass_axe(chromium: BrowserContext, settings: dict[str, Any]) -> None:
    async with listening(**settings) as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.goto(str(gateway.client.base_url))
        await expect(page.locator("h1")).to_be_visible()
        for width, height in ((1280, 900), (390, 844)):
            await page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                assert await violations(page) == [], f"{scheme}, {width} px"
        await page.close()


USABLE_MS_MAX, COMPRESSED_BYTES_MAX = 1_000, 200_000
FIRST_ROW = """new MutationObserver(() => {
  if (!window.usable && document.querySelector(".list [data-id]")) requestAnimationFrame(() => {
    window.usable ??= performance.now();
  });
}).observe(document, { subtree: true, childList: true });"""


async def test_the_list_is_usable_within_a_second_of_a_cold_start(page: Page, stack: Stack) -> None:
    await finished(stack, strategy="single")
    kinds, received = dict[str, str](), dict[str, float]()
    session = await page.context.new_cdp_session(page)
    await session.send("Network.enable")
    await session.send("Network.setCacheDisabled", {"cacheDisabled": True})
    session.on("Network.responseReceived", lambda each: kinds.update({each["requestId"]: each["type"]}))
    session.on("Network.loadingFinished", lambda each: received.update({each["requestId"]: each["encodedDataLength"]}))
    await page.add_init_script(FIRST_ROW)
    usable_ms: list[float] = []
    # The best of three: the stack works on this machine too.
    for _ in range(3):
        received.clear()
        await page.goto(f"{stack.url}/")
        await page.locator(".list [data-id]").first.wait_for()
        usable_ms.append(await page.evaluate("new Promise((done) => requestAnimationFrame(() => done(usable)))"))
    assert min(usable_ms) <= USABLE_MS_MAX, usable_ms
    # How many deliberations the list has depends on the tests before.
    own = sum(size for request, size in received.items() if kinds[request] not in ("Fetch", "EventSource"))
    assert 0 < own <= COMPRESSED_BYTES_MAX, own
