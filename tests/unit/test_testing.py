from datetime import timedelta

import pytest

from app.deliberation.facts import CallFinished
from app.testing import FakeClock, Reply, ScriptedAgents, subject_matches
from tests.unit.facts_of import NOW, CouncilScript, accepted, answer, run, specification


@pytest.mark.parametrize(
    ("pattern", "subject", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
    ],
)
def test_a_subject_matches_a_pattern_as_nats_says(pattern: str, subject: str, matches: bool) -> None:
    assert subject_matches(pattern, subject) == matches


def test_scripted_agents_are_asked_once_and_answer_at_the_set_times_in_order() -> None:
    replies = {
        "s1-dev-001": Reply(text=answer("slow"), after_s=5),
        "s1-dev-002": Reply(text=answer("second"), place=2),
        "s1-dev-003": Reply(text=answer("first"), place=1),
    }
    clock = FakeClock(NOW)
    agents = ScriptedAgents(lambda call: replies[call.call_id], clock)
    facts = agents.deliberate([accepted(specification(strategy="independent"))])
    outcomes = [fact for fact in facts if isinstance(fact, CallFinished)]
    assert [fact.call_id for fact in outcomes] == ["s1-dev-003", "s1-dev-002", "s1-dev-001"]
    assert [(fact.ts - NOW).total_seconds() for fact in outcomes] == [0, 0, 5]
    assert [fact.duration_ms for fact in outcomes] == [0, 0, 5_000]
    assert [call.call_id for call in agents.calls] == list(replies)
    assert clock.now() == NOW + timedelta(seconds=5)


def test_the_clock_of_a_deliberation_stands_still_while_there_is_something_to_do() -> None:
    assert {fact.ts for fact in run(specification(), CouncilScript()).facts} == {NOW}
