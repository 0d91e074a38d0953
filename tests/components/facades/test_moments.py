"""Moments of every strategy, in every way that a deliberation may go and end."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.deliberation.contributions import calls
from app.deliberation.errors import JournalUnavailable
from app.deliberation.facts import CallDelta, CallStarted, Fact
from app.facades.moments import (
    Began,
    Ended,
    Interrupted,
    Moment,
    StageBegan,
    StageEnded,
    Telling,
    TextBegan,
    TextEnded,
    TextGrew,
)
from app.facades.summaries import summary
from tests.components.facades.moments_of import told
from tests.unit.facts_of import ID
from tests.unit.strategies.stories import STORIES, events_of, story, texts_of


def check_nesting(moments: Sequence[Moment]) -> None:
    stage: int | None = None
    texts: set[str] = set()
    for each in moments:
        match each:
            case StageBegan(_, opened):
                assert stage is None
                stage = opened.stage
            case TextBegan(_, call):
                assert call.opened.stage == stage and call.planned.call_id not in texts
                texts.add(call.planned.call_id)
            case TextGrew(_, call):
                assert call.planned.call_id in texts
            case TextEnded(_, call):
                texts.remove(call.planned.call_id)
            case StageEnded(_, opened):
                assert opened.stage == stage and not texts
                stage = None
            case _:
                pass
    assert stage is None and not texts


@pytest.mark.parametrize("name", STORIES)
def test_every_part_that_begins_ends_and_the_end_is_last(name: str) -> None:
    for events in (story(name), list(events_of(story(name)))):
        moments = told(events)
        assert isinstance(moments[0], Began) and isinstance(moments[-1], Ended)
        assert sum(isinstance(each, Ended) for each in moments) == 1
        check_nesting(moments)


@pytest.mark.parametrize("name", STORIES)
def test_an_interruption_at_any_event_closes_every_part_before_its_error(name: str) -> None:
    facts = list(events_of(story(name)))
    error = JournalUnavailable("away")
    for length in range(0, len(facts), 1 + len(facts) // 25):
        telling = Telling()
        moments = told(facts[:length], telling)
        if not telling.ended:
            moments += telling.interrupted(error)
            assert isinstance(moments[-1], Interrupted) and moments[-1].error is error
        check_nesting(moments)


@pytest.mark.parametrize("name", STORIES)
def test_events_that_come_again_tell_nothing(name: str) -> None:
    facts: list[tuple[int, Fact]] = list(enumerate(story(name), start=1))
    telling = Telling()
    moments: list[Moment] = []
    for place, (sequence, fact) in enumerate(facts):
        moments += telling.tell(fact, sequence)
        for earlier, again in facts[max(0, place - 3) : place + 1]:
            assert list(telling.tell(again, earlier)) == []
    assert moments == told(fact for _, fact in facts)


@pytest.mark.parametrize("name", STORIES)
def test_pieces_say_what_the_call_recorded_wherever_views_begin(name: str) -> None:
    facts = story(name)
    wanted = texts_of(facts)
    for moment in told(events_of(facts)):
        if isinstance(moment, TextEnded) and moment.cut is None and moment.told and moment.call.finished is not None:
            assert moment.told == wanted[moment.call.planned.call_id]


def test_a_repeated_attempt_begins_its_text_anew() -> None:
    facts = story("single: completed")
    (call,) = [each.planned for moment in told(facts) if isinstance(moment, Ended) for each in calls(moment.state)]
    common: dict[str, Any] = {
        "deliberation_id": ID,
        "ts": facts[0].ts,
        "call_id": call.call_id,
        "agent_id": call.agent_id,
    }
    started = [CallStarted(**common, role=call.role, model="m", attempt=attempt) for attempt in (1, 2)]
    first = CallDelta(**common, attempt=1, offset=0, text="one")
    missing = CallDelta(**common, attempt=1, offset=7, text="gap")
    second = CallDelta(**common, attempt=2, offset=0, text="two")
    late = CallDelta(**common, attempt=1, offset=3, text="late")
    telling = Telling()
    told(facts[:2], telling)
    views = [started[0], first, first, missing, started[1], late, second]
    found = [each for view in views for each in telling.tell(view, 99)]
    assert [type(each) for each in found] == [TextBegan, TextGrew, TextEnded, TextBegan, TextGrew]
    assert [each.piece for each in found if isinstance(each, TextGrew)] == ["one", "two"]


@pytest.mark.parametrize("name", STORIES)
def test_every_outcome_has_a_summary_without_letters(name: str) -> None:
    for moment in told(story(name)):
        if isinstance(moment, TextEnded):
            text = summary(moment.call, moment.state.specification.constraints)
            head, _, said = text.partition("\n\n")
            assert head == f"**{moment.call.planned.agent_id}, {moment.call.opened.purpose}**" and said
            assert not any(f"- {letter}:" in said for letter in moment.call.planned.labels)
