import io
import json
from datetime import timedelta
from decimal import Decimal
from functools import cache

import pytest
from rich.console import Console, RenderableType

from app.api.schemas import Deliberation, Durations, Figures, GroupFigures, Spend, Stats, Tokens, Wins
from app.cli.exits import CommandError, Exit, FieldFault, print_error
from app.cli.render.figures import spend_text, stats_text
from app.cli.render.lanes import CouncilView
from app.cli.render.lines import event_line
from app.cli.render.panels import picture
from app.cli.render.report import cost_text, deliberation_report, tally_table, votes_text
from app.cli.render.transcript import transcript
from app.deliberation.calls import Money, UsageCost
from app.deliberation.citations import Citation
from app.deliberation.facts import DEGRADED_REASONS, CallFinished, Fact, FactProblem, StageOpened, Tally
from app.deliberation.specification import Budget
from app.deliberation.strategies import STRATEGIES
from tests.components.cli.council_run import Council, Script, answer_text, council_of, specification
from tests.story import NOW


def shown(content: RenderableType, width: int = 100, height: int = 30) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False, highlight=False)
    console.print(content)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(council: Council, events: int, width: int = 100, height: int = 30) -> str:
    view = CouncilView()
    for frame in council.frames[:events]:
        view.apply(frame)
    console = Console(width=width, height=height, file=io.StringIO())
    return shown(picture(console, view, council.clock.now()), width, height)


def deliberation(council: Council) -> Deliberation:
    return Deliberation.model_validate(council.resource)


@cache
def council_with(agents: int) -> Council:
    return council_of(specification(agents=agents))


@pytest.mark.parametrize(("width", "height"), [(40, 5), (60, 10), (80, 24), (200, 120), (20, 2)])
@pytest.mark.parametrize("agents", [1, 3, 16])
def test_every_frame_fits_the_terminal(width: int, height: int, agents: int) -> None:
    council = council_with(agents)
    for events in (0, len(council.frames) // 3, len(council.frames) - 9):
        lines = drawn(council, events, width, height).splitlines()
        assert len(lines) <= max(height, 4)
        assert max(map(len, lines), default=0) <= width


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_is_shown_from_its_first_event_to_its_report(strategy: str, agents: int) -> None:
    council = council_of(specification(strategy, agents))
    for events in range(1, len(council.frames), len(council.frames) // 12):
        lines = drawn(council, events).splitlines()
        assert len(lines) <= 30 and max(map(len, lines)) <= 100
        assert '{"' not in "".join(lines), "no JSON in the lanes"
    found = deliberation(council)
    text = shown(deliberation_report(found), width=140)
    assert found.verdict is not None
    for proposal in found.proposals:
        assert proposal.agent_id in text
    assert ("The council's answer" in text) is (found.verdict.content is not None)
    assert f"{found.usage.calls} engine call" in text
    lines = [event_line(event, council.events[0].ts) for event in council.events]
    purposes = {event.purpose for event in council.events if isinstance(event, StageOpened)}
    assert all(any(f" {purpose}" in line for line in lines if line) for purpose in purposes)


def everyone_says(answer: str) -> Script:
    text = json.dumps({"reasoning": "r", "answer": answer, "confidence": 9})
    return lambda call: text if call.output.kind == "answer" else answer_text(call)


def test_a_vote_shows_its_tally_and_the_agents_that_were_not_asked() -> None:
    council = council_of(specification("vote", 5), everyone_says("Blue."))
    text = shown(deliberation_report(deliberation(council)), width=140)
    assert "Votes" in text and "│     3 │ blue" in text and "100 % of the votes agree" in text
    assert text.count("not asked") == 2 and "┃ model" not in text
    lines = drawn(council, len(council.frames)).splitlines()
    assert [line.split()[0] for line in lines if "not asked" in line] == ["dev-004", "dev-005"]
    assert "normaliser" in (event_line(council.events[0], None) or "")


def test_a_fused_text_is_attributed_to_its_call() -> None:
    found = deliberation(council_of(specification("best_of_n")))
    assert found.verdict is not None
    fused = found.verdict.model_copy(update={"winner": None, "call_id": "s4-dev-002", "effective_votes": 2.25})
    text = shown(deliberation_report(found.model_copy(update={"verdict": fused})), width=140)
    assert "The council's answer, from call s4-dev-002" in text and "★" not in text
    assert "ballots count as 2.2 independent" in text


def test_what_an_answer_cites_is_told_with_what_was_not_given() -> None:
    asked = deliberation(council_of(specification("best_of_n")))
    assert asked.verdict is not None
    citations = (
        Citation(evidence="contract", pages=(3, 4)),
        Citation(evidence="contract", pages=(99,), fault="unknown_page"),
        Citation(evidence="annex", fault="unknown_evidence"),
    )
    cites = asked.model_copy(update={"verdict": asked.verdict.model_copy(update={"citations": citations})})
    text = shown(deliberation_report(cites), width=140)
    for told in ("contract pp. 3, 4", "contract p. 99, which it does not have", "annex, which was not given"):
        assert f"cites {told}" in text and f"cites {told}" in transcript(cites, [], [])


def test_a_running_council_shows_a_lane_for_each_agent(council: Council) -> None:
    opened = [place for place, event in enumerate(council.events) if isinstance(event, StageOpened)]
    text = drawn(council, opened[1] + 12)
    assert "stage 2: critique, round 1" in text
    assert "0 of 3 answered" in text
    assert "simulated engine" in text
    for agent in ("dev-001", "dev-002", "dev-003"):
        assert f"{agent} DEV simulated-normal" in text
    assert "1/4 calls" in text
    assert '{"' not in text, "no JSON in the lanes"


def test_the_report_shows_ranking_scores_confidence_cost_and_text(council: Council) -> None:
    found = deliberation(council)
    assert found.verdict is not None and found.verdict.winner is not None
    text = shown(deliberation_report(found), width=140)
    rows = [line for line in text.splitlines() if "│ dev-" in line]
    assert [row.split("│")[2].split()[0] for row in rows] == [proposal.agent_id for proposal in found.proposals]
    assert f"{found.verdict.winner} ★" in rows[0]
    for expected in ("correctness", "completeness", "clarity", "agreement", "12 engine calls", "1,440 tokens"):
        assert expected in text
    assert f"The council's answer, by {found.verdict.winner}" in text
    assert "Simulated" in text


def test_a_council_of_long_roles_fits_80_columns_uncut(council: Council) -> None:
    found = deliberation(council)
    proposals = tuple(
        each.model_copy(update={"agent_id": "architect-001" if place else "dev-003", "role": "ARCHITECT"})
        for place, each in enumerate(found.proposals)
    )
    assert found.verdict is not None
    verdict = found.verdict.model_copy(update={"winner": "architect-001", "tie": False})
    text = shown(deliberation_report(found.model_copy(update={"proposals": proposals, "verdict": verdict})), width=80)
    for word in ("correctness", "completeness", "clarity", "architect-001 ★", "tokens"):
        assert word in text
    assert "…" not in text.split("margin")[0]
    [margin] = [line for line in text.splitlines() if line.startswith("margin")]
    assert margin.rstrip().endswith("independent")


def test_the_cost_fits_80_columns_on_lines_of_its_own(council: Council) -> None:
    found = deliberation(council).model_copy(update={"id": "0" * 26})
    status, tokens, models = shown(cost_text(found), width=80).splitlines()
    assert status.startswith("completed 000") and status.endswith("12 engine calls")
    assert tokens == "1,440 tokens: 1,200 prompt (768 of them cached), 240 completion"
    assert models == "by simulated-normal"


def test_a_budget_that_admits_nothing_names_the_options_that_raise_it(council: Council) -> None:
    detail = "budget.max_calls is 1. Raise it, lower sampling.max_tokens, or ask fewer agents."
    problem = FactProblem(code="budget_exhausted", detail=detail, retryable=False)
    text = shown(deliberation_report(deliberation(council).model_copy(update={"problem": problem})), width=140)
    assert "--budget-calls is 1. Raise it, lower --max-tokens, or ask fewer agents." in text


def test_a_remedy_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    fault = FieldFault("Authorization", "The key lacks the scope admin", "Use a key with the scope admin.")
    error = CommandError(Exit.REFUSED, "insufficient_scope", fault.detail, fields=[fault], remedy=fault.remedy)
    print_error(error, as_json=False)
    assert capsys.readouterr().err.count("Use a key with the scope admin.") == 1


def test_votes_of_a_debate_are_told_apart(council: Council) -> None:
    counted = Tally(answer="four\n\n" + "x" * 90, votes=4, final=1, agents=("dev-001", "dev-002"))
    verdict = deliberation(council).verdict
    assert verdict is not None
    text = shown(tally_table(verdict.model_copy(update={"tally": (counted,)})), width=80)
    assert "1 final + 3 first" in text and "dev-001" in text and max(map(len, text.splitlines())) <= 80
    words = {final: votes_text(counted.model_copy(update={"final": final})) for final in (None, 0, 4)}
    assert words == {None: "4", 0: "4 first", 4: "4 final"}
    found = deliberation(council).model_copy(update={"verdict": verdict.model_copy(update={"tally": (counted,)})})
    [row] = [line for line in transcript(found, [], []).splitlines() if "four" in line]
    assert row == f"| 1 final + 3 first | four {'x' * 54}… | dev-001, dev-002 |"


def test_a_transcript_parts_reasoning_from_programs_and_tests() -> None:
    council = council_of(specification("execute", agents=1))
    facts = [event for event in council.events if isinstance(event, Fact)]
    text = transcript(deliberation(council), facts, [])
    assert "Reasoning:\n\n> simple\n\nProgram:\n\n```python\ndef f(): ...  # dev-001\n```\n" in text, text
    assert "Reasoning:\n\n> edges\n\nTests:\n\n```python\nholds: f → 1\n```\n" in text, text
    assert "confidence 70 %\n" in text and "> confidence" not in text


def test_a_transcript_shows_an_answer_in_json_as_json(council: Council) -> None:
    answer = {"colour": "blue", "sure": True}
    output = json.dumps({"reasoning": "", "answer": answer, "confidence": 70})
    first = next(event for event in council.events if isinstance(event, CallFinished))
    facts = [event for event in council.events if isinstance(event, StageOpened)]
    text = transcript(deliberation(council), [facts[0], first.model_copy(update={"text": output})], [])
    assert f"Answer:\n\n```json\n{json.dumps(answer, indent=2)}\n```\n" in text and "Reasoning" not in text


def test_a_failure_shows_its_problem() -> None:
    text = shown(deliberation_report(deliberation(council_of(script=lambda call: None))), width=140)
    assert "failed" in text
    assert "engine_unavailable" in text
    assert "no_answers" in text


def test_a_verdict_names_the_stages_that_the_budget_cut() -> None:
    asked = specification().model_copy(update={"budget": Budget(max_calls=6)})
    text = shown(deliberation_report(deliberation(council_of(asked))), width=140)
    assert f"degraded budget: {DEGRADED_REASONS['budget']}" in text
    assert "cut critique, round 1, by the budget of calls" in text


def test_markup_and_control_characters_in_answers_have_no_effect() -> None:
    evil = json.dumps({"reasoning": "[red]r", "answer": "[bold]x[/nope] \x1b[31m", "confidence": 1})
    council = council_of(
        specification("independent"),
        script=lambda call: evil if call.output.kind == "answer" else answer_text(call),
    )
    text = shown(deliberation_report(deliberation(council)), width=140) + drawn(council, len(council.frames) - 4)
    assert "[bold]x[/nope]" in text
    assert "\x1b" not in text


def test_events_become_lines(council: Council) -> None:
    begun_at = council.events[0].ts
    lines = [line for event in council.events if (line := event_line(event, begun_at))]
    assert len(lines) == sum(event.type != "call.delta" for event in council.events)
    assert "council of dev-001 (DEV), dev-002 (DEV), dev-003 (DEV)" in lines[0]
    assert any("stage 1 propose: 3 calls, quorum 2" in line for line in lines)
    assert any("dev-002 answered in 1.5 s" in line and "120 tokens" in line for line in lines)
    assert lines[-1].endswith("completed")


def test_errors_show_code_fields_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [FieldFault("/rounds", "too many", "Give 5 or less."), FieldFault("/role", "unknown.")]
    named = "/rounds: too many. Give 5 or less. `errors` names 1 more."
    error = CommandError(Exit.REFUSED, "invalid_request", named, fields=faults, remedy="mend it", request_id="r1")
    print_error(error, as_json=False)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        "error invalid_request: 2 faults",
        "  /rounds: too many. Give 5 or less.",
        "  /role: unknown.",
        "  → mend it",
        "  request r1",
    ]
    print_error(error, as_json=True)
    document = json.loads(capsys.readouterr().err)
    assert document["code"] == "invalid_request" and document["exit_code"] == 4
    assert document["errors"][0] == {"field": "/rounds", "detail": "too many", "remedy": "Give 5 or less."}


def test_an_error_with_one_fault_or_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [FieldFault("/rounds", "too many", "Give 5 or less.")]
    named = "/rounds: too many. Give 5 or less."
    print_error(CommandError(Exit.REFUSED, "invalid_request", named, fields=faults, request_id="r1"), as_json=False)
    print_error(CommandError(Exit.USAGE, "usage", "no\nsuch", remedy="mend it"), as_json=False)
    assert capsys.readouterr().err.splitlines() == [
        "error invalid_request: /rounds: too many. Give 5 or less. · request r1",
        "error usage: no such → mend it",
    ]


def figures_of(cost: UsageCost | None, *others: Money) -> Figures:
    return Figures(
        total=1_234,
        active=1,
        completed=1_233,
        failed=0,
        cancelled=0,
        timeout=0,
        seconds=Durations(mean=14.2, p50=13.9, p95=16.1, p99=16.1),
        tokens=Tokens(prompt_tokens=39_120_000, completion_tokens=9_870, cached_tokens=24_512),
        cost=cost,
        other_costs=others,
        agreement=0.71,
        degraded_share=0.0,
    )


def screen(total: Figures, *groups: Figures) -> str:
    named = tuple(
        GroupFigures(name=f"R{place}", wins=Wins(won=3, decided=3, rate=1.0), **dict(each))
        for place, each in enumerate(groups)
    )
    period = {"from_": NOW - timedelta(days=30), "to": NOW}
    return shown(stats_text(Stats(**period, by="role", groups=named, **dict(total))), width=80)


def usd(amount: str, unpriced: int = 0) -> UsageCost:
    return UsageCost(amount=Decimal(amount), currency="USD", unpriced_calls=unpriced)


def test_groups_show_what_they_cost() -> None:
    euros = Money(amount=Decimal("0.4"), currency="EUR")
    other = UsageCost(amount=Decimal("0.000690"), currency="EUR")

    lines = screen(
        figures_of(usd("12345.6789", 3), euros),
        figures_of(usd("12345.6789"), euros),
        figures_of(other),
        figures_of(None),
    )

    assert "12345.6789 USD, without 3 unpriced calls; 0.4 EUR" in lines and max(map(len, lines.splitlines())) <= 80
    *_, header, first, second, third = lines.splitlines()
    assert "cost USD" in header and "12,345.68+ " in first and " 0.00069 EUR " in second and " – " in third


def test_the_spend_of_the_day_is_one_sentence() -> None:
    midnight = NOW.replace(hour=0, minute=0) + timedelta(days=1)
    amounts = {"spent": Decimal("1.25"), "reserved": Decimal(2), "limit": Decimal(5)}
    spend = Spend(**amounts, currency="USD", resets_at=midnight)

    words = "1.25 USD of 5 USD today, and what runs may cost 2 USD; a new day begins at 2026-01-02 00:00 UTC"
    assert spend_text(spend) == words


@pytest.mark.parametrize("groups", [(), (figures_of(None),)])
def test_without_prices_no_cost_is_shown(groups: tuple[Figures, ...]) -> None:
    assert "cost" not in screen(figures_of(None), *groups)
