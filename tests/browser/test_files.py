"""Files of the form: chosen, dropped, pasted, sent with progress, refused, removed, and shown with the deliberation."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, ConsoleMessage, Locator, Page, Route, expect

from app.api.requests import INLINE_CHARS_MAX
from app.deliberation.facts import Accepted, decode
from tests.browser.axe import violations
from tests.browser.overlaps import faults_of_layout
from tests.components.access.keyed import PEPPER, make_key
from tests.components.inputs.files import pdf, picture
from tests.components.routes.listening import Gateway, listening
from tests.components.routes.served import played
from tests.fakes import FakeClock

pytestmark = pytest.mark.browser

LONG_NAME = f"{'n' * 190}.txt"
WIDTHS = [390, 768, 1280, 1920]
# The elements of a selector that scroll sideways.
WIDER = """(selector) => [...document.querySelectorAll(selector)]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.outerHTML.slice(0, 80))"""


def id_of(content: bytes) -> str:
    return f"file-{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with listening(lists=True) as one:
        yield one


@pytest.fixture
async def form(chromium: BrowserContext, gateway: Gateway) -> AsyncIterator[Page]:
    complaints: list[str] = []
    page = await chromium.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def heard(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            complaints.append(message.text)

    page.on("console", heard)
    await page.goto(f"{gateway.client.base_url}/#/new")
    await page.get_by_label("Task", exact=True).fill("Who pays?")
    yield page
    await page.close()
    assert complaints == []


def row(page: Page, name: str) -> Locator:
    return page.locator(f'[data-file="{name}"]')


def deliberate(page: Page) -> Locator:
    return page.get_by_role("button", name="Deliberate")


async def choose(page: Page, *files: tuple[str, bytes]) -> None:
    chosen = [{"name": name, "mimeType": "application/octet-stream", "buffer": content} for name, content in files]
    await page.locator("input[type=file]").set_input_files(chosen)  # pyright: ignore[reportArgumentType]


async def send_event(page: Page, event: str, name: str, content: str, media_type: str, text: str = "") -> None:
    """A drop on the form, or a paste into the task."""
    await page.evaluate(
        """([event, name, content, type, text]) => {
            const carried = new DataTransfer();
            if (name) carried.items.add(new File([content], name, { type }));
            if (text) carried.setData("text/plain", text);
            const options = { bubbles: true, cancelable: true };
            document.querySelector("#task").dispatchEvent(event === "paste"
                ? new ClipboardEvent("paste", { ...options, clipboardData: carried })
                : new DragEvent(event, { ...options, dataTransfer: carried }));
        }""",
        [event, name, content, media_type, text],
    )


async def ask(page: Page, gateway: Gateway) -> dict[str, Any]:
    await deliberate(page).click()
    await page.wait_for_url("**/#/deliberations/*")
    return (await gateway.client.get(f"/deliberations/{page.url.rpartition('/')[2]}")).json()


async def test_chosen_files_are_uploaded_asked_about_and_shown(form: Page, gateway: Gateway) -> None:
    paper, screen = pdf(["One."], ["Two."]), picture("PNG")
    await choose(form, ("lease & co.pdf", paper), ("screen.png", screen))
    await expect(row(form, "lease & co.pdf")).to_contain_text("text · application/pdf")
    await expect(row(form, "lease & co.pdf")).to_contain_text("2 pages · about")
    await expect(row(form, "screen.png")).to_contain_text("picture · image/png")
    resource = await ask(form, gateway)
    assert [(one["id"], one["title"], one["file"]["name"]) for one in resource["evidence"]] == [
        ("lease-co.pdf", "lease & co.pdf", "lease & co.pdf"),
        ("screen.png", "screen.png", "screen.png"),
    ]
    await form.get_by_role("button", name="whole task and evidence").click()
    shown = form.get_by_role("img", name="screen.png")
    await expect(shown).to_be_visible()
    assert await shown.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 64
    async with form.expect_download() as started:
        await form.get_by_role("link", name="lease & co.pdf").click()
    download = await started.value
    assert (download.suggested_filename, read(await download.path())) == ("lease & co.pdf", paper)
    # The same files are asked about again.
    await form.goto(f"{gateway.client.base_url}/#/new?from={resource['id']}")
    await expect(row(form, "screen.png")).to_contain_text("picture · image/png")
    again = await ask(form, gateway)
    assert again["id"] != resource["id"] and again["evidence"] == resource["evidence"]


async def test_a_session_of_a_key_uploads_and_downloads(chromium: BrowserContext) -> None:
    async with listening(key_pepper=PEPPER, lists=True) as keyed:
        page = await chromium.new_page()
        key = await make_key(keyed.journal)
        await page.goto(f"{keyed.client.base_url}/#/new")
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_label("Task", exact=True).fill("Who pays?")
        await choose(page, ("notes.txt", b"Mine."))
        await expect(row(page, "notes.txt")).to_contain_text("about")
        await deliberate(page).click()
        await page.get_by_role("button", name="whole task and evidence").click()
        async with page.expect_download() as started:
            await page.get_by_role("link", name="notes.txt").click()
        assert read(await (await started.value).path()) == b"Mine."
        await page.close()


async def test_the_same_request_for_the_command_line_names_the_files(form: Page) -> None:
    await form.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await choose(form, ("it's.txt", b"Quoted."))
    await expect(row(form, "it's.txt")).to_contain_text("about")
    await form.get_by_role("button", name="CLI").click()
    await form.wait_for_function("navigator.clipboard.readText().then((text) => text.startsWith('deliberate ask'))")
    assert (await form.evaluate("navigator.clipboard.readText()")).endswith("--file 'it'\\''s.txt'")


async def test_what_is_saved_of_a_council_names_its_files(form: Page, gateway: Gateway) -> None:
    screen = picture("PNG")
    stored = (await gateway.client.post("/files", files={"file": ("screen.png", screen)})).json()
    evidence = [{"id": "screen", "title": "A screen", "file": stored["id"]}]
    body = {"task": "What is wrong?", "evidence": evidence}
    id = (await gateway.client.post("/deliberations", json=body)).json()["id"]
    asked = decode((await gateway.journal.facts("default", id))[0].data)
    assert isinstance(asked, Accepted)
    await gateway.write(*played(asked, now=FakeClock().now))
    await form.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await form.goto(f"{gateway.client.base_url}/#/deliberations/{id}")
    await form.get_by_role("button", name="whole task and evidence").click()
    await expect(form.get_by_role("img", name="screen.png")).to_be_visible()
    saved = dict[str, bytes]()
    for kind in ("One page (HTML)", "Transcript (Markdown)"):
        await form.get_by_text("Save", exact=True).click()
        async with form.expect_download() as started:
            await form.get_by_role("button", name=kind).click()
        saved[kind] = read(await (await started.value).path())
        await form.get_by_text("Save", exact=True).click()
    described = f"- screen: screen.png, image/png, {len(screen):,} bytes, {stored['id']}"
    assert described in saved["Transcript (Markdown)"].decode()
    assert b"screen.png" in saved["One page (HTML)"] and b"<img" not in saved["One page (HTML)"]
    await form.get_by_role("button", name="Copy as curl").click()
    await form.wait_for_function("navigator.clipboard.readText().then((text) => text.startsWith('curl'))")
    copied = await form.evaluate("navigator.clipboard.readText()")
    assert json.loads(copied.partition("-d '")[2].removesuffix("'"))["evidence"] == evidence


async def test_files_are_dropped_and_pasted_and_a_pasted_text_stays_a_text(form: Page, gateway: Gateway) -> None:
    await send_event(form, "dragover", "a.txt", "x", "text/plain")
    await expect(form.locator(".drawer")).to_have_attribute("data-over", "")
    await send_event(form, "drop", "notes.txt", "Dropped.", "text/plain")
    await expect(form.locator(".drawer[data-over]")).to_have_count(0)
    await send_event(form, "paste", "notes.txt", "Pasted.", "text/plain")
    await send_event(form, "paste", "cells.png", "", "image/png", text="a cell")
    await expect(form.locator("[data-file]")).to_have_count(2)
    await expect(form.locator("[data-file]", has_text="about")).to_have_count(2)
    evidence = (await ask(form, gateway))["evidence"]
    named = [(one["id"], f"file-{one['file']['sha256']}") for one in evidence]
    assert named == [("notes.txt", id_of(b"Dropped.")), ("notes.txt-2", id_of(b"Pasted."))]


async def test_an_upload_shows_its_progress_and_the_question_waits_for_it(form: Page, gateway: Gateway) -> None:
    held = asyncio.Event()

    async def hold(route: Route) -> None:
        await held.wait()
        await route.continue_()

    await form.route("**/files", hold)
    await choose(form, ("log.txt", b"x" * 2_000_000), ("second.txt", b"y"))
    await expect(form.get_by_role("progressbar", name="Upload of log.txt")).to_be_visible()
    await expect(row(form, "second.txt")).to_contain_text("1 byte · waits")
    await expect(form.get_by_text("waits for 2 uploads")).to_be_visible()
    await expect(deliberate(form)).to_be_disabled()
    await form.get_by_label("Task", exact=True).press("Control+Enter")
    held.set()
    await expect(row(form, "second.txt")).to_contain_text("about 1 token")
    await expect(form.get_by_role("progressbar", name="Upload of")).to_have_count(0)
    await expect(deliberate(form)).to_be_enabled()
    assert "/#/new" in form.url, "nothing was asked meanwhile"


async def test_the_share_that_is_sent_is_shown(form: Page) -> None:
    session = await form.context.new_cdp_session(form)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 2_000_000}
    await session.send("Network.enable")
    await session.send("Network.emulateNetworkConditions", slow)
    await choose(form, ("log.txt", b"x" * 4_000_000))
    await expect(row(form, "log.txt")).to_contain_text("% of 4.0 MB")
    share = await form.get_by_role("progressbar", name="Upload of log.txt").get_attribute("aria-valuenow")
    assert share is not None and 0 <= int(share) <= 100
    await form.get_by_role("button", name="Remove log.txt").click()
    await expect(form.locator("[data-file]")).to_have_count(0)
    await expect(deliberate(form)).to_be_enabled()


async def test_a_refusal_stands_beside_its_file_with_the_remedy(form: Page, gateway: Gateway) -> None:
    await choose(form, ("program", b"\x7fELF\x02\x01\x01" + bytes(64)), ("good.txt", b"Good."))
    await expect(row(form, "program").get_by_role("alert")).to_contain_text("agents cannot read. Upload a text, a PDF")
    await expect(row(form, "good.txt")).to_contain_text("about")
    # One that is gone by now is refused by the price.
    assert (await gateway.client.delete(f"/files/{id_of(b'Good.')}")).status_code == 204
    await form.get_by_label("Task", exact=True).fill("Who pays now?")
    await form.get_by_role("button", name="dev: more").click()
    await expect(row(form, "good.txt").get_by_role("alert")).to_contain_text("Upload it by POST /files.")
    await form.get_by_role("button", name="Remove good.txt").click()
    await expect(form.get_by_role("button", name="Choose files")).to_be_focused()
    resource = await ask(form, gateway)
    assert resource["evidence"] == []


async def test_a_file_beyond_the_bound_is_refused_beside_its_name(chromium: BrowserContext) -> None:
    async with listening(lists=True, file_bytes_max=1_024) as small:
        page = await chromium.new_page()
        await page.goto(f"{small.client.base_url}/#/new")
        await choose(page, ("large.txt", b"x" * 3_000_000))
        await expect(row(page, "large.txt").get_by_role("alert")).to_contain_text("Choose")
        await page.close()


async def test_a_removed_file_is_deleted_unless_another_row_or_a_deliberation_has_it(
    form: Page, gateway: Gateway
) -> None:
    async def stored() -> list[str]:
        return [file["name"] for file in (await gateway.client.get("/files")).json()["files"]]

    await choose(form, ("one.txt", b"Same."), ("two.txt", b"Same."), ("kept.txt", b"Kept."))
    await expect(row(form, "kept.txt")).to_contain_text("about")
    await gateway.client.post("/deliberations", json={"task": "x", "evidence": [evidence_of(b"Kept.")]})
    await form.get_by_role("button", name="Remove one.txt").click()
    assert sorted(await stored()) == ["kept.txt", "one.txt"]
    async with form.expect_response(lambda answer: answer.request.method == "DELETE") as deleted:
        await form.get_by_role("button", name="Remove two.txt").click()
    assert (await deleted.value).status == 204
    async with form.expect_response(lambda answer: answer.request.method == "DELETE") as refused:
        await form.get_by_role("button", name="Remove kept.txt").click()
    assert (await refused.value).status == 409
    await expect(form.locator("[data-file]")).to_have_count(0)
    assert await stored() == ["kept.txt"]


def read(path: Path) -> bytes:
    return path.read_bytes()


def evidence_of(content: bytes) -> dict[str, str]:
    return {"id": "kept", "title": "Kept", "file": id_of(content)}


async def test_a_task_that_is_stored_as_a_file_says_so_and_is_asked_again_whole(form: Page, gateway: Gateway) -> None:
    task = "Say yes. " * (INLINE_CHARS_MAX // 8) + "End."
    accepted = (await gateway.client.post("/deliberations", json={"task": task})).json()
    await form.goto(f"{gateway.client.base_url}/#/deliberations/{accepted['id']}")
    await form.get_by_role("button", name="whole task").click()
    await expect(form.get_by_text("The whole task is stored as a file")).to_be_visible()
    async with form.expect_download() as started:
        await form.get_by_role("link", name="task.txt").click()
    assert read(await (await started.value).path()) == task.encode()
    await form.goto(f"{gateway.client.base_url}/#/new?from={accepted['id']}")
    await expect(form.get_by_label("Task", exact=True)).to_have_value(task)


async def test_long_names_fit_every_width_and_pass_axe(form: Page, gateway: Gateway) -> None:
    held = asyncio.Event()

    async def hold(route: Route) -> None:
        await held.wait()
        await route.continue_()

    await choose(form, (LONG_NAME, b"Long."), ("program", b"\x7fELF\x02\x01\x01" + bytes(64)))
    await expect(row(form, "program").get_by_role("alert")).to_be_visible()
    await form.route("**/files", hold)
    await choose(form, (f"{LONG_NAME}.md", b"x" * 2_000_000))
    await expect(form.get_by_text("waits for 1 upload")).to_be_visible()
    for width in WIDTHS:
        await form.set_viewport_size({"width": width, "height": 900})
        wider = await form.evaluate(WIDER, ".drawer, #ask, .drawer > footer")
        assert (wider, await faults_of_layout(form)) == ([], []), width
    assert await violations(form) == []
    held.set()
    await expect(row(form, f"{LONG_NAME}.md")).to_contain_text("about")
    await ask(form, gateway)
    await form.get_by_role("button", name="whole task and evidence").click()
    await expect(form.get_by_role("link", name=LONG_NAME, exact=True)).to_be_visible()
    for width in WIDTHS:
        await form.set_viewport_size({"width": width, "height": 900})
        assert await faults_of_layout(form) == [], width
    assert await violations(form) == []
