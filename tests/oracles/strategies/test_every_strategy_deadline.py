from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

import pytest

from app.deliberation.facts import CallFinished, Completed, Fact, StageClosed, StageOpened, TimedOut
from tests.fakes import FakeClock
from tests.unit.facts_of import BROKEN, TIMEOUT_S, CouncilScript, Run, accepted, in_seconds, resumed
from tests.unit.strategies.every_strategy import WAYS, WRITING, Way, subsets

DEADLINE_AT = in_seconds(TIMEOUT_S)
EXHAUSTIVE_MAX = 3
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@dataclass(frozen=True, slots=True)
class Cut:
    facts: list[Fact]
    stage: StageOpened
    complete: bool

    @property
    def answered(self) -> set[str]:
        return {fact.call_id for fact in self.facts if isinstance(fact, CallFinished) and fact.answered}

    def concluded(self, after_s: float = 0) -> Run:
        silent = CouncilScript(silent=[call.call_id for call in self.stage.calls])
        return resumed(self.facts, silent, FakeClock(DEADLINE_AT + timedelta(seconds=after_s)))


def cuts(whole: Run) -> Iterator[Cut]:
    last: StageOpened | None = None
    for place, fact in enumerate(whole.facts):
        if isinstance(fact, StageClosed) and last is not None:
            yield Cut(whole.facts[: place + 1], last, complete=True)
        if not isinstance(fact, StageOpened):
            continue
        last = fact
        outcomes = whole.facts[place + 1 : place + 1 + len(fact.calls)]
        for there in _patterns([fact for fact in outcomes if isinstance(fact, CallFinished)]):
            complete = len(there) == len(fact.calls) and all(outcome.answered for outcome in there)
            yield Cut([*whole.facts[: place + 1], *there], fact, complete)


def _patterns(outcomes: Sequence[CallFinished]) -> Iterator[list[CallFinished]]:
    if len(outcomes) <= EXHAUSTIVE_MAX:
        for states in product(*[(outcome, failed(outcome), None) for outcome in outcomes]):
            yield [outcome for outcome in states if outcome]
        return
    for there in subsets(outcomes):
        yield list(there)


def failed(outcome: CallFinished) -> CallFinished:
    return outcome.model_copy(update={"text": None, "problem": BROKEN})


def concludes(way: Way, cut: Cut, whole: Run) -> None:
    ended = cut.concluded()
    added = ended.facts[len(cut.facts) :]
    assert ended.calls == [], "a call is made after the deadline"
    if not cut.answered:
        assert [type(fact) for fact in added] == [TimedOut]
        return
    assert {type(fact) for fact in added} <= {StageClosed, Completed} and isinstance(ended.end, Completed)
    assert ended.end.ts == DEADLINE_AT
    verdict = ended.verdict
    if way.strategy != "independent":
        writing = {call.call_id for call in whole.calls if call.output.kind in WRITING}
        assert verdict.content and verdict.call_id in writing & cut.answered
        assert verdict.winner == verdict.ranking[0].agent_id
    if cut.complete and cut.stage == whole.all(StageOpened)[-1]:
        assert (verdict, ended.completed.degraded) == (whole.verdict, whole.completed.degraded)
    else:
        opened = whole.all(StageOpened)
        first = opened[opened.index(cut.stage) + cut.complete]
        assert ended.cut[0] == (first.purpose, first.round, "deadline")
        assert ended.degraded[-1] == "deadline"


@every_way
def test_a_deadline_in_or_after_any_stage_keeps_the_answers_that_are_there(way: Way) -> None:
    for size in (1, 3):
        whole = way.run(size)
        for cut in cuts(whole):
            concludes(way, cut, whole)


@every_way
def test_a_deadline_that_must_fail_gives_no_verdict_in_any_stage(way: Way) -> None:
    asked = way.asked()
    constraints = asked.constraints.model_copy(update={"on_deadline": "fail"})
    must_fail = accepted(asked.model_copy(update={"constraints": constraints}))
    for cut in cuts(way.run()):
        added = Cut([must_fail, *cut.facts[1:]], cut.stage, cut.complete).concluded().facts[len(cut.facts) :]
        assert [type(fact) for fact in added] == [TimedOut]


@every_way
def test_a_successor_of_a_coordinator_that_died_at_the_deadline_writes_the_same_verdict(way: Way) -> None:
    for cut in list(cuts(way.run()))[::4]:
        first, second = cut.concluded(), cut.concluded(after_s=7)
        third = Cut(first.facts[:-1], cut.stage, cut.complete).concluded(after_s=7)
        assert {type(ended.end) for ended in (first, second, third)} == {type(first.end)}
        if isinstance(first.end, Completed):
            assert first.verdict == second.verdict == third.verdict
            assert first.completed.degraded == second.completed.degraded == third.completed.degraded


@every_way
def test_answers_that_are_late_are_missing_like_those_that_failed(way: Way) -> None:
    whole = way.run()
    for place, opened in enumerate(whole.facts):
        if not isinstance(opened, StageOpened):
            continue
        first, *others = [fact for fact in whole.facts[place:] if isinstance(fact, CallFinished)][: len(opened.calls)]
        late = Cut([*whole.facts[: place + 1], *others], opened, complete=False).concluded()
        lost = Cut([*whole.facts[: place + 1], failed(first), *others], opened, complete=False).concluded()
        assert type(late.end) is type(lost.end)
        if isinstance(late.end, Completed):
            assert late.verdict.model_copy(update={"calls": 0}) == lost.verdict.model_copy(update={"calls": 0})
            assert (late.degraded, late.cut) == (lost.degraded, lost.cut)
