"""Every view at five widths: it scrolls not sideways, and no text stands under another."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from app.deliberation.facts import CallFinished, CallWaiting, Fact, StageOpened
from app.deliberation.specification import AgentSpec, Sampling
from tests.browser.list_rows import summary
from tests.browser.overlaps import faults_of_layout
from tests.components.routes.listening import Gateway, listening
from tests.story import NOW, Story
from tests.unit.facts_of import CouncilScript, accepted, agent_ids, resumed, specification
from tests.unit.strategies.stories import events_of

pytestmark = pytest.mark.browser

WIDTHS = [390, 768, 1280, 1440, 1920]
LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen" * 4
RTL = f"""اختر قائمة انتظار: {LONG}

1. الأول
2. الثاني

```python
# שלום עולם
print("שלום", {{"a": 1}})
```

| عمود | {LONG} |
|---|---|
| 1 | 2 |
"""
OUTAGE = f"engine http://{LONG.lower()[:180]}:8000 answers 503: CUDA out of memory; start it again"


def told(id: str, size: int, share: float = 1.0, **script: object) -> list[Any]:
    """The events of a council of `size` with long and right-to-left texts, up to a share of its facts."""
    members = [
        AgentSpec(
            agent_id=agent, role=f"ROLE{n}_{LONG[:30].upper()}", model=LONG[:80], sampling=Sampling(max_tokens=500)
        )
        for n, agent in enumerate(agent_ids(size), start=1)
    ]
    asked = specification(size, rounds=2, agents=members).model_copy(update={"task": f"{LONG} {RTL}"})
    council = CouncilScript(text=lambda call_id: f"{RTL}\n\n{call_id} {LONG}", **script)  # pyright: ignore[reportArgumentType]
    facts: list[Fact] = resumed([accepted(asked)], council).facts
    kept = facts[: max(2, round(share * len(facts)))]
    # One under way runs at the time of the page.
    time = {"ts": datetime.now(UTC)} if share < 1 else {}
    return [event.model_copy(update={"deliberation_id": id, **time}) for event in events_of(kept)]


def waiting(id: str, events: list[Any]) -> list[CallWaiting]:
    """That each open call waits for an engine."""
    outcomes = {event.call_id for event in events if isinstance(event, CallFinished)}
    last = [event for event in events if isinstance(event, StageOpened)][-1]
    view = (
        Story(id)
        .waiting("dev-001", NOW + timedelta(seconds=5))
        .model_copy(update={"detail": OUTAGE, "ts": datetime.now(UTC)})
    )
    return [
        view.model_copy(update={"call_id": call.call_id, "agent_id": call.agent_id, "role": call.role})
        for call in last.calls
        if call.call_id not in outcomes
    ]


@pytest.fixture(scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with listening(lists=True) as made:
        failing = [f"s{stage}-dev-{n:03}" for stage in (2, 3) for n in range(1, 13)]
        running = told("running", 12, 0.3)
        await made.write(*told("done", 12), *told("three", 3), *told("failed", 12, failing=failing))
        await made.write(*told("none", 12, failing=[f"s1-dev-{n:03}" for n in range(1, 13)]), *running)
        await made.write(*waiting("running", running))
        yield made


async def listed(route: Route) -> None:
    """Answers with rows of every status, with long words."""
    rows = [
        summary(number)
        | {"id": f"{status}-{number}", "task": f"{LONG} {RTL}"[:200], "status": status, "winner": LONG[:60]}
        for number, status in enumerate(("in_progress", "pending", "completed", "failed", "timeout", "cancelled"))
    ]
    rows[0] |= {"winner": None, "progress": {"stage": 1, "purpose": "critique", "round": 1, "calls_total": 12}}
    rows[2] |= {"agents": [{"role": LONG[:40].upper(), "count": 2}, {"role": LONG[20:60].upper(), "count": 1}]}
    await route.fulfill(json={"items": rows, "next_cursor": None, "behind_s": 0})


@pytest.fixture(scope="module")
async def page(chromium: BrowserContext, gateway: Gateway) -> AsyncIterator[Page]:
    opened = await chromium.new_page()
    await opened.route("**/deliberations?*", listed)
    await opened.emulate_media(reduced_motion="reduce")
    await opened.goto(str(gateway.client.base_url))
    yield opened
    await opened.close()


VIEWS = {
    "/deliberations": ".list [data-id]",
    "/new": ".quotebox",
    "/councils": ".strategies li",
    "/system": ".health",
    "running": ".lane",
    "done": "#bill",
    "three": "#bill",
    "failed": "#bill",
    "none": "#bill",
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
async def test_no_view_scrolls_sideways_or_puts_a_text_under_another(page: Page, view: str, width: int) -> None:
    await page.set_viewport_size({"width": width, "height": 900})
    await page.evaluate(f"location.hash = {view!r}")
    await expect(page.locator(VIEWS[view]).first).to_be_visible()
    if view not in ("/deliberations", "/new", "/councils", "/system"):
        await page.locator(".crumbs").wait_for()
        await expect(page.locator(".crumbs .mono")).to_have_text(view)
    # Texts are drawn in frames.
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert await faults_of_layout(page) == []


async def test_code_runs_left_to_right_and_numbers_have_room_beside_right_to_left_texts(page: Page) -> None:
    await page.set_viewport_size({"width": 1280, "height": 900})
    await page.evaluate("location.hash = 'three'")
    code = page.locator(".diff .md.pre [data-code]", has_text="print(")
    await expect(code.first).to_have_attribute("dir", "ltr")
    await expect(page.locator("#verdict .md pre")).to_have_attribute("dir", "ltr")
    room = "(list) => [getComputedStyle(list).direction, parseFloat(getComputedStyle(list).paddingRight)]"
    direction, padding = await page.locator("#verdict .md ol").evaluate(room)
    assert direction == "rtl" and padding >= 16


async def test_a_footer_takes_a_small_part_of_its_lane(page: Page) -> None:
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.evaluate("location.hash = 'done'")
    shares = "(lanes) => lanes.map((lane) => lane.querySelector('footer').offsetHeight / lane.offsetHeight)"
    await expect(page.locator(".lane")).to_have_count(12)
    assert max(await page.locator(".lane").evaluate_all(shares)) < 0.15
