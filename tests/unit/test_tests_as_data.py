import json
import math
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from app.deliberation import outputs
from app.deliberation.calls import Check
from app.deliberation.errors import InvalidOutput
from app.deliberation.outputs import TEST_CHARS_MAX, TEST_DEPTH_MAX, Output, json_schema, parse_output

OUTPUT = Output(kind="tests")
CALL: dict[str, Any] = {
    "name": "two lists",
    "call": "merge",
    "arguments": [[1, 3], {"a": None}],
    "expected": [2.5, True],
}
SCRIPT: dict[str, Any] = {"name": "a sum", "stdin": "1 2\n", "stdout": "3\n"}


def parsed(*tests: object) -> tuple[outputs.TestCase, ...]:
    found = parse_output(OUTPUT, json.dumps({"reasoning": "r", "tests": tests}))
    assert isinstance(found, outputs.Tests)
    return found.tests


def test_both_forms_are_read_and_satisfy_the_engines_schema() -> None:
    assert [test.data for test in parsed(CALL, SCRIPT)] == [
        {"call": "merge", "arguments": [[1, 3], {"a": None}], "expected": [2.5, True]},
        {"stdin": "1 2\n", "stdout": "3\n"},
    ]
    Draft202012Validator(json_schema(OUTPUT)).validate({"reasoning": "r", "tests": [CALL, SCRIPT]})


def test_a_test_survives_its_way_to_a_replica() -> None:
    tests = parsed(CALL, SCRIPT, {**CALL, "arguments": [], "expected": None})
    check = Check(code="x", tests=tests, timeout_s=1, memory_mb=64)
    assert Check.model_validate_json(check.model_dump_json()) == check


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else 1


BOTH = "a test has `call`, `arguments` and `expected`, or `stdin` and `stdout`"
LARGE = "at most 131,072 characters and 16 levels"
FAULTS: dict[str, tuple[object, str]] = {
    "a script in Python": ({"name": "n", "code": "assert f() == 1"}, "code: Extra inputs"),
    "a name alone": ({"name": "n"}, BOTH),
    "no expected value": ({"name": "n", "call": "f", "arguments": []}, BOTH),
    "no output": ({"name": "n", "stdin": ""}, BOTH),
    "both forms": ({**CALL, **SCRIPT}, BOTH),
    "a call with an input": ({**CALL, "stdin": ""}, BOTH),
    "an input with a value": ({**SCRIPT, "expected": 1}, BOTH),
    "an input with a function": ({**SCRIPT, "call": "f"}, BOTH),
    "an expression": ({**CALL, "call": "Solution().merge"}, "call: String should match"),
    "an argument alone": ({**CALL, "arguments": 1}, "arguments: Input should be a valid"),
    "17 arguments": ({**CALL, "arguments": [0] * 17}, "arguments: .*at most 16"),
    "a long name": ({**CALL, "name": "n" * (TEST_CHARS_MAX + 1)}, "name: .*at most 131072"),
    "a long value": ({**CALL, "expected": "x" * TEST_CHARS_MAX}, LARGE),
    "a long input": ({**SCRIPT, "stdin": "x" * TEST_CHARS_MAX}, LARGE),
    "a deep value": ({**CALL, "expected": nested(TEST_DEPTH_MAX + 1)}, LARGE),
    "a deep argument": ({**CALL, "arguments": [{"a": nested(TEST_DEPTH_MAX)}]}, LARGE),
    "no number": ({**CALL, "expected": math.nan}, "every number of a test is finite"),
    "an infinite number": ({**CALL, "arguments": [[-math.inf]]}, "every number of a test is finite"),
}


@pytest.mark.parametrize(("test", "fault"), FAULTS.values(), ids=FAULTS)
def test_another_form_is_refused_with_the_place_and_the_form_that_is_read(test: object, fault: str) -> None:
    with pytest.raises(InvalidOutput, match=rf"^tests\.0.*{fault}"):
        parsed(test)
    with pytest.raises(ValidationError):
        outputs.TestCase.model_validate(test)
