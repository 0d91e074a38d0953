from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.deliberation.calls import Call
from app.deliberation.facts import CallFinished, Fact, StageOpened
from tests.fakes import Reply
from tests.unit.facts_of import Run, resumed, run
from tests.unit.strategies.every_strategy import WAYS, Script, Way, failing, transcript

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
with_failures = pytest.mark.parametrize("rate", [0.0, 0.3], ids=["all answer", "some fail"])


def sometimes_failing(way: Way, rate: float) -> Script:
    return failing(way.script(), lambda call: Random(f"fails {call.call_id}").random() < rate)


def arriving(script: Script, seed: int) -> Script:
    def scripted(call: Call) -> Reply:
        reply = script(call)
        draw = Random(f"{seed} {call.call_id}")
        after_s = draw.choice((0.0, draw.random()))
        return Reply(text=reply.text, problem=reply.problem, usage=reply.usage, after_s=after_s, place=draw.random())

    return scripted


@every_way
@with_failures
def test_the_same_seed_and_answers_give_the_same_transcript_in_any_order_of_arrival(way: Way, rate: float) -> None:
    script = sometimes_failing(way, rate)
    straight = transcript(run(way.asked(4), script).facts)

    @settings(max_examples=3, deadline=None, database=None)
    @given(seed=st.integers(0, 2**32))
    def shuffled(seed: int) -> None:
        assert transcript(run(way.asked(4), arriving(script, seed)).facts) == straight

    shuffled()


@every_way
@with_failures
def test_every_prefix_of_the_log_leads_to_the_same_end_without_repeated_calls(way: Way, rate: float) -> None:
    script = sometimes_failing(way, rate)
    whole = run(way.asked(3), script)
    for cut in range(1, len(whole.facts) + 1):
        again = resumed(whole.facts[:cut], script)
        assert again.facts == whole.facts
        made_once(whole, whole.facts[:cut], again)


@every_way
def test_a_stage_continues_from_any_recorded_half(way: Way) -> None:
    script = sometimes_failing(way, 0.1)
    whole = run(way.asked(5), script)
    for stage in whole.all(StageOpened):
        before = whole.facts[: whole.facts.index(stage) + 1]
        draw = Random(f"half of {stage.stage}")
        outcomes = [fact for fact in whole.all(CallFinished) if fact.stage == stage.stage]
        known = [*before, *draw.sample(outcomes, len(outcomes) // 2)]
        again = resumed(known, script)
        assert transcript(again.facts) == transcript(whole.facts)
        made_once(whole, known, again)


def made_once(whole: Run, known: list[Fact], again: Run) -> None:
    recorded = {fact.call_id for fact in known if isinstance(fact, CallFinished)}
    made = [call.call_id for call in again.calls]
    assert recorded.isdisjoint(made), "a recorded call is asked again"
    assert len(set(made)) == len(made)
    assert recorded | set(made) == {call.call_id for call in whole.calls}
