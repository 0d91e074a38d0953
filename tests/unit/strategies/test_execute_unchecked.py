from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.deliberation.calls import Call
from app.deliberation.strategies.execute import support, tally
from tests.fakes import Reply
from tests.unit.facts_of import CouncilScript, Run, run
from tests.unit.strategies.executing import GIVEN, asked, author_number, checked, code_of, reported, suite_of


def letters(call: Call, passes: str) -> Reply:
    return replace(CouncilScript()(call), text=reported(passes, "").model_dump_json())


def lettered(passes: Mapping[int, str], rounds: int = 1) -> Run:
    def script(call: Call) -> Reply:
        if call.check is None:
            return CouncilScript()(call)
        outcomes = passes[author_number(call)]
        return letters(call, outcomes if "s1-" in code_of(call) else "+" * len(outcomes))

    return run(asked(len(passes), rounds=rounds, tests=GIVEN, test_writers=0), script)


def test_a_program_for_which_there_was_no_time_is_unchecked_and_no_failure() -> None:
    ended = lettered({1: "??", 2: "-+", 3: "+?"}, rounds=0)
    verdict = ended.verdict
    assert [(each.agent_id, each.score) for each in verdict.ranking] == [
        ("dev-003", None),
        ("dev-001", None),
        ("dev-002", 0.0),
    ]
    assert ended.degraded == ("2 of 3 programs of round 0 are unchecked",)


def test_checked_programs_that_pass_rank_above_unchecked_ones() -> None:
    assert lettered({1: "??", 2: "++", 3: "+?"}, rounds=0).winner == "dev-002"


def test_a_program_known_to_fail_a_gate_ranks_by_that_though_another_was_not_run() -> None:
    tests = suite_of(3, gates=2)
    known, unknown, failing = checked("a", "-?+"), checked("b", "+?+"), checked("c", "--+")
    assert sorted((failing, known, unknown), key=lambda each: each.hard(tests)) == [unknown, known, failing]
    assert support(tests, [known, unknown]).scores == {"a": 0.0, "b": None}


def test_a_written_test_that_was_not_run_counts_neither_for_nor_against() -> None:
    found = support(suite_of(3, gates=1), [checked("a", "+?+"), checked("b", "++-")])
    assert found.scores == {"a": pytest.approx(1 / 2), "b": pytest.approx(1 / 2 * 2 / 3)}
    assert {each.answer for each in tally(suite_of(3), found)} == {
        "2 of 3 tests pass; 1 not run",
        "2 of 3 tests pass; not: t2",
    }


def test_tests_that_were_not_run_are_not_sent_to_repair() -> None:
    ended = lettered({1: "??", 2: "-+", 3: "+?"})
    assert {call.agent_id for call in ended.asked("repair")} == {"dev-002"}
    alone = lettered({1: "??"})
    assert alone.asked("repair") == []
