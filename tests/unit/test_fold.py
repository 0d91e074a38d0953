from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.calls import Usage
from app.deliberation.errors import Gone, UnexpectedFact
from app.deliberation.facts import Cancelled, Completed, Deleted, Fact, Failed, TimedOut, ToolStarted, ToolUsed
from app.deliberation.fold import TERMINAL, TRANSITIONS, State, apply, fold, usage
from app.deliberation.specification import Prices
from tests.unit.facts_of import (
    ID,
    NOW,
    accepted,
    agent_ids,
    cancelling,
    closed,
    end,
    finished,
    opened,
    run,
    specification,
    taken_over,
    use,
)

ENDS: dict[str, type[Completed | Failed | Cancelled | TimedOut]] = {
    "completed": Completed,
    "failed": Failed,
    "cancelled": Cancelled,
    "timeout": TimedOut,
}
ENDINGS = {f"deliberation.{status}": status for status in ENDS}
WORK = ("stage.opened", "call.finished", "tool.started", "tool.used", "stage.closed")
LATE = (*WORK, "deliberation.cancelling", "deliberation.resumed")

# A copy of the table in the code, which is under test.
ALLOWED: dict[str, dict[str, str]] = {
    "pending": {
        "stage.opened": "in_progress",
        "deliberation.cancelling": "cancelling",
        "deliberation.resumed": "pending",
        **ENDINGS,
    },
    "in_progress": {
        **dict.fromkeys(WORK, "in_progress"),
        "deliberation.cancelling": "cancelling",
        "deliberation.resumed": "in_progress",
        **ENDINGS,
    },
    "cancelling": {**dict.fromkeys(WORK, "cancelling"), "deliberation.resumed": "cancelling", **ENDINGS},
    **{status: dict.fromkeys(LATE, status) for status in ENDS},
}
KINDS = ("deliberation.accepted", *LATE, *ENDINGS)


def folded(*facts: Fact) -> State:
    state = fold(enumerate(facts, start=1))
    assert state is not None
    return state


def stages_before(kind: str) -> list[Fact]:
    return [opened(), finished(), closed(seen=["dev-001"])] if kind == "stage.opened" else [opened(), finished()]


def fact_of(kind: str, stage: int) -> Fact:
    match kind:
        case "deliberation.accepted":
            return accepted()
        case "stage.opened":
            return opened(stage)
        case "call.finished":
            return finished("dev-002")
        case "tool.started":
            return use(ToolStarted)
        case "tool.used":
            return use(ToolUsed)
        case "stage.closed":
            return closed(seen=["dev-001"])
        case "deliberation.cancelling":
            return cancelling()
        case "deliberation.resumed":
            return taken_over()
        case _:
            return end(ENDS[kind.removeprefix("deliberation.")])


def in_status(status: str, kind: str) -> State:
    facts: list[Fact] = [accepted()]
    if status != "pending":
        facts += stages_before(kind)
    if status == "cancelling":
        facts.append(cancelling())
    if status in ENDS:
        facts.append(end(ENDS[status]))
    return folded(*facts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", ALLOWED)
def test_every_pair_of_status_and_fact_is_a_known_move_or_raises(status: str, kind: str) -> None:
    state = in_status(status, kind)
    assert state.status == status
    fact = fact_of(kind, stage=len(state.stages) + 1)
    if kind in ALLOWED[status]:
        moved = apply(state, fact, 99)
        assert moved.status == ALLOWED[status][kind] == TRANSITIONS[status, kind]
        assert (moved.revision, moved.last_sequence) == (state.revision + 1, 99)
    else:
        assert (status, kind) not in TRANSITIONS
        with pytest.raises(UnexpectedFact):
            apply(state, fact)


def test_the_table_has_no_status_or_fact_besides() -> None:
    pairs = {(status, kind) for status, moves in ALLOWED.items() for kind in moves}
    assert set(TRANSITIONS) == pairs | {("", "deliberation.accepted")}
    assert TERMINAL == set(ENDS)


def test_takeovers_count_as_without_progress_until_the_next_step() -> None:
    facts: list[Fact] = [accepted(), taken_over(1), opened(), taken_over(2), taken_over(3)]
    assert (folded(*facts).takeovers, folded(*facts).takeovers_without_progress) == (3, 2)
    assert folded(*facts, cancelling()).takeovers_without_progress == 2
    assert folded(*facts, finished()).takeovers_without_progress == 0
    assert folded(*facts, finished(), closed(seen=["dev-001"])).takeovers_without_progress == 0


def test_an_orderly_handover_does_not_count_as_a_takeover_without_progress() -> None:
    given_back = taken_over(2).model_copy(update={"given_back": True})
    facts = [accepted(), opened(), taken_over(1), given_back, taken_over(3)]
    assert [folded(*facts[:count]).takeovers_without_progress for count in (3, 4, 5)] == [1, 1, 1]
    assert folded(*facts).takeovers == 3
    assert folded(*facts, taken_over(4)).takeovers_without_progress == 2, "the one that died after it is counted again"


@pytest.mark.parametrize(
    "facts",
    [
        [Deleted(deliberation_id=ID, ts=NOW)],
        [accepted(), end(), Deleted(deliberation_id=ID, ts=NOW)],
        [Deleted(deliberation_id=ID, ts=NOW), finished()],
    ],
    ids=["all removed", "not yet removed", "a late outcome"],
)
def test_a_tombstone_among_any_facts_raises_gone(facts: list[Fact | Deleted]) -> None:
    with pytest.raises(Gone, match="has been deleted"):
        fold(enumerate(facts, start=1))


@pytest.mark.parametrize("first", [opened(), finished(), closed(), cancelling(), end()])
def test_a_log_that_begins_with_anything_but_the_acceptance_is_refused(first: Fact) -> None:
    with pytest.raises(UnexpectedFact, match=ID):
        fold([(1, first)])


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ([accepted()], "accepted twice"),
        ([opened(2)], "stage 2 opens after 0"),
        ([opened(), opened()], "stage 1 opens after 1"),
        ([opened(), opened(2)], "stage 2 opens after 1"),
        ([opened(), closed(), opened(3)], "stage 3 opens after 1"),
        ([opened(), closed(2)], "stage 2 closes"),
        ([opened(), closed(), closed()], "stage 1 closes"),
        ([opened(), closed(seen=["dev-001"])], "not recorded: s1-dev-001"),
        ([opened(), finished("dev-009")], "stage 1 has no call s1-dev-009"),
        ([opened(), finished(stage=2)], "stage 2 has no call"),
        ([opened(), finished(), closed(), opened(2), closed(2, seen=["dev-001"])], "not recorded: s2-dev-001"),
    ],
)
def test_facts_of_a_missing_stage_or_call_are_refused(facts: list[Fact], fault: str) -> None:
    with pytest.raises(UnexpectedFact, match=fault):
        folded(accepted(), *facts)


def test_an_outcome_of_another_stage_is_none_of_the_stage_that_closes() -> None:
    with pytest.raises(UnexpectedFact, match="not recorded: s1-dev-001"):
        other = closed(2).model_copy(update={"seen": ("s1-dev-001",)})
        folded(accepted(), opened(), finished(), closed(seen=["dev-001"]), opened(2), other)


def test_a_second_outcome_of_a_call_is_ignored() -> None:
    state = folded(accepted(), opened(), finished(text="first"), finished(text="second"))
    assert state.finished["s1-dev-001"].text == "first"
    assert state.finished.keys() == {"s1-dev-001"}


def test_a_late_outcome_is_kept_but_not_seen() -> None:
    state = folded(accepted(), opened(), finished(), closed(seen=["dev-001"]), finished("dev-002"), end())
    late = apply(state, finished("dev-003"), 7)
    assert late.finished.keys() == {"s1-dev-001", "s1-dev-002", "s1-dev-003"}
    assert late.stages == state.stages
    assert late.end == state.end
    assert late.stages[0].closed is not None
    assert late.stages[0].closed.seen == ("s1-dev-001",)


@pytest.mark.parametrize("strategy", ["single", "independent", "best_of_n", "council"])
def test_every_prefix_of_a_log_folds_and_the_rest_leads_to_the_same_state(strategy: str) -> None:
    facts = run(specification(strategy=strategy)).facts
    whole = folded(*facts)
    for cut in range(1, len(facts)):
        state = folded(*facts[:cut])
        assert state.revision == cut
        assert not state.ended
        for sequence, fact in enumerate(facts[cut:], start=cut + 1):
            state = apply(state, fact, sequence)
        assert state == whole


_TOKENS = st.integers(0, 1_000)
_PRICES = Prices(currency="USD", prompt=Decimal("0.15"), cached=Decimal("0.075"), completion=Decimal("0.6"))
_USAGES = st.builds(
    lambda usage, priced: usage.at(_PRICES if priced else None),
    st.builds(Usage, prompt_tokens=_TOKENS, completion_tokens=_TOKENS, cached_tokens=_TOKENS, calls=_TOKENS),
    st.booleans(),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(_USAGES, min_size=7))
def test_usage_by_stage_and_by_agent_sum_to_the_total(costs: list[Usage]) -> None:
    second = [finished(agent, stage=2, usage=cost) for agent, cost in zip(agent_ids(3), costs, strict=False)]
    first = [finished(agent, usage=cost) for agent, cost in zip(agent_ids(3), costs[3:], strict=False)]
    total = usage(folded(accepted(), opened(), *first, closed(), opened(2), *second, end()))
    expected = sum(costs[:6], Usage())
    assert sum(total.by_stage, Usage()) == sum(total.by_agent, Usage()) == total + Usage() == expected
    assert [stage.stage for stage in total.by_stage] == [1, 2]
    assert [agent.agent_id for agent in total.by_agent] == agent_ids(3)
