from app.deliberation.facts import StageOpened
from tests.fakes import FakeClock
from tests.unit.facts_of import TIMEOUT_S, in_seconds, resumed, run, specification

DEADLINE_AT = in_seconds(TIMEOUT_S)


def test_a_lone_answer_stands_unreviewed_and_names_the_stages_that_did_not_open() -> None:
    whole = run(specification())
    first = whole.all(StageOpened)[0]
    place = whole.facts.index(first)
    late = resumed(whole.facts[: place + 2], clock=FakeClock(DEADLINE_AT))
    assert (late.winner, late.content) == ("dev-001", "text of s1-dev-001")
    assert late.degraded == ("1 of 3 agents answered", "unreviewed", "deadline")
    assert late.cut == [("propose", 0, "deadline")]


def test_programs_that_were_not_checked_in_time_are_named() -> None:
    whole = run(specification(strategy="execute", rounds=0))
    place = next(i for i, fact in enumerate(whole.facts) if isinstance(fact, StageOpened) and fact.purpose == "check")
    late = resumed(whole.facts[:place], clock=FakeClock(DEADLINE_AT))
    assert late.degraded == ("3 of 3 programs of round 0 are unchecked", "deadline")
    assert late.cut == [("check", 0, "deadline")]
