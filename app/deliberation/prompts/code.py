"""Prompts of writing a program, writing tests, and mending a program that fails some."""

import json
from collections.abc import Sequence

from app.deliberation.calls import ChatMessage
from app.deliberation.choice.anonymity import fence
from app.deliberation.outputs import TestCase
from app.deliberation.prompts.form import messages
from app.deliberation.specification import Specification

TESTS_ASKED = 8
_TEST_CHARS_MAX = 4_000

# The first agent gets no hint; each later one gets another approach.
_APPROACHES = (
    "",
    "Begin from the edge cases: what is empty, extreme, repeated or malformed.",
    "Begin from the simplest code that is right, and optimise only what the task demands.",
    "Begin from the data structure that makes the rest short.",
    "Begin from the invariants, and let the code follow from them.",
    "Begin from two different algorithms, compare them in a few lines, and write the better one.",
)

_GROUND = """\
The program is one Python module with the standard library and no network, environment or other process. Its functions \
are called by the names that the task and its tests give; where they give none, its entry point is the function \
`solve`. A result is returned, not printed, and is JSON: a number, text, boolean, None, list, or dict with texts as \
keys; a tuple is read as a list. Only where the task demands standard input does the program run as a script, which \
reads it and prints the result."""
_PROGRAM_FORM = """\
{"reasoning": your reasons, briefly; "code": the whole module, as plain source without Markdown; "confidence": \
0 to 100}"""
_TESTS_FORM = """\
{"reasoning": what is worth testing, briefly; "tests": [{"name": what is tested, in a few words; "call": the \
function's name; "arguments": its arguments, in order; "expected": the result}]}
For example {"name": "two lists", "call": "merge", "arguments": [[1, 3], [2]], "expected": [1, 2, 3]}. A test of a \
script has "stdin" and "stdout" in place of the call: {"name": "a sum", "stdin": "1 2\\n", "stdout": "3\\n"}."""


def _required_tests(tests: Sequence[TestCase], nonce: str) -> str:
    if not tests:
        return ""
    return f"# Tests that have to pass\n{fence(_listing(tests), nonce)}"


def _listing(tests: Sequence[TestCase]) -> str:
    return "\n\n".join(
        f"# {test.name}\n{json.dumps(test.data, ensure_ascii=False)[:_TEST_CHARS_MAX]}" for test in tests
    )


def program(specification: Specification, cases: Sequence[TestCase], place: int, nonce: str) -> tuple[ChatMessage, ...]:
    approach = _APPROACHES[place % len(_APPROACHES)]
    return messages(
        specification,
        _required_tests(cases, nonce),
        f"# Your work: write a program\nSolve the task in code, on your own and completely. {_GROUND}",
        f"# Your reply\n{_PROGRAM_FORM}",
        f"# Approach\n{approach}" if approach else "",
    )


def tests(specification: Specification, cases: Sequence[TestCase], nonce: str) -> tuple[ChatMessage, ...]:
    return messages(
        specification,
        _required_tests(cases, nonce),
        f"# Your work: write tests\nOthers write the program; you write at most {TESTS_ASKED} tests of it, without "
        f"seeing any. {_GROUND} A test is data, not code: a call with arguments and the expected result, as JSON "
        "(`null` is None). It passes if the results are equal, and floats within 1e-6. Test only what follows from the "
        "task: whoever reads it differently is not wrong. Work out by hand what is expected. One thing for each test: "
        "the common case first, then the edges.",
        f"# Your reply\n{_TESTS_FORM}",
    )


def repair(
    specification: Specification, code: str, failed: Sequence[tuple[TestCase, str]], fault: str, nonce: str
) -> tuple[ChatMessage, ...]:
    result = fault or "\n\n".join(f"{_listing([test])}\n# fails: {reason}" for test, reason in failed)
    return messages(
        specification,
        f"Your program:\n{fence(code, nonce)}",
        f"What came of it:\n{fence(result, nonce)}",
        f"# Your work: repair\nAbove are your own program, and what came of running it. {_GROUND} Find the cause, and "
        "mend the program, not the symptom: what is written for a test alone is wrong. A test may be wrong too, for "
        "others wrote it; if the task speaks for your program, return it unchanged and say why.",
        f"# Your reply\n{_PROGRAM_FORM}",
    )
