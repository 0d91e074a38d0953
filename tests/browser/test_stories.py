from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, Page, expect

from app.deliberation.calls import FactProblem
from app.deliberation.facts import ToolStarted, ToolUsed
from app.deliberation.specification import FilesWorkspace, GitWorkspace, WorkspaceFile
from tests.components.routes.listening import Gateway, listening
from tests.story import Story
from tests.unit.strategies.stories import STORIES, events_of, read, story

pytestmark = pytest.mark.browser

SHOWN = [name for name in STORIES if name.startswith(("council", "test-relay"))]


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening(lists=True) as made:
        yield made


@pytest.fixture(scope="module")
async def page(chromium: BrowserContext, gateway: Gateway) -> AsyncIterator[Page]:
    opened = await chromium.new_page()
    await opened.goto(str(gateway.client.base_url))
    yield opened
    await opened.close()


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("live", [True, False], ids=["live", "afterwards"])
async def test_the_page_shows_the_reading_of_the_core(page: Page, gateway: Gateway, name: str, live: bool) -> None:
    facts = story(name)
    id = f"{'live' if live else 'late'}-{SHOWN.index(name)}"
    events = [event.model_copy(update={"deliberation_id": id}) for event in events_of(facts)]
    await gateway.write(*events[: 1 if live else None])
    await page.evaluate(f"location.hash = {id!r}")
    await expect(page.locator(".lane")).to_have_count(3)
    await gateway.write(*events[1 if live else len(events) :])
    await expect(page.locator("[data-done]")).to_have_attribute("data-done", id, timeout=20_000)
    await page.get_by_role("switch", name="Reveal names").check(force=True)
    works = read(facts)
    answered = {agent_id for agent_id, work in works.items() if work["content"]}
    candidates = page.get_by_label("Candidate", exact=True)
    if answered:
        assert set(await candidates.locator("option").all_inner_texts()) == answered
    for agent_id in sorted(answered):
        await candidates.select_option(agent_id)
        text = page.locator(".diff .md").last
        await expect(text).to_contain_text(works[agent_id]["content"], use_inner_text=False)


@pytest.mark.parametrize(
    ("workspace", "shown"),
    [
        (
            GitWorkspace(git="https://host/acme/merging.git", ref="main", commit="0123456789" * 4),
            "merging.git at 01234567",
        ),
        (FilesWorkspace(files=(WorkspaceFile(path="a.py", text="1"), WorkspaceFile(path="b.py", text="2"))), "2 files"),
    ],
    ids=["git", "files"],
)
async def test_the_head_shows_what_agents_may_read(
    page: Page, gateway: Gateway, workspace: GitWorkspace | FilesWorkspace, shown: str
) -> None:
    told = Story(f"reads-{shown[0]}")
    await gateway.write(told.accepted(workspace=workspace), told.opened())
    await page.evaluate(f"location.hash = {told.id!r}")
    await expect(page.locator(".head .meta")).to_contain_text(shown)


async def test_a_lane_shows_the_tools_that_its_agent_used_and_what_they_returned(page: Page, gateway: Gateway) -> None:
    told = Story("uses")
    agent = told.agents[0]
    await gateway.write(told.accepted(), told.opened(), told.started(agent), told.tool(ToolStarted, agent))
    await page.evaluate("location.hash = 'uses'")
    lane = page.locator(f"[data-lane={agent}]")
    await expect(lane).to_contain_text("Uses read_file")
    away = FactProblem(code="server_away", detail="workspace does not answer", retryable=False)
    result = told.tool(ToolUsed, agent, text="def f(): <b>1</b>", bytes=17, duration_ms=1_200)
    await gateway.write(result, told.tool(ToolUsed, agent, 2, failed=True, problem=away), told.started(agent, 2))
    await lane.get_by_text("2 tool uses").click()
    await expect(lane).to_contain_text("read_file 17 bytes in 1.2 s")
    await expect(lane.locator("pre").first).to_have_text('{"path": "a.py"}\n\ndef f(): <b>1</b>')
    await expect(lane).to_contain_text("workspace does not answer")
    assert "attempt" not in await lane.inner_text(), "a request after a tool is no attempt again"
    await expect(page.get_by_label("Events, newest first")).to_contain_text("used read_file: 17 bytes")
