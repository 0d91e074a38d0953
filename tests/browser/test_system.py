import asyncio
import re

import pytest
from playwright.async_api import BrowserContext, Page, expect

from app.access.key_writer import KeyWriter
from app.access.keys import Pepper
from tests.components.access.keyed import PEPPER, bearer, make_key
from tests.components.routes.listening import Gateway, listening
from tests.components.routes.replica_replies import agent, engine, replies, troubled
from tests.e2e.conftest import FAST, Stack
from tests.fakes import InMemoryJournal
from tests.story import NOW

pytestmark = [pytest.mark.browser, pytest.mark.e2e]


async def test_the_engines_figures_and_all_parts_are_shown(page: Page, stack: Stack) -> None:
    await stack.script(**FAST)
    await stack.until(await stack.submit(seed=7), status="completed")
    await page.goto(f"{stack.url}/#/system")
    row = page.get_by_role("region", name="Engines, table").locator("tbody tr").first
    await expect(row).to_contain_text(re.compile(r"closed\s*nothing"))
    await expect(row).to_contain_text(re.compile(r"\d+ %\s*\d+\.\d\d s"))
    parts = page.get_by_role("region", name="Parts, table")
    for part in ("gateway", "coordinator", "role dev", "webhooks", "archive"):
        await expect(parts.get_by_role("rowheader", name=part, exact=True)).to_be_visible()


async def test_an_engine_in_trouble_says_what_is_wrong_and_for_how_long(chromium: BrowserContext) -> None:
    journal = InMemoryJournal(replies=replies())
    trouble = troubled("memory", "it answered 503: CUDA out of memory", since=NOW.isoformat())
    failing = engine("http://e1:8000", healthy=False, circuit="open", trouble=trouble)
    journal.replies["control.role.DEV"] = [agent("DEV", waiting=4, engines=[failing])]
    async with listening(journal, lists=True) as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.goto(f"{gateway.client.base_url}/#/system")
        row = page.get_by_role("region", name="Engines, table").locator("tbody tr")
        told = re.compile(r"open\s*is out of memory: it answered 503: CUDA out of memory, for \d")
        await expect(row).to_contain_text(told)
        await expect(row.locator("td").nth(4)).to_have_text("4")
        await expect(row.locator("td").nth(5)).to_have_text("–")
        finding = page.get_by_role("list", name="Findings").get_by_role("listitem").filter(has_text="engines")
        await expect(finding).to_have_count(1)
        await expect(finding).to_contain_text("CUDA out of memory")
        await expect(finding).to_contain_text("--max-model-len")
        await expect(page.get_by_text("This gateway asks for no keys")).to_be_visible()
        await expect(page.get_by_role("button", name="New key")).to_have_count(0)
        await page.close()


async def test_findings_say_why_they_matter_and_what_mends_them(chromium: BrowserContext) -> None:
    journal = InMemoryJournal(replies=replies())
    journal.replies["control.coordinator"] = []
    async with listening(journal, lists=True) as gateway, asyncio.timeout(60):
        page = await chromium.new_page()
        await page.goto(f"{gateway.client.base_url}/#/system")
        first = page.get_by_role("list", name="Findings").get_by_role("listitem").first
        await expect(first).to_contain_text("No coordinator answered")
        await expect(first).to_contain_text("Accepted deliberations wait, and none begins.")
        await expect(first).to_contain_text("Deploy the coordinator")
        await expect(first.get_by_role("button")).to_have_count(0)
        copied = page.get_by_role("listitem").get_by_role("button", name="Copy python -m app.archive")
        await expect(copied).to_have_count(1)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Not ready")
        await page.close()


async def entered(chromium: BrowserContext, gateway: Gateway, key: str) -> Page:
    page = await chromium.new_page()
    await page.goto(str(gateway.client.base_url))
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("navigation", name="Views").get_by_role("link", name="System").click()
    return page


async def test_a_key_is_made_shown_once_and_revoked(chromium: BrowserContext) -> None:
    async with listening(key_pepper=PEPPER, lists=True) as gateway, asyncio.timeout(90):
        gateway.server.lifespan.state["key_writer"] = KeyWriter(gateway.journal, Pepper(PEPPER))
        page = await entered(chromium, gateway, await make_key(gateway.journal, scopes=("admin", "read")))
        await page.get_by_role("button", name="New key").click()
        await expect(page.get_by_role("button", name="submit")).to_have_count(0)
        await page.get_by_label("Name", exact=True).fill("ci")
        await page.get_by_label("Lasts").select_option("as long as mine")
        await page.get_by_role("button", name="Make key").click()
        secret = await page.locator(".secret").inner_text()
        headers = bearer(secret)
        assert (await gateway.client.get("/login", headers=headers)).json()["scopes"] == ["read"]
        row = page.get_by_role("region", name="Keys, table").locator("tr", has_text="ci")
        await expect(row).to_contain_text("of acme")
        await expect(row).to_contain_text("never")
        await page.reload()
        await expect(row).to_be_visible()
        assert secret not in await page.content()
        await row.get_by_role("button", name="Revoke").click()
        await row.get_by_role("button", name="No").click()
        assert (await gateway.client.get("/login", headers=headers)).status_code == 200
        await row.get_by_role("button", name="Revoke").click()
        await row.get_by_role("button", name="Yes, revoke").click()
        await expect(row).to_contain_text("revoked")
        assert (await gateway.client.get("/login", headers=headers)).status_code == 401
        await page.close()


async def test_what_a_caller_may_not_do_has_no_button(chromium: BrowserContext) -> None:
    async with listening(key_pepper=PEPPER, lists=True) as gateway, asyncio.timeout(90):
        page = await entered(chromium, gateway, await make_key(gateway.journal))
        await expect(page.get_by_text("set KEYS_NATS_URL")).to_be_visible()
        await expect(page.get_by_role("button", name=re.compile("New key|Revoke"))).to_have_count(0)
        await page.get_by_role("button", name="Log out").click()
        await page.close()
        page = await entered(chromium, gateway, await make_key(gateway.journal, scopes=("read",)))
        await expect(page.get_by_text("keys with the scope admin")).to_be_visible()
        await expect(page.get_by_role("region", name="Keys, table")).to_have_count(0)
        await page.close()
