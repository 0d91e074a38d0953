from collections.abc import Callable, Iterable
from random import Random

import pytest

from app.deliberation.calls import Call
from app.deliberation.errors import InvalidOutput
from app.deliberation.facts import Completed, End, Failed, Verdict
from app.deliberation.outputs import parse_output
from tests.fakes import Reply
from tests.oracles.strategies.malformed_texts import MALFORMED
from tests.unit.facts_of import CouncilScript, Run, run
from tests.unit.strategies.every_strategy import (
    WAYS,
    WRITING,
    Script,
    Way,
    failing,
    rewriting,
    stages,
    subsets,
)

EXHAUSTIVE_MAX = 6
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def patterns(calls: list[Call]) -> Iterable[tuple[Call, ...]]:
    if len(calls) <= EXHAUSTIVE_MAX:
        return list(subsets(calls))[1:]
    draw = Random(calls[0].call_id)
    others = [tuple(draw.sample(calls, draw.randrange(2, len(calls)))) for _ in range(12)]
    return [*((call,) for call in calls), *(tuple(each for each in calls if each != call) for call in calls), *others]


def stumbling(script: Script, calls: Iterable[Call]) -> Script:
    ids = {call.call_id for call in calls}
    return failing(script, lambda call: call.call_id in ids)


def silenced(script: Script, ids: set[str]) -> Script:
    return lambda call: Reply() if call.call_id in ids else script(call)


def answered(ended: Run, script: Script) -> set[str]:
    return {call.call_id for call in ended.calls if call.output.kind in WRITING and script(call).text is not None}


def ends_well(way: Way, ended: Run, script: Script) -> None:
    assert [fact for fact in ended.facts if isinstance(fact, End)] == [ended.end]
    written = answered(ended, script)
    if isinstance(ended.end, Failed):
        assert not written, "failed although there is an answer"
        assert ended.end.problem is not None and ended.end.problem.code == "no_answers"
        return
    assert isinstance(ended.end, Completed)
    found = ended.verdict
    if any(script(call).text is None for call in ended.calls):
        assert ended.degraded, "something failed and nothing is reported"
    if way.strategy != "independent":
        assert found.content and found.call_id in written and found.winner is not None
    assert [standing.rank for standing in found.ranking] == list(range(1, len(found.ranking) + 1))
    assert all(standing.score is None or 0 <= standing.score <= 1 for standing in found.ranking)
    assert found.calls == ended.end.usage.calls


@every_way
def test_every_pattern_of_failed_calls_in_any_stage_comes_to_a_verdict_if_there_is_an_answer(way: Way) -> None:
    for size in (1, 2, 3):
        for calls in stages(way.run(size)):
            for stumbles in patterns(calls):
                script = stumbling(way.script(), stumbles)
                ends_well(way, run(way.asked(size), script), script)


@every_way
def test_failures_in_all_stages_of_larger_councils_come_to_a_verdict_too(way: Way) -> None:
    def unlucky(size: int, rate: float) -> Script:
        return failing(way.script(), lambda call: Random(f"{size} {call.call_id}").random() < rate)

    for size, rate in ((4, 0.2), (4, 0.8), (5, 0.4), (5, 0.6), (7, 0.5), (9, 0.8)):
        script = unlucky(size, rate)
        ends_well(way, run(way.asked(size, rounds=2), script), script)


@every_way
def test_a_member_that_always_fails_is_reported(way: Way) -> None:
    for agent in ("dev-001", "dev-006"):
        script = failing(way.script(), lambda call, agent=agent: call.agent_id == agent)
        ends_well(way, run(way.asked(6), script), script)


@every_way
def test_agents_that_never_answer_in_a_later_stage_count_as_if_they_had_failed(way: Way) -> None:
    for calls in stages(way.run())[1:]:
        silent = silenced(way.script(), {call.call_id for call in calls})
        found, reasons = decided(run(way.asked(), stumbling(way.script(), calls)))
        assert decided(run(way.asked(), silent)) == (found, (*reasons, "deadline"))


def decided(ended: Run) -> tuple[Verdict | str, tuple[str, ...]]:
    if isinstance(ended.end, Completed):
        return ended.verdict.model_copy(update={"calls": 0}), ended.degraded
    assert ended.end.problem is not None
    return ended.end.problem.code, ()


def enthusiastic(script: Script) -> Script:
    judges = CouncilScript(score=lambda _: 10)
    return lambda call: judges(call) if call.output.kind in ("score", "pair", "choice") else script(call)


@every_way
def test_a_missing_ballot_is_never_counted_as_zero(way: Way) -> None:
    perfect = enthusiastic(way.script())
    for size in (2, 3):
        whole = run(way.asked(size), perfect)
        scores = {standing.score for standing in whole.verdict.ranking}
        for purpose, calls in zip(whole.purposes, stages(whole), strict=True):
            for stumbles in patterns(calls) if purpose in ("score", "judge") else ():
                ended = run(way.asked(size), stumbling(perfect, stumbles))
                assert {standing.score for standing in ended.verdict.ranking} <= {*scores, None}
                assert not ended.verdict.margin
                assert any("missing" in reason or "unscored" in reason for reason in ended.degraded)


def broken(call: Call, text: str, form: Callable[[str], str]) -> str | None:
    """The misshapen text as a record; None where the form breaks nothing of this kind, as a confidence of null."""
    misshapen = form(text)
    try:
        parse_output(call.output, misshapen)
    except InvalidOutput:
        return misshapen
    return None


def test_every_malformed_text_is_refused_for_every_kind_of_output() -> None:
    examples = {
        call.output.kind: (call, way.script()(call).text or "")
        for way in WAYS.values()
        for calls in stages(way.run(3))
        for call in calls
        if call.output.kind != "report"
    }
    for name, form in MALFORMED.items():
        kinds = {kind for kind, (call, text) in examples.items() if broken(call, text, form) is not None}
        assert kinds, f"nothing breaks when {name}"


@every_way
def test_an_answer_that_breaks_its_form_is_missing_as_if_its_call_had_failed(way: Way) -> None:
    forms = list(MALFORMED.values())

    def misshapen(call: Call, text: str) -> str:
        drawn = Random(call.call_id).sample(forms, len(forms))
        return next(found for form in drawn if (found := broken(call, text, form)) is not None)

    for calls in stages(way.run(3)):
        writers = [call for call in calls if call.output.kind != "report"]
        for chosen in (writers[:1], writers):
            ids = {call.call_id for call in chosen}
            script = rewriting(
                way.script(), lambda call, text, ids=ids: misshapen(call, text) if call.call_id in ids else None
            )
            assert decided(run(way.asked(3), script)) == decided(run(way.asked(3), stumbling(way.script(), chosen)))
