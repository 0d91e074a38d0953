"""Every sentence of the page about a deliberation says what its facts say, for every way to end."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page

from app.api.resource import resource
from app.deliberation.calls import FactProblem
from app.deliberation.contributions import calls
from app.deliberation.facts import (
    CallFinished,
    Cancelled,
    CancelRequested,
    Event,
    Fact,
    Failed,
    StageClosed,
    StageOpened,
    ToolUsed,
    encode,
)
from app.deliberation.fold import State, fold
from app.deliberation.specification import Budget
from tests.browser.acting import acting, called
from tests.components.routes.listening import listening
from tests.fakes import Reply
from tests.unit.facts_of import ID, CouncilScript, accepted, finished, run, specification, taken_over, use
from tests.unit.strategies.stories import STORIES, events_of, story

pytestmark = pytest.mark.browser

SAID = """async (tellings) => {
  const { Council } = await import("/ui/council.js");
  const { compared, reading } = await import("/ui/reading.js");
  const say = await import("/ui/sentences.js");
  return tellings.map(({ resource, events, shown }) => {
    const council = new Council(events);
    const read = reading(resource, council, shown);
    const { verdict } = resource;
    const stages = council.stages.map((stage) => say.stageInWords(council, stage, council.startedAt));
    return {
      stages, facts: council.facts, calls: say.callsInWords(council),
      rounds: say.roundsInWords(resource, council, read.name),
      answered: say.whoAnswered(resource, read.name), ending: say.ending(resource), title: say.stateInWords(resource),
      failed: say.whatFailed(resource, council, read.name), without_facts: say.whatFailed(resource, null, read.name),
      shortcomings: say.shortcomings(resource, council, read.name), expired: say.whatExpired(council),
      slow: say.whySlow(council, read.name), compared: verdict !== null && compared(verdict),
      why: verdict?.winner ? say.whyFirst(resource, read) : [],
      figures: verdict?.winner ? say.verdictFigures(resource, read) : [],
    };
  });
}"""
CUT = FactProblem(code="call_cancelled", detail="the deliberation was cancelled", retryable=False)
VIEWS = ("call.started", "call.delta", "call.waiting")


@pytest.fixture(scope="module")
async def page(chromium: BrowserContext) -> AsyncIterator[Page]:
    async with listening() as gateway:
        opened = await chromium.new_page()
        await opened.goto(str(gateway.client.base_url))
        yield opened
        await opened.close()


def state_of(facts: Sequence[Fact]) -> State:
    state = fold(enumerate(facts, start=1))
    assert state is not None
    return state


def telling(facts: Sequence[Fact], events: Sequence[Event], *, shown: bool = True) -> dict[str, Any]:
    read = resource(state_of(facts), epoch="e", retention_s=60).model_dump(mode="json")
    return {"resource": read, "events": [json.loads(encode(event)) for event in events], "shown": shown}


async def said(page: Page, facts: Sequence[Fact]) -> dict[str, Any]:
    (sentences,) = await page.evaluate(SAID, [telling(facts, facts)])
    return sentences


def words(sentences: dict[str, Any]) -> str:
    return json.dumps(sentences, ensure_ascii=False)


@pytest.mark.parametrize("ending", sorted({name.partition(": ")[2] for name in STORIES}))
async def test_every_sentence_agrees_with_the_facts_of_every_strategy(page: Page, ending: str) -> None:
    told = [story(name) for name in STORIES if name.endswith(f": {ending}")]
    for facts, sentences in zip(
        told, await page.evaluate(SAID, [telling(facts, list(events_of(facts))) for facts in told]), strict=True
    ):
        state = state_of(facts)
        made = list(calls(state))
        for stage, shown in zip(state.stages, sentences["stages"], strict=True):
            outcomes = [call for call in made if call.opened.stage == stage.opened.stage]
            answered = [call for call in outcomes if call.finished and call.finished.answered and not call.left_out]
            assert shown["count"] == f"{len(answered)} of {len(outcomes)}"
            assert ("all answered" in shown["words"]) == (len(answered) == len(outcomes))
            assert ("nobody answered" in shown["words"]) == (not answered)
            assert "so far" not in shown["words"]
        failed = [call for call in made if call.finished and call.finished.problem]
        assert sum(int(sentence.split()[0]) for sentence in sentences["failed"]) == len(failed)
        assert sentences["calls"].startswith(f"{len(made)} call") and f" {len(failed)} failed" in sentences["calls"]
        assert sentences["facts"] == len(facts)
        read = resource(state, epoch="e", retention_s=60)
        counted = sum(proposal.status == "answered" for proposal in read.proposals)
        head = {0: "No member", len(read.proposals): "All" if counted > 1 else "Its one member"}.get(
            counted, f"{counted} of"
        )
        assert sentences["answered"].startswith(head)
        assert (sentences["ending"] is None) == (read.status == "completed")
        assert bool(sentences["shortcomings"]) == (read.degraded is not None)
        assert len(set(sentences["shortcomings"])) == len(sentences["shortcomings"]) <= 8
        scored = read.verdict is not None and any(place.score is not None for place in read.verdict.ranking)
        assert sentences["compared"] == bool(scored and read.verdict and len(read.verdict.ranking) > 1)


@pytest.mark.parametrize("ending", ["completed", "degraded", "cancelled"])
async def test_views_that_expire_change_no_figure(page: Page, ending: str) -> None:
    told = [story(name) for name in STORIES if name.endswith(f": {ending}")]
    whole = await page.evaluate(SAID, [telling(facts, list(events_of(facts))) for facts in told])
    later = await page.evaluate(SAID, [telling(facts, facts) for facts in told])
    for facts, before, after in zip(told, whole, later, strict=True):
        assert not any(event.type in VIEWS for event in facts)
        outcomes = [event for event in facts if isinstance(event, CallFinished)]
        assert before["expired"] == "" and ("have expired" in after["expired"]) == bool(outcomes)
        assert {**before, "expired": None} == {**after, "expired": None}


async def test_names_stay_hidden_in_every_sentence_until_they_are_revealed(page: Page) -> None:
    told = [story(name) for name in STORIES if not name.startswith("test-relay")]
    hidden = await page.evaluate(SAID, [telling(facts, facts, shown=False) for facts in told])
    assert not re.search(r"dev-\d|model-\d", json.dumps(hidden))
    revealed = await page.evaluate(SAID, [telling(facts, facts) for facts in told])
    assert re.search(r"dev-\d", json.dumps(revealed))


async def test_nothing_answered(page: Page) -> None:
    sentences = await said(
        page, run(specification(3), CouncilScript(failing=[f"s1-dev-00{n}" for n in (1, 2, 3)])).facts
    )
    assert sentences["stages"][0] == {
        "count": "0 of 3", "icon": "cross", "words": "0.0 s, nobody answered, 3 failed",
    }  # fmt: skip
    assert sentences["answered"] == "No member has an answer that counts: dev-001, dev-002 and dev-003 failed."
    assert sentences["failed"] == ["3 calls failed (3 in propose; dev-001, dev-002 and dev-003): broken off."]
    assert sentences["ending"]["head"] == "No agent answered."
    assert sentences["title"] == "Failed"


async def test_some_answered_and_one_cause_is_told_once(page: Page) -> None:
    failing = ["s1-dev-003", *(f"s{stage}-dev-{n:03}" for stage in (2, 3) for n in range(1, 7))]
    facts = run(specification(6), CouncilScript(failing=failing)).facts
    sentences = await said(page, facts)
    assert sentences["answered"] == "5 of 6 members answered: dev-003 failed."
    (failed,) = sentences["failed"]
    assert re.match(r"\d+ calls failed \(1 in propose, 5 in critique of round 1", failed)
    assert len(sentences["shortcomings"]) == 5 and len(sentences["without_facts"]) == 1
    assert sentences["rounds"] == [[1, False, "Round 1 changed no text: no critique came (5 failed)."]]


async def test_judges_that_tie_put_nobody_first_alone(page: Page) -> None:
    sentences = await said(page, run(specification(3), CouncilScript(issues=lambda _: (), score=lambda _: 5)).facts)
    assert (
        sentences["why"][0] == "None of the 2 judges who could rank it put it first alone; 2 put it level with another."
    )
    assert "It shares the first place; the rule for ties chose it." in sentences["why"]
    assert "leads on" not in words(sentences["why"]) and "before" not in words(sentences["why"])


async def test_one_judge(page: Page) -> None:
    failing = ["s3-dev-001", "s3-dev-002"]
    sentences = await said(page, run(specification(3), CouncilScript(issues=lambda _: (), failing=failing)).facts)
    assert "the one judge who could rank it put it first" in sentences["why"][0]
    assert not any(name == "independent ballots" for name, *_ in sentences["figures"])


async def test_nobody_scored(page: Page) -> None:
    failing = [f"s3-dev-00{n}" for n in (1, 2, 3)]
    sentences = await said(page, run(specification(3), CouncilScript(issues=lambda _: (), failing=failing)).facts)
    assert not sentences["compared"]
    (why,) = sentences["why"]
    assert why.startswith("No ballot or comparison was recorded")
    assert why in sentences["shortcomings"]


async def test_two_authors_are_compared_by_each_other(page: Page) -> None:
    sentences = await said(page, run(specification(2), CouncilScript(issues=lambda _: ())).facts)
    assert sentences["compared"]
    assert sentences["why"][0].startswith("1 of the one judge who could rank it put it first")


async def test_one_answer_that_is_left(page: Page) -> None:
    failing = ["s1-dev-002", "s1-dev-003"]
    sentences = await said(page, run(specification(3), CouncilScript(failing=failing)).facts)
    assert sentences["why"] == ["Only one answer was left, and no peer compared it."]
    alone = await said(page, run(specification(1, strategy="single")).facts)
    assert alone["why"] == ["One agent was asked, and nobody compared its answer."]
    assert alone["answered"] == "Its one member answered."


def cancelled_in_critique(*, recorded: bool) -> list[Fact]:
    """A council that is stopped while its critics write; `recorded` says whether their stopped calls left outcomes."""
    whole = run(specification(3), CouncilScript()).facts
    opened = next(fact for fact in whole if isinstance(fact, StageOpened) and fact.purpose == "critique")
    facts: list[Fact] = list(whole[: whole.index(opened) + 1])
    facts.append(CancelRequested(deliberation_id=ID, ts=opened.ts, reason="enough"))
    for planned in opened.calls if recorded else ():
        facts.append(finished(planned.agent_id, stage=opened.stage).model_copy(update={"text": None, "problem": CUT}))
    return [*facts, Cancelled(deliberation_id=ID, ts=opened.ts, reason="enough")]


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_cancelled_council_found_nothing_and_its_stopped_calls_did_not_fail(page: Page, recorded: bool) -> None:
    sentences = await said(page, cancelled_in_critique(recorded=recorded))
    assert "no major issue" not in words(sentences) and "so far" not in words(sentences)
    assert sentences["failed"] == [] and " 0 failed" in sentences["calls"]
    fate = "stopped" if recorded else "without an answer"
    assert sentences["stages"][1]["words"] == f"0.0 s, nobody answered, 3 {fate}, the end came first"
    assert sentences["rounds"] == [[1, False, f"Round 1 changed no text: no critique came (3 {fate})."]]
    assert sentences["ending"]["head"] == "A client stopped it."
    assert sentences["ending"]["words"].startswith("Enough.")


async def test_critics_that_found_nothing_say_so_only_where_they_answered(page: Page) -> None:
    minor = CouncilScript(issues=lambda _: ("minor",))
    sentences = await said(page, run(specification(3), minor).facts)
    assert sentences["rounds"] == [[1, False, "Round 1 changed no text: its critics found no major issue."]]
    minor.failing = ["s2-dev-001"]
    sentences = await said(page, run(specification(3), minor).facts)
    words = "Round 1 changed no text: the 2 critics of 3 that answered found no major issue."
    assert sentences["rounds"] == [[1, False, words]]


async def test_a_poisoned_one_says_so(page: Page) -> None:
    takeovers = [taken_over(number) for number in range(1, 6)]
    problem = FactProblem(code="poisoned", detail="5 coordinators in a row died or hung over it", retryable=False)
    facts = [accepted(), *takeovers, Failed(deliberation_id=ID, ts=takeovers[-1].ts, problem=problem)]
    sentences = await said(page, facts)
    assert sentences["ending"]["head"] == "Coordinators died or hung over it."
    assert sentences["ending"]["words"].endswith("No model was asked.")
    assert sentences["answered"].startswith("No member has an answer that counts")


async def test_a_deadline_and_a_budget_name_what_they_left_out(page: Page) -> None:
    late = run(specification(3, on_deadline="fail"), lambda _: Reply())
    sentences = await said(page, late.facts)
    assert sentences["ending"]["head"] == "The time was over." and sentences["title"] == "Out of time"
    small = run(specification(3, budget=Budget(max_calls=3)), CouncilScript())
    sentences = await said(page, small.facts)
    assert "Critique of round 1 was left out: the budget of calls did not admit it." in sentences["shortcomings"]
    none = run(specification(3, budget=Budget(max_calls=1)), CouncilScript())
    sentences = await said(page, none.facts)
    assert sentences["ending"]["head"] == "Its budget does not admit the first stage."
    assert "No model was asked." in sentences["ending"]["words"]


async def test_agreement_after_votes_is_a_share_and_after_ballots_a_correlation(page: Page) -> None:
    voted = await said(page, story("vote, all agree: completed"))
    assert ["agreement", "100 %", "of the answers"] in voted["figures"]
    assert "2 of 2 answers say the same." in voted["why"]
    judged = await said(page, story("best_of_n: completed"))
    assert next(figure for figure in judged["figures"] if figure[0] == "agreement")[2] == "Kendall τ"


async def test_a_request_after_tools_is_no_attempt_again(page: Page) -> None:
    facts = run(specification(1, strategy="single")).facts
    (outcome,) = (fact for fact in facts if isinstance(fact, CallFinished))
    tool_used = use(ToolUsed, duration_ms=1_200)
    for attempt, again in ((2, 0), (3, 1)):
        repeated = outcome.model_copy(update={"attempt": attempt})
        told = [repeated if fact is outcome else fact for fact in facts]
        sentences = await said(page, [*told[:2], tool_used, *told[2:]])
        assert f"{again} asked again" in sentences["calls"]
        assert "1 tool use took 1.2 s together." in sentences["slow"]


async def test_why_it_was_slow_names_stage_call_and_wait(page: Page) -> None:
    slow = CouncilScript(issues=lambda _: (), after_s={"s1-dev-002": 12.0})
    sentences = await said(page, run(specification(3), slow).facts)
    assert sentences["slow"][0] == "The longest stage was propose: 12 s of 12 s."
    assert sentences["slow"][1].startswith("Its last outcome was that of dev-002, after 12 s")


CITED = """async (citations) => (await import("/ui/sentences.js")).citedInWords({ citations })"""


async def test_what_an_answer_cites_is_told_with_what_was_not_given(page: Page) -> None:
    cited = [
        {"evidence": "contract", "pages": [3, 4], "fault": None},
        {"evidence": "log", "pages": [], "fault": None},
        {"evidence": "contract", "pages": [99], "fault": "unknown_page"},
        {"evidence": "annex", "pages": [], "fault": "unknown_evidence"},
    ]
    assert await page.evaluate(CITED, cited) == [
        "It cites contract (pages 3 and 4) and log.",
        "It cites page 99 of contract, which does not exist.",
        "It cites annex, which was not given.",
    ]
    assert await page.evaluate(CITED, None) == []


COMING = """async (stages) => {
  const { stillToCome } = await import("/ui/sentences.js");
  return stillToCome(["propose", "critique × R", "revise × R", "score", "score instead, when N is 2"], 2, stages);
}"""


async def test_the_stages_to_come_are_those_of_the_strategy_that_were_not_opened(page: Page) -> None:
    opened = [{"purpose": "propose", "round": 0}, {"purpose": "critique", "round": 1}]
    rest = [["revise", 1], ["critique", 2], ["revise", 2], ["score", 0]]
    assert await page.evaluate(COMING, opened) == rest
    skipped = [*opened, {"purpose": "critique", "round": 2}]
    assert await page.evaluate(COMING, skipped) == [["revise", 2], ["score", 0]]


def test_every_closed_stage_of_these_stories_says_why_it_closed() -> None:
    causes = {fact.reason for name in STORIES for fact in story(name) if isinstance(fact, StageClosed)}
    assert causes == {"all", "quorum", "deadline"}


AGREED = """async (tellings) => {
  const { Council } = await import("/ui/council.js");
  const { reading } = await import("/ui/reading.js");
  const say = await import("/ui/sentences.js");
  return tellings.map(({ resource, events }) => {
    const read = reading(resource, new Council(events), true);
    if (resource.verdict) return [say.agreementInWords(resource), say.proposersInWords(resource, read.name)];
    const { head, words } = say.ending(resource);
    return [head, words];
  });
}"""
A, B, C = called("read", "a"), called("read", "b"), called("read", "c")
REACHED, MISSED = "The demanded agreement was reached:", "The demanded agreement was not reached:"


@pytest.mark.parametrize(
    ("actions", "demanded", "said"),
    [
        ([A, A, A], {}, ["", "dev-001, dev-002 and dev-003 propose it."]),
        ([A, A, A], {"agreement_min": 0.6}, [f"{REACHED} 3 of 3 members give this answer, and 2 must.", ...]),
        ([called("delete", "a")] * 2, {}, [f"{REACHED} 2 of 2 members give this answer, and 2 must.", ...]),
        (
            [A, A, B, B, C],
            {"agreement_min": 0.6},
            [f"{MISSED} 2 of 5 members give this answer, and 3 must.", "dev-001 and dev-002 propose it."],
        ),
        (
            [A, B, C],
            {"agreement_min": 1},
            [f"{MISSED} 1 of 3 members gives this answer, and 3 must.", "dev-001 alone proposes it."],
        ),
        (
            [A, A, B, B, C],
            {"agreement_min": 0.6, "on_disagreement": "reply"},
            [f"{MISSED} 2 of 5 members give the leading answer, and 3 must, so this reply stands in its place.", ""],
        ),
        (
            [A] * 14 + [B] * 11,
            {"agreement_min": 0.56},
            [f"{REACHED} 14 of 25 members give this answer, and 14 must.", ...],
        ),
        ([A], {"agreement_min": 1e-7}, [f"{REACHED} 1 of 1 member gives this answer, and 1 must.", ""]),
        (
            [A, B],
            {"agreement_min": 1, "on_disagreement": "fail"},
            ["Too few members agree.", re.compile(r'needs 2 of 2 members\.\n- 1: read\({"path":"."}\)\n.*\)$')],
        ),
    ],
)  # fmt: skip
async def test_whether_the_demanded_agreement_was_reached_is_told(
    page: Page, actions: Sequence[dict[str, Any]], demanded: dict[str, Any], said: Sequence[Any]
) -> None:
    facts = acting(actions, **demanded).facts
    (shown,) = await page.evaluate(AGREED, [telling(facts, facts)])
    for sentence, expected in zip(shown, said, strict=True):
        if isinstance(expected, re.Pattern):
            assert expected.search(sentence)
        elif expected is not ...:
            assert sentence == expected


async def test_agreement_on_texts_that_are_counted_is_told_too(page: Page) -> None:
    asked = specification(3, strategy="vote", parameters={"stop": "none"}, agreement_min=0.6)
    facts = run(asked, CouncilScript(text=lambda _: "red")).facts
    assert await page.evaluate(AGREED, [telling(facts, facts)]) == [
        [f"{REACHED} 3 of 3 members give this answer, and 2 must.", ""]
    ]


async def test_judges_of_actions_agree_in_their_ballots_though_equal_actions_are_counted(page: Page) -> None:
    judged = await said(page, acting([A, A, B], "best_of_n").facts)
    assert next(figure for figure in judged["figures"] if figure[0] == "agreement")[2] == "Kendall τ"
    voted = await said(page, acting([A, A, B]).facts)
    assert ["agreement", "67 %", "of the answers"] in voted["figures"]


async def test_a_lead_is_over_the_next_other_answer(page: Page) -> None:
    wanted = [called("read", "/a"), called("read", "/a"), called("read", "/b")]
    told = await said(page, acting(wanted).facts)
    (lead,) = [sentence for sentence in told["why"] if sentence.startswith("It stands")]
    assert lead == "It stands 0.33 before dev-003."
