from collections.abc import Iterator
from datetime import timedelta

import pytest

from app.deliberation.decider import RunStage, awaits_stopped_calls, next_moment, waits_for_calls
from app.deliberation.facts import CallFinished, Fact, View
from app.deliberation.fold import State, begin, fold
from app.deliberation.strategies import STRATEGIES
from tests.fakes import drive
from tests.story import Story
from tests.unit.facts_of import NOW, TIMEOUT_S, accepted, answer, cancelling, closed, end, finished, opened
from tests.unit.facts_of import specification as of


def state_after(*facts: Fact) -> State:
    state = fold(enumerate((accepted(), *facts), start=1))
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("after_s", "next_s"),
    [(0, 25), (24.9, 25), (25, 60), (60, TIMEOUT_S), (TIMEOUT_S, TIMEOUT_S), (TIMEOUT_S + 1, TIMEOUT_S)],
)
def test_the_next_moment_is_the_next_deadline_of_the_open_stage_or_of_the_deliberation(
    after_s: float, next_s: float
) -> None:
    moment = next_moment(state_after(opened()), NOW + timedelta(seconds=after_s))
    assert moment == NOW + timedelta(seconds=next_s)


def test_an_open_stage_waits_until_it_may_close_or_a_fact_or_the_deadline_ends_the_wait() -> None:
    waiting = (opened(), finished("dev-001"), finished("dev-002"))
    assert waits_for_calls(state_after(*waiting), NOW)
    assert not waits_for_calls(state_after(*waiting), NOW + timedelta(seconds=25))
    assert not waits_for_calls(state_after(*waiting, finished("dev-003")), NOW)
    assert not waits_for_calls(state_after(*waiting, cancelling()), NOW)
    assert not waits_for_calls(state_after(*waiting, end()), NOW)
    assert waits_for_calls(state_after(opened()), NOW + timedelta(seconds=TIMEOUT_S - 1))
    assert not waits_for_calls(state_after(opened()), NOW + timedelta(seconds=TIMEOUT_S))
    assert not waits_for_calls(begin(accepted()), NOW)


def test_a_closed_stage_a_cancel_and_the_deadline_stop_the_calls_that_lack_their_outcome() -> None:
    stage = (opened(), finished("dev-001"), finished("dev-002"))
    late = NOW + timedelta(seconds=TIMEOUT_S)
    assert not awaits_stopped_calls(state_after(*stage), NOW), "nothing has stopped the third one"
    for stop, now in ((closed(seen=["dev-001", "dev-002"]), NOW), (cancelling(), NOW), (None, late)):
        stopped = (*stage, stop) if stop else stage
        assert awaits_stopped_calls(state_after(*stopped), now)
        assert not awaits_stopped_calls(state_after(*stopped, finished("dev-003")), now)


def run(_: State, stage: RunStage) -> Iterator[CallFinished | View]:
    for call in stage.calls:
        yield Story("d1").started(call.agent_id, stage=stage.opened.stage)
        yield finished(call.agent_id, stage.opened.stage, answer("Blue."))


def test_the_driver_yields_every_event_to_the_end_and_folds_the_facts() -> None:
    first = accepted(of(2, strategy="independent"))
    events = list(drive(begin(first, 1), STRATEGIES["independent"], lambda: NOW, run))
    calls = ["call.started", "call.finished"] * 2
    assert [event.type for event in events] == ["stage.opened", *calls, "stage.closed", "deliberation.completed"]


def test_the_driver_takes_up_an_open_stage_with_the_calls_that_lack_an_outcome() -> None:
    first = accepted(of(2, strategy="independent"))
    definition = STRATEGIES["independent"]
    before = [
        first,
        *(event for event in drive(begin(first, 1), definition, lambda: NOW, run) if isinstance(event, Fact)),
    ]
    state = fold(enumerate(before[:3], start=1))
    assert state is not None
    after = [event for event in drive(state, definition, lambda: NOW, run) if isinstance(event, Fact)]
    assert after == before[3:]
