import ast
import json
from random import Random
from typing import Any

import pytest

from app.deliberation import outputs
from app.deliberation.outputs import Output, json_schema, parse_output
from app.deliberation.prompts import code as prompts
from serve_deployments.sandbox.verdict import is_equal
from serve_deployments.simulator.writer import programs
from serve_deployments.simulator.writer.outputs import Behaviour, OutputWriter
from serve_deployments.simulator.writer.prompt import PromptReader
from tests.unit.facts_of import specification

NONCE = "0123456789ab"
TASKS = {
    "Write a function median(values).": "median",
    "The middle of a list: `def middle(values): ...`, its median": "middle",
    "Find the largest of some numbers with biggest(numbers).": "biggest",
    "plus(a, b, c) gives the total.": "plus",
    "Implement add(a, b).": "add",
    "Summe zweier Zahlen.": "solve",
    "Write a function that merges two sorted lists.": "solve",
}
# One call and its result for each exercise, worked out by hand.
EXERCISES: dict[str, tuple[str, list[Any], Any]] = {
    "Write fib(n), the n-th Fibonacci number.": ("fib", [20], 6765),
    "Write a function that merges two sorted lists.": ("solve", [[1, 5], [2, 6]], [1, 2, 5, 6]),
    "Write median(values): the median of a list of numbers.": ("median", [[4, 1, 2, 3]], 2.5),
    "Find the largest number.": ("solve", [[2, 9, 4]], 9),
    "Implement add(a, b).": ("add", [40, 2], 42),
}
UNKNOWN = ("Parse a date written in words.", "Write parse(text).", "Find the greatest common divisor.")


def written(kind: str, prompt: str, behaviour: Behaviour, seed: int, words_max: int | None = None) -> Any:
    output = Output.model_validate({"kind": kind})
    writer = OutputWriter(PromptReader((prompt,)), behaviour, Random(seed), words_max)
    return parse_output(output, json.dumps(writer.document(json_schema(output))))


def prompt(task: str, kind: str, given: tuple[Any, ...] = ()) -> str:
    made = specification(strategy="single").model_copy(update={"task": task})
    messages = prompts.program(made, given, 0, NONCE) if kind == "program" else prompts.tests(made, given, NONCE)
    return messages[-1].content


def passes(program: str, test: outputs.TestCase) -> bool:
    names: dict[str, Any] = {}
    exec(program, names)
    try:
        value = names[str(test.call)](*test.arguments)
    except (IndexError, ValueError, ArithmeticError):
        return False
    return is_equal(json.loads(json.dumps(value)), test.expected)


@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize(("task", "name"), TASKS.items(), ids=TASKS.values())
def test_programs_and_tests_are_valid_and_use_the_names_of_the_task(task: str, name: str, behaviour: Behaviour) -> None:
    for seed in range(8):
        program = written("program", prompt(task, "program"), behaviour, seed).code
        assert f"def {name}(" in program
        ast.parse(program)
        tests = written("tests", prompt(task, "tests"), behaviour, seed, words_max=1).tests
        assert 3 <= len(tests) <= 5 and {test.call for test in tests} == {name}


@pytest.mark.parametrize("task", TASKS)
def test_excellent_programs_pass_excellent_tests_and_poor_ones_fail_them(task: str) -> None:
    found = 0
    for seed in range(8):
        right = written("program", prompt(task, "program"), Behaviour.EXCELLENT, seed).code
        wrong = written("program", prompt(task, "program"), Behaviour.POOR, seed).code
        tests = written("tests", prompt(task, "tests"), Behaviour.EXCELLENT, seed).tests
        assert all(passes(right, test) for test in tests)
        found += not all(passes(wrong, test) for test in tests)
    assert found >= 4


@pytest.mark.parametrize("task", EXERCISES, ids=lambda text: text[:24])
def test_a_right_program_solves_the_exercise(task: str) -> None:
    name, arguments, expected = EXERCISES[task]
    test = outputs.TestCase(name="t", call=name, arguments=arguments, expected=expected)
    for seed in range(4):
        assert passes(written("program", prompt(task, "program"), Behaviour.EXCELLENT, seed).code, test)


def test_every_exercise_has_a_task_here() -> None:
    assert len(EXERCISES) == len(programs.EXERCISES)


@pytest.mark.parametrize("task", UNKNOWN)
@pytest.mark.parametrize("behaviour", Behaviour)
def test_a_program_for_an_unknown_task_passes_no_test(task: str, behaviour: Behaviour) -> None:
    program = written("program", prompt(task, "program"), behaviour, 1).code
    assert "NotImplementedError" in program and len(written("tests", prompt(task, "tests"), behaviour, 1).tests) == 1


def test_a_given_test_names_the_entry_point() -> None:
    given = (outputs.TestCase(name="one", call="total_of", arguments=[[1, 2]], expected=3),)
    assert "def total_of(" in written("program", prompt("Sum them up.", "program", given), Behaviour.EXCELLENT, 1).code


def test_an_excellent_repair_is_right() -> None:
    own = "def add(a, b):\n    return a - b"
    made = specification(strategy="single").model_copy(update={"task": "Implement add(a, b)."})
    failed = [(outputs.TestCase(name="sum", call="add", arguments=[1, 2], expected=3), "returned -1, not 3")]
    shown = prompts.repair(made, own, failed, "", NONCE)[-1].content
    for seed in range(6):
        assert passes(written("program", shown, Behaviour.EXCELLENT, seed).code, failed[0][0])
