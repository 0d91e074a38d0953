"""Ten questions of a newcomer about a finished council: the page's text answers each within two clicks."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.councils import MIXED, QUEUE
from tests.e2e.conftest import FAST, Stack

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

CLICKS_MAX = 2
# The architect's critiques fail. With this seed a judge dissents, and both rounds change a text.
FAULT = r"bad-request:match=(?s)architect.*Your work: critique"
COUNCIL: dict[str, Any] = {"task": QUEUE, "agents": MIXED, "rounds": 2, "seed": 177, "parameters": {"stop": "none"}}


@dataclass
class Reader:
    """A reader of a finished council's view, whose clicks count."""

    page: Page
    council: dict[str, Any]
    clicks: int = 0

    @property
    def winner(self) -> dict[str, Any]:
        return self.council["proposals"][0]

    async def click(self, target: Locator) -> None:
        self.clicks += 1
        await target.click()

    async def choose(self, label: str, option: str) -> None:
        """Opens a list of choices, and clicks one."""
        self.clicks += 2
        await self.page.get_by_label(label, exact=True).select_option(label=option)

    def region(self, name: str) -> Locator:
        return self.page.get_by_role("region", name=name, exact=True)


@pytest.fixture
async def reader(page: Page, stack: Stack) -> AsyncIterator[Reader]:
    await stack.script(**FAST | {"faults": [FAULT]})
    deliberation_id = await stack.submit(**COUNCIL)
    council = await stack.until(deliberation_id, status="completed")
    await page.goto(f"{stack.url}/#{deliberation_id}")
    await page.locator("#verdict").wait_for()
    reading = Reader(page, council)
    yield reading
    assert reading.clicks <= CLICKS_MAX


async def test_who_won_and_why(reader: Reader) -> None:
    why = reader.page.get_by_role("complementary", name="Why it won")
    await expect(why).to_contain_text(re.compile(r"\d of the 3 judges who could rank it put it first"))
    await expect(why).to_contain_text(re.compile(r"score\s*0\.\d\d|0\.\d\d\s*score"))
    await reader.click(reader.page.get_by_text("Reveal names"))
    await expect(reader.page.locator("#verdict .by")).to_contain_text(f"by {reader.winner['agent_id']}")
    await reader.page.get_by_text("Reveal names").click()


async def test_who_criticised_the_winner_and_with_what_words(reader: Reader) -> None:
    await reader.click(reader.page.get_by_text("Reveal names"))
    issues = reader.page.locator(".issues")
    assert len(reader.winner["critiques"]) == 2
    for critique in reader.winner["critiques"]:
        await expect(issues).to_contain_text(f"{critique['agent_id']} in round {critique['round']}")
        for issue in critique["issues"]:
            await expect(issues).to_contain_text(issue["claim"])
    await reader.page.get_by_text("Reveal names").click()


async def test_what_critics_found_in_a_loser(reader: Reader) -> None:
    letter = await reader.page.locator(".matrix thead .letter").last.inner_text()
    await reader.choose("Candidate", f"Candidate {letter}")
    for critique in reader.council["proposals"][-1]["critiques"]:
        words = rf"candidate [A-D] in round {critique['round']}: {critique['verdict']}"
        await expect(reader.page.locator(".issues")).to_contain_text(re.compile(words))


async def test_what_round_two_changed(reader: Reader) -> None:
    changed = reader.page.locator("#versions .changed li", has_text="Round 2")
    await expect(changed).to_contain_text("changed the text of candidate")
    letter = (await changed.inner_text()).removesuffix(".")[-1]
    await reader.choose("Candidate", f"Candidate {letter}")
    await expect(reader.page.locator(".diff h3").nth(1)).to_contain_text("round 2")
    await expect(reader.page.locator(".diff ins").first).to_be_visible()


async def test_who_changed_their_mind(reader: Reader) -> None:
    minds = reader.page.locator(".ranks .changed li")
    moved = re.compile("Judge I+V? put candidate .* first among the drafts, and candidate . in the verdict")
    await expect(minds.first).to_contain_text(moved)
    await expect(minds.last).to_contain_text("kept its first choice")


async def test_what_it_cost_and_why(reader: Reader) -> None:
    bill, usage = reader.region("Bill, table"), reader.council["usage"]
    total = f"{usage['prompt_tokens'] + usage['completion_tokens']:,}"
    await expect(bill.locator("tfoot")).to_contain_text(total)
    for purpose in ("propose", "critique", "revise", "score"):
        await expect(bill.locator("thead")).to_contain_text(purpose)
    for each in usage["by_agent"]:
        tokens = f"{each['prompt_tokens'] + each['completion_tokens']:,}"
        await expect(bill.locator("tbody tr", has_text=tokens).first).to_contain_text("Candidate")
    await expect(reader.page.locator("#bill header")).to_contain_text("the engines have no price")


async def test_which_calls_failed_and_which_were_cached(reader: Reader) -> None:
    await reader.click(reader.page.locator("#replay summary", has_text="calls:"))
    await expect(reader.page.locator("#replay summary")).to_contain_text("2 failed, 0 asked again")
    await reader.click(reader.page.locator("#replay details").get_by_role("button", name="As a table"))
    calls = reader.region("Calls, table").locator("tbody tr")
    failed = calls.filter(has_text="engine_rejected")
    await expect(failed).to_have_text([re.compile("critique 1Candidate"), re.compile("critique 2Candidate")])
    await expect(calls.filter(has_text="answered").first).to_contain_text(re.compile(r"\d %"))


async def test_how_long_each_stage_took(reader: Reader) -> None:
    whole, lacking = r"\d\.\d s, all answered", r"\d\.\d s, 1 failed"
    stages = {"propose": whole, "critique, round 1": lacking, "revise, round 1": whole}
    stages |= {"critique, round 2": lacking, "revise, round 2": whole, "score": whole}
    took = [re.compile(rf"{stage}.*{words}") for stage, words in stages.items()]
    await expect(reader.page.locator("#replay .rail li")).to_have_text(took)


async def test_whether_the_engine_is_healthy_and_since_when(reader: Reader) -> None:
    await reader.click(reader.page.get_by_role("navigation", name="Views").get_by_role("link", name="System"))
    await expect(reader.region("Engines, table").locator("tbody tr")).to_contain_text(re.compile(r"closed\s*nothing"))
    health = reader.page.locator(".health")
    await expect(health).to_contain_text("Every part answers")
    await expect(health).to_contain_text(re.compile(r"The newest part has run for \d+ (s|min)"))


async def test_what_the_second_agent_said(reader: Reader) -> None:
    second = reader.council["proposals"][1]
    letter = await reader.page.locator(".matrix thead .letter").nth(1).inner_text()
    await reader.choose("Candidate", f"Candidate {letter}")
    await expect(reader.page.locator(".diff .md").last).to_contain_text(second["content"][:40])


async def test_how_two_answers_compare(reader: Reader) -> None:
    letter = await reader.page.locator(".matrix thead .letter").nth(1).inner_text()
    await reader.choose("Compare with", f"Candidate {letter}")
    sides = reader.page.locator(".diff > div")
    for side, proposal in enumerate(reader.council["proposals"][:2]):
        await expect(sides.nth(side)).to_contain_text(proposal["content"][:40])
    await expect(sides.nth(2)).to_contain_text(re.compile(r"Rank\s*1st\s*2nd"))


async def test_why_it_was_slow(reader: Reader) -> None:
    time = reader.page.locator("#replay .time")
    await expect(time).to_contain_text(re.compile(r"The longest stage was \w+.*: \d.* of \d"))
    await expect(time).to_contain_text(re.compile(r"Its last outcome was that of candidate [A-D]"))


async def test_what_failed_and_why(reader: Reader) -> None:
    note = reader.page.locator(".note", has_text="Degraded.")
    (cause,) = {stall["code"] for stall in reader.council["participation"]["stalled"]}
    assert cause == "engine_rejected"
    await expect(note).to_contain_text(re.compile(r"2 calls failed \(1 in critique of round 1 and 1 in critique"))


async def test_how_it_is_replayed(reader: Reader) -> None:
    await reader.click(reader.page.get_by_role("button", name="Play"))
    await expect(reader.page.get_by_role("button", name="Pause")).to_be_visible()


async def test_how_it_is_shared(reader: Reader) -> None:
    await reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await reader.click(reader.page.get_by_role("button", name="Copy link"))
    await expect(reader.page.get_by_role("status")).to_have_text("Copied.")
    copied = await reader.page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{reader.page.url.partition('#')[0]}#/deliberations/{reader.council['id']}"


async def test_what_the_dissent_said(reader: Reader) -> None:
    (dissent,) = reader.council["verdict"]["dissent"]
    report = reader.page.locator(".why .minority")
    await expect(report.locator("blockquote")).not_to_be_empty()
    await reader.click(reader.page.get_by_text("Reveal names"))
    await expect(report).to_contain_text(f"{dissent['agent_id']} prefers {dissent['preferred']}")
    await reader.page.get_by_text("Reveal names").click()


async def test_how_it_runs_again_with_another_seed(reader: Reader, stack: Stack) -> None:
    await reader.click(reader.page.get_by_role("link", name="Run again").first)
    await expect(reader.page.get_by_label("Seed")).to_have_value("")
    await expect(reader.page.get_by_label("Task", exact=True)).to_have_value(QUEUE)
    await reader.click(reader.page.get_by_role("button", name="Deliberate"))
    await reader.page.wait_for_url("**/#/deliberations/*")
    again = await stack.read(reader.page.url.rpartition("/")[2])
    assert again["seed"] != reader.council["seed"] and again["id"] != reader.council["id"]
