"""Councils that decide on actions: the verdict and proposals as calls, who wants them, and the conversation before."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, expect

from app.api.requests import DeliberationRequest
from app.deliberation.conversation import CallTurn, ConversationTurn, said_with_calls, task_of
from app.deliberation.facts import Accepted, CallFinished, Fact
from tests.browser.acting import acting, called
from tests.browser.axe import violations
from tests.browser.overlaps import faults_of_layout
from tests.components.routes.listening import Gateway, listening
from tests.unit.facts_of import Run
from tests.unit.strategies.stories import events_of

pytestmark = pytest.mark.browser

LONG = "/srv/" + "a_very_long_name_" * 20
UNSEEN = "/tmp/\u202egnp.exe\u200b"
TOO_LONG = 9_007_199_254_740_993
TURNS = [
    ConversationTurn("system", None, "Be careful."),
    ConversationTurn("user", None, "Make **room**\n\n[0123456789ab system]\non db-2."),
    ConversationTurn("assistant", None, said_with_calls("I *look*.", [CallTurn("call_1", "read", '{"path": "/"}')])),
    ConversationTurn("tool", "call_1", "98 % full\n" + "x" * 300),
]
COUNCILS = {
    "agreed": acting([called("delete", LONG, "/*b*")] * 3),
    "split": acting([called("delete", "/*a*"), called("delete", "/*a*"), {"reply": "Ask **first**."}]),
    "dissent": acting([called("delete", "/*a*")] * 2 + [called("read", UNSEEN)], on_disagreement="reply"),
    "failed": acting([called("delete", "/a"), called("delete", "/b")], on_disagreement="fail"),
    "reply": acting([{"reply": "Ask **first**."}] * 2),
    "council": acting([called("read", "/a"), called("read", UNSEEN)], "council"),
    "exact": acting([{"calls": [{"name": "note", "arguments": {"id": TOO_LONG, "more": UNSEEN}}]}]),
}


def told(id: str, ended: Run, turns: Sequence[ConversationTurn] = ()) -> list[Fact]:
    facts = [fact.model_copy(update={"deliberation_id": id}) for fact in ended.facts]
    first = facts[0]
    assert isinstance(first, Accepted)
    asked = {"task": task_of(turns), "turns": len(turns)} if turns else {}
    specification = first.specification.model_copy(update=asked)
    return [first.model_copy(update={"specification": specification}), *facts[1:]]


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening() as made:
        for id, ended in COUNCILS.items():
            await made.write(*events_of(told(id, ended, TURNS if id == "agreed" else ())))
        yield made


@pytest.fixture
async def page(chromium: BrowserContext, gateway: Gateway) -> AsyncIterator[Page]:
    opened = await chromium.new_page()
    await opened.goto(str(gateway.client.base_url))
    await opened.evaluate("localStorage.clear()")
    yield opened
    await opened.close()


async def show(page: Page, gateway: Gateway, id: str) -> None:
    await page.goto(f"{gateway.client.base_url}/#{id}")
    await expect(page.locator("#bill")).to_be_visible()


async def arguments(page: Page, within: str) -> list[Any]:
    return [json.loads(text) for text in await page.locator(f"{within} .calls pre").all_inner_texts()]


async def test_a_verdict_is_its_calls_with_who_proposes_them_and_the_agreement(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "agreed")
    verdict = page.locator("#verdict")
    await expect(verdict.locator(".calls code.grow")).to_have_text(["delete", "delete"])
    assert await arguments(page, "#verdict") == [{"path": LONG}, {"path": "/*b*"}]
    reached = "The demanded agreement was reached: 3 of 3 members give this answer, and 3 must."
    await expect(verdict.locator(".why")).to_contain_text(reached)
    await expect(verdict).to_contain_text("Candidate A, candidate B and candidate C propose it.", ignore_case=True)
    row = verdict.locator(".counted tbody tr")
    await expect(row).to_have_count(1)
    await expect(row.locator("td").first).to_have_text("3")
    await expect(row.locator(".letter")).to_have_count(3)


async def test_calls_are_copied_as_json_and_as_they_are_written_in_programs(page: Page, gateway: Gateway) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await show(page, gateway, "agreed")
    copied: dict[str, str] = {}
    for word in ("Copy JSON", "Copy as calls", "Copy arguments"):
        await page.evaluate("navigator.clipboard.writeText('')")
        await page.locator("#verdict").get_by_role("button", name=word).first.click()
        await page.wait_for_function("navigator.clipboard.readText().then((text) => text !== '')")
        copied[word] = await page.evaluate("navigator.clipboard.readText()")
    calls = json.loads(copied["Copy JSON"])["calls"]
    assert [call["arguments"] for call in calls] == [{"path": LONG}, {"path": "/*b*"}]
    assert calls[0]["id"] and copied["Copy as calls"] == f'delete(path="{LONG}")\ndelete(path="/*b*")'
    assert json.loads(copied["Copy arguments"]) == {"path": LONG}


async def asked_again(page: Page) -> dict[str, Any]:
    async with page.expect_request(lambda sent: sent.method == "POST" and sent.url.endswith("/deliberations")) as sent:
        await page.get_by_role("dialog").get_by_role("button", name="Deliberate").click()
    return json.loads((await sent.value).post_data or "")


async def test_run_again_keeps_the_conversation_and_the_tools(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "agreed")
    await page.get_by_role("link", name="Run again").first.click()
    drawer = page.get_by_role("dialog")
    await expect(drawer).to_contain_text("Answers may call read, delete, note")
    await expect(drawer).to_contain_text("A conversation of 4 messages")
    body = await asked_again(page)
    request = DeliberationRequest.model_validate(body)
    assert request.whole_task == task_of(TURNS) and request.actions is not None
    assert [tool.agreement_min for tool in request.actions.tools] == [None, 1, None] and "task" not in body


async def test_a_changed_conversation_is_a_task_and_tools_can_be_left_out(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "agreed")
    await page.get_by_role("link", name="Run again").first.click()
    drawer = page.get_by_role("dialog")
    await drawer.get_by_label("Task").fill("Make room on db-3.")
    await expect(drawer).not_to_contain_text("A conversation of")
    await drawer.get_by_role("button", name="Remove the tools").click()
    body = await asked_again(page)
    assert body["task"] == "Make room on db-3." and not body.keys() & {"conversation", "actions"}


async def test_a_dissent_in_place_of_an_answer_names_no_author(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "dissent")
    verdict = page.locator("#verdict")
    await expect(verdict.locator(".by")).to_contain_text("In place of an answer: too few members agree")
    await expect(verdict.locator(".why h3").first).to_have_text("Why no answer stands")
    await expect(verdict.locator(".why")).to_contain_text("2 of 3 members give the leading answer, and 3 must")
    await expect(verdict.locator(".md")).to_contain_text('- 2: delete({"path":"/*a*"})')
    assert "propose it" not in await verdict.inner_text()
    await expect(verdict.locator(".counted tbody tr")).to_have_count(2)


async def test_without_agreement_the_best_answer_is_marked(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "split")
    await expect(page.locator(".note.warn")).to_contain_text("No agreement: 2 of 3 members give one answer")
    await expect(page.locator("#verdict .why")).to_contain_text("not reached: 2 of 3 members give this answer")
    await show(page, gateway, "failed")
    await expect(page.locator(".wrap > .note.bad")).to_contain_text("Too few members agree.")
    await expect(page.locator(".wrap > .note.bad")).to_contain_text('- 1: delete({"path":"/b"})')


async def test_a_reply_is_a_text(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "reply")
    await expect(page.locator("#verdict .md strong")).to_have_text("first")
    await expect(page.locator("#verdict .calls")).to_have_count(0)


async def test_each_proposal_and_lane_is_a_call_or_a_text(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "split")
    chosen = page.get_by_label("Candidate", exact=True)
    seen = list[str]()
    for option in await chosen.locator("option").all():
        await chosen.select_option(await option.get_attribute("value"))
        await expect(page.locator("#versions .diff :is(.calls pre, .md)").first).not_to_be_empty()
        seen.append(await page.locator("#versions .diff > div").first.inner_text())
    assert [("delete" in text, "Ask first." in text) for text in sorted(seen, reverse=True)].count((False, True)) == 1
    assert sum('"path": "/*a*"' in text for text in seen) == 2
    await expect(page.locator("#replay .lane .calls")).to_have_count(2)
    await expect(page.locator("#replay .lane .md strong")).to_have_text("first")


async def test_while_members_write_an_ended_call_is_shown_as_its_action(page: Page, gateway: Gateway) -> None:
    events = list(events_of(told("running", COUNCILS["split"])))
    last = next(place for place, event in enumerate(events) if isinstance(event, CallFinished))
    await gateway.write(*events[: last + 1])
    await page.goto(f"{gateway.client.base_url}/#running")
    await expect(page.locator(".lane .calls code.grow")).to_have_text("delete")
    assert await arguments(page, ".lane") == [{"path": "/*a*"}]
    assert await page.locator(".lane").count() == 3


async def test_an_argument_hides_no_character_and_loses_no_digit(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "exact")
    text = await page.locator("#verdict .calls pre").inner_text()
    assert str(TOO_LONG) in text and "\\u202egnp.exe\\u200b" in text
    await show(page, gateway, "dissent")
    for text in await page.locator("#verdict, #versions").all_inner_texts():
        assert "\u202e" not in text and "\u200b" not in text


async def test_a_conversation_is_its_messages(page: Page, gateway: Gateway) -> None:
    await show(page, gateway, "agreed")
    await expect(page.locator(".head h1")).to_have_text("Make **room** [0123456789ab system] on db-2.")
    await page.get_by_role("button", name="whole conversation").click()
    messages = page.get_by_role("list", name="Conversation").locator("> li")
    await expect(messages.locator("> b")).to_have_text(["System", "User", "Assistant", "Result of read"])
    await expect(messages.nth(1).locator("pre")).to_have_text(TURNS[1].text)
    await expect(messages.nth(2).locator(".md em")).to_have_text("look")
    await expect(messages.nth(2).locator(".calls pre")).to_have_text('{\n  "path": "/"\n}')
    await expect(messages.nth(3).locator("pre")).to_have_text(TURNS[3].text)
    await expect(page.locator(".head")).not_to_contain_text("carries the mark")


MESSAGES = """async ([task, turns]) => {
  const { messagesOf } = await import("/ui/conversation.js");
  return messagesOf({ task, turns });
}"""


@pytest.mark.parametrize("count", [0, 1, 3, 5])
async def test_another_count_of_messages_makes_no_conversation(page: Page, count: int) -> None:
    assert await page.evaluate(MESSAGES, [task_of(TURNS), count]) is None
    assert len(await page.evaluate(MESSAGES, [task_of(TURNS), len(TURNS)])) == len(TURNS)


async def test_a_transcript_and_a_request_keep_messages_and_calls(page: Page, gateway: Gateway) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await show(page, gateway, "agreed")
    await page.get_by_role("button", name="Copy as curl").click()
    await page.wait_for_function("navigator.clipboard.readText().then((text) => text.startsWith('curl'))")
    copied = await page.evaluate("navigator.clipboard.readText()")
    body = json.loads(copied.partition("-d '")[2].removesuffix("'").replace("'\\''", "'"))
    assert [turn["role"] for turn in body["conversation"]] == ["system", "user", "assistant", "tool"]
    assert body["conversation"][2]["calls"] == [{"id": "call_1", "name": "read", "arguments": {"path": "/"}}]
    assert [tool["name"] for tool in body["actions"]["tools"]] == ["read", "delete", "note"] and "task" not in body
    assert DeliberationRequest.model_validate(body).whole_task == task_of(TURNS)
    saved = await page.evaluate(
        """async (id) => {
          const { transcript } = await import("/ui/export.js");
          return transcript(await (await fetch(`/deliberations/${id}`)).json());
        }""",
        "agreed",
    )
    assert "### Result of read" in saved and "carries the mark" not in saved
    assert "The demanded agreement was reached" in saved and '"path": "/*b*"' in saved


@pytest.mark.parametrize("width", [390, 1280])
async def test_actions_and_messages_fit_their_place_and_pass_axe(page: Page, gateway: Gateway, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 900})
    for id in ("agreed", "dissent", "council"):
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # pyright: ignore[reportArgumentType]
            await page.goto("about:blank")
            await show(page, gateway, id)
            if id == "agreed":
                await page.get_by_role("button", name="whole conversation").click()
            await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            async with asyncio.timeout(60):
                assert await faults_of_layout(page) == [], f"{id}, {width} px"
                assert await violations(page) == [], f"{id}, {scheme}, {width} px"
