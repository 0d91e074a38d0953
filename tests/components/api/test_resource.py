import random
from collections import Counter
from datetime import timedelta

import pytest

from app.api.headers import Submission
from app.api.requests import DeliberationRequest
from app.api.resource import resource
from app.api.schemas import Deliberation
from app.deliberation.calls import Call, FactProblem, Usage
from app.deliberation.errors import UnexpectedFact
from app.deliberation.facts import (
    Accepted,
    CallFinished,
    Cancelled,
    CancelRequested,
    Fact,
    StageClosed,
    StageOpened,
)
from app.deliberation.fold import State, apply, begin, state_of
from app.deliberation.ports import Record
from app.deliberation.strategies import STRATEGIES
from app.lifecycle.specify import Identity, body_sha256, specification
from app.lifecycle.specify import accepted as accept
from app.process_settings import read_roles
from tests.components.routes.served import played, written
from tests.fakes import FakeClock
from tests.unit.facts_of import ballot

CLOCK = FakeClock()
NOW = CLOCK.now()
ROLES = read_roles(None)


def accepted(**body: object) -> Accepted:
    request = DeliberationRequest.model_validate({"task": "t", "seed": 7, **body})
    specified = specification(request, ROLES, STRATEGIES, timeout_s=300)
    return accept(specified, Identity("d1", body_sha256(request)), Submission(request_id="r"), now=NOW)


def folded(first: Accepted, facts: list[Fact]) -> State:
    state = begin(first, 1)
    for sequence, fact in enumerate(facts, start=2):
        state = apply(state, fact, sequence)
    return state


def resource_of(first: Accepted, facts: list[Fact]) -> Deliberation:
    return resource(folded(first, facts), epoch="e1", retention_s=60)


def test_a_new_deliberation_shows_its_council_without_texts() -> None:
    first = accepted(agents=[{"role": "DEV", "count": 2}, {"role": "QA"}], metadata={"team": "a"})
    read = resource_of(first, [])
    assert read.status == "pending"
    assert read.revision == 1
    assert read.role is None
    assert [proposal.agent_id for proposal in read.proposals] == ["dev-001", "dev-002", "qa-001"]
    assert {proposal.status for proposal in read.proposals} == {"pending"}
    assert (read.started_at, read.ended_at, read.progress, read.verdict, read.problem) == (None,) * 5
    assert read.created_at == NOW
    assert read.deadline_at == NOW + timedelta(seconds=300)
    assert read.retention_until == NOW + timedelta(seconds=60)
    assert read.last_event_id == "e1-1"
    assert read.metadata == {"team": "a"}
    assert read.links.events == "/deliberations/d1/events"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 3])
def test_proposals_are_in_rank_order_with_their_chosen_text(seed: int, size: int) -> None:
    def opinionated(call: Call) -> str:
        if call.output.kind != "score" or seed % 5 == 4:
            return "not a ballot" if call.output.kind == "score" else written(call)
        dice = random.Random(f"{seed} {call.call_id}")
        return ballot(call, lambda _: dice.randint(0, 10))

    first = accepted(seed=seed, num_agents=size, rounds=2)
    read = resource_of(first, played(first, now=CLOCK.now, write=opinionated))
    assert read.status == "completed"
    assert read.verdict is not None
    assert [proposal.rank for proposal in read.proposals] == list(range(1, size + 1))
    assert [proposal.agent_id for proposal in read.proposals] == [each.agent_id for each in read.verdict.ranking]
    assert [proposal.score for proposal in read.proposals] == [each.score for each in read.verdict.ranking]
    winner = read.proposals[0]
    assert (winner.agent_id, winner.content) == (read.verdict.winner, read.verdict.content)
    for proposal in read.proposals:
        assert [version.version for version in proposal.revisions] in ([0, 1], [1, 2])
        assert proposal.content not in [version.content for version in proposal.revisions]
        assert [critique.round for critique in proposal.critiques] == [1, 2]
        assert proposal.agent_id not in [critique.agent_id for critique in proposal.critiques]


def test_criteria_are_means_over_ballots_with_the_chosen_text() -> None:
    first = accepted(num_agents=3, rounds=0)
    facts = played(first, now=CLOCK.now)
    read = resource_of(first, facts)
    shown = Counter[str]()
    points = Counter[str]()
    for fact in facts:
        if isinstance(fact, StageOpened) and fact.purpose == "score":
            for planned in fact.calls:
                for score, label in enumerate(planned.labels, start=1):
                    shown[planned.labels[label]] += 1
                    points[planned.labels[label]] += score
    for proposal in read.proposals:
        mean = points[proposal.agent_id] / shown[proposal.agent_id]
        assert [criterion.id for criterion in proposal.criteria] == ["correctness", "completeness", "clarity"]
        assert [criterion.score for criterion in proposal.criteria] == [pytest.approx(mean)] * 3
        assert {criterion.ballots for criterion in proposal.criteria} == {2}


def test_progress_counts_the_calls_of_the_open_stage() -> None:
    first = accepted()
    facts = played(first, now=CLOCK.now, until_stage=2)
    read = resource_of(first, facts)
    assert read.status == "in_progress"
    assert read.progress is not None
    assert read.progress.model_dump() == {
        "stage": 2,
        "purpose": "critique",
        "round": 1,
        "calls_finished": 0,
        "calls_total": 3,
    }
    assert {proposal.content for proposal in read.proposals} == {f"draft s1-dev-00{n}" for n in (1, 2, 3)}
    assert {proposal.rank for proposal in read.proposals} == {None}


def first_stage(first: Accepted, outcomes: dict[str, str | None]) -> list[Fact]:
    opened = played(first, now=CLOCK.now, until_stage=1)[0]
    assert isinstance(opened, StageOpened)
    facts: list[Fact] = [opened]
    for call in opened.calls:
        if call.agent_id in outcomes:
            text = outcomes[call.agent_id]
            problem = None if text is not None else FactProblem(code="call_timeout", detail="late", retryable=True)
            facts.append(
                CallFinished(
                    deliberation_id="d1",
                    ts=NOW,
                    call_id=call.call_id,
                    agent_id=call.agent_id,
                    role=call.role,
                    stage=1,
                    attempt=1,
                    text=text,
                    problem=problem,
                    duration_ms=1,
                )
            )
    return facts


ANSWER = '{"reasoning":"r","answer":"blue","confidence":1}'


def close(seen: tuple[str, ...]) -> StageClosed:
    return StageClosed(deliberation_id="d1", ts=NOW, stage=1, purpose="propose", round=0, seen=seen, reason="deadline")


def test_an_answer_of_an_unknown_shape_is_ignored() -> None:
    first = accepted()
    read = resource_of(first, first_stage(first, {"dev-001": '{"other":1}'}))
    assert read.proposals[0].content is None


@pytest.mark.parametrize(
    ("facts", "status", "reason"),
    [
        ([CancelRequested(deliberation_id="d1", ts=NOW, reason="enough")], "cancelling", "enough"),
        (
            [
                CancelRequested(deliberation_id="d1", ts=NOW, reason="enough"),
                Cancelled(deliberation_id="d1", ts=NOW),
            ],
            "cancelled",
            "enough",
        ),
    ],
)
def test_a_cancelled_deliberation_shows_its_reason_and_skipped_agents(
    facts: list[Fact], status: str, reason: str
) -> None:
    read = resource_of(accepted(), facts)
    assert (read.status, read.status_reason) == (status, reason)
    assert {proposal.status for proposal in read.proposals} == {"skipped" if status == "cancelled" else "pending"}


def test_a_cancellation_lists_cut_and_later_finished_calls() -> None:
    first = accepted()
    opened, before, after, cut = first_stage(first, {"dev-001": ANSWER, "dev-002": ANSWER, "dev-003": None})
    assert isinstance(after, CallFinished) and isinstance(cut, CallFinished)
    usage = Usage(prompt_tokens=5, completion_tokens=7, calls=1)
    problem = FactProblem(code="call_cancelled", detail="stopped on request", retryable=False)
    after, cut = after.model_copy(update={"usage": usage}), cut.model_copy(update={"usage": usage, "problem": problem})
    stop = CancelRequested(deliberation_id="d1", ts=NOW, reason="enough")
    read = resource_of(first, [opened, before, stop, after, cut, Cancelled(deliberation_id="d1", ts=NOW)])
    assert read.cancellation is not None
    assert [(each.call_id, each.usage) for each in read.cancellation.cut] == [("s1-dev-003", usage)]
    assert read.cancellation.finished_after == ("s1-dev-002",)
    assert read.cancellation.tokens_after == 12
    assert resource_of(first, [opened, before]).cancellation is None


def test_damaged_facts_are_reported_without_their_content() -> None:
    with pytest.raises(UnexpectedFact) as caught:
        state_of([Record("deliberations.t.d.accepted", 1, b'{"type":"deliberation.accepted","task":"canary"}')])
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_program_shows_its_check_results() -> None:
    first = accepted(num_agents=1, strategy="execute")
    program = '{"reasoning":"r","code":"def f(): return 1","confidence":50}'
    opened, outcome = first_stage(first, {"dev-001": program})
    assert isinstance(opened, StageOpened) and isinstance(outcome, CallFinished)
    report = '{"outcomes":[{"name":"holds","passed":false,"reason":"returned 1, not 2","duration_ms":3}]}'
    planned = opened.calls[0].model_copy(update={"call_id": "s2-dev-001", "output": "report"})
    checking = opened.model_copy(update={"stage": 2, "purpose": "check", "calls": (planned,)})
    checked = outcome.model_copy(update={"call_id": "s2-dev-001", "stage": 2, "text": report})
    (proposal,) = resource_of(first, [opened, outcome, close(("s1-dev-001",)), checking, checked]).proposals
    assert proposal.content == "def f(): return 1"
    (check,) = proposal.checks
    assert (check.name, check.passed, check.reason) == ("holds", False, "returned 1, not 2")
