"""The simulator's programs and tests: valid Python under the names of the task, mostly right, wrong by behaviour."""

import ast
import json
from typing import Any

import pytest

from app.deliberation import outputs
from app.deliberation.outputs import Output, Program, json_schema, parse_output
from app.deliberation.prompts import code as prompts
from serve_deployments.simulator.author import PURE_BEHAVIOURS, Author, Behaviour
from serve_deployments.simulator.dice import Dice
from serve_deployments.simulator.json_values import generate
from serve_deployments.simulator.reading import Reading
from tests.unit.facts_of import specification

NONCE = "0123456789ab"
TASKS = {
    "Write a function median(values).": "median",
    "The mean of a list: `def average(values): ...`": "average",
    "Find the largest of some numbers with biggest(numbers).": "biggest",
    "lowest(a, b, c) gives the smallest.": "lowest",
    "Implement add(a, b).": "add",
    "Summe zweier Zahlen.": "solve",
}


def said(kind: str, prompt: str, behaviour: Behaviour, seed: int, terse_words: int | None = None) -> Any:
    output = Output.model_validate({"kind": kind})
    author = Author(Reading(prompt, prompt), behaviour, Dice(seed), terse_words)
    text = json.dumps(generate(json_schema(output), Dice(seed), author))
    return parse_output(output, text)


def prompt(task: str, kind: str, given: tuple[Any, ...] = ()) -> str:
    made = specification(strategy="single").model_copy(update={"task": task})
    messages = prompts.program(made, given, 0, NONCE) if kind == "program" else prompts.tests(made, given, NONCE)
    return messages[-1].content


def passes(program: str, test: str) -> bool:
    names: dict[str, Any] = {}
    exec(program, names)
    try:
        exec(test, names)
    except (AssertionError, IndexError, ValueError, ArithmeticError):
        return False
    return True


@pytest.mark.parametrize("behaviour", PURE_BEHAVIOURS)
@pytest.mark.parametrize(("task", "name"), TASKS.items(), ids=TASKS.values())
def test_programs_and_tests_are_valid_and_use_the_names_of_the_task(task: str, name: str, behaviour: Behaviour) -> None:
    for seed in range(8):
        program = said("program", prompt(task, "program"), behaviour, seed).code
        assert f"def {name}(" in program
        ast.parse(program)
        written = said("tests", prompt(task, "tests"), behaviour, seed, terse_words=1).tests
        assert 3 <= len(written) <= 5 and len({test.code for test in written}) > 1
        assert all(name in test.code and ast.parse(test.code) for test in written)


@pytest.mark.parametrize("task", TASKS)
def test_the_excellent_are_right_and_their_tests_find_what_the_poor_do_wrong(task: str) -> None:
    found = 0
    for seed in range(8):
        right = said("program", prompt(task, "program"), Behaviour.EXCELLENT, seed).code
        wrong = said("program", prompt(task, "program"), Behaviour.POOR, seed).code
        written = said("tests", prompt(task, "tests"), Behaviour.EXCELLENT, seed).tests
        assert all(passes(right, test.code) for test in written)
        found += not all(passes(wrong, test.code) for test in written)
    assert found >= 4


def test_a_name_that_only_a_given_test_tells_is_used() -> None:
    given = (outputs.TestCase(name="one", code="assert sorted(total_of([1, 2])) == 3"),)
    assert "def total_of(" in said("program", prompt("Sum them up.", "program", given), Behaviour.EXCELLENT, 1).code


def test_a_repair_is_a_right_program_but_for_the_stubborn_who_keep_theirs() -> None:
    own = "def add(a, b):\n    return a - b"
    made = specification(strategy="single").model_copy(update={"task": "Implement add(a, b)."})
    failed = [(outputs.TestCase(name="sum", code="assert add(1, 2) == 3"), "AssertionError")]
    shown = prompts.repair(made, own, failed, "", NONCE)[-1].content
    for seed in range(6):
        assert passes(said("program", shown, Behaviour.EXCELLENT, seed).code, "assert add(1, 2) == add([1, 2]) == 3")
        kept = said("program", shown, Behaviour.STUBBORN, seed)
        assert isinstance(kept, Program) and kept.code == own
