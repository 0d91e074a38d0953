"""The verdict on one test, from what the program's process returned or printed. No code of the program runs here.

Values are compared as JSON: numbers of which one is a float within TOLERANCE, all else exactly. Outputs are compared
line by line, without spaces at the end of a line and without empty lines at the end.
"""

import json
import math
import signal
from typing import Any, NamedTuple, cast

from serve_deployments.sandbox import zygote

TOLERANCE = 1e-6
"""How far a number may be from an expected one, relatively or absolutely, when one of them is a float."""

REASON_CHARS_MAX = 500
_SHOWN_CHARS_MAX = 200


class ProgramRun(NamedTuple):
    result: bytes
    printed: bytes
    exit_code: int
    exceeded: str

    @property
    def loaded(self) -> bool:
        return self.result.startswith(zygote.LOADED)


def failure(test: dict[str, Any], run: ProgramRun) -> str:
    if run.exceeded:
        return run.exceeded
    kind, _, text = run.result.removeprefix(zygote.LOADED).partition(b"\n")
    kind += b"\n"
    if kind == zygote.RAISED:
        return text.decode("utf-8", "replace")[:REASON_CHARS_MAX] or "it raised an error"
    if run.exit_code < 0:
        return f"ended by {signal.Signals(-run.exit_code).name} before the program was done"
    if run.exit_code > 0 or kind != (zygote.RETURNED if "call" in test else zygote.FINISHED):
        return f"the process ended with status {run.exit_code} before the program was done"
    return _of_value(test["expected"], text) if "call" in test else _of_output(test["stdout"], run.printed)


def _of_value(expected: object, text: bytes) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "the value is not JSON"
    if is_equal(value, expected):
        return ""
    return f"returned {_shown(text.decode('utf-8', 'replace'))}, not {_shown(json.dumps(expected))}"


def _of_output(expected: str | None, printed: bytes) -> str:
    text = printed.decode("utf-8", "replace")
    if expected is None or _lines(text) == _lines(expected):
        return ""
    return f"printed {_shown(json.dumps(text))}, not {_shown(json.dumps(expected))}"


def is_equal(value: object, expected: Any) -> bool:  # noqa: ANN401 -- any JSON value
    """Whether a JSON value is the expected one; 2 equals 2.0, and True equals no number."""
    match expected:
        case bool() | str() | None:
            return type(value) is type(expected) and value == expected
        case int() if type(value) is int:
            return value == expected
        case int() | float():
            return isinstance(value, int | float) and not isinstance(value, bool) and _is_close(value, expected)
        case list():
            items, wanted = cast("list[Any]", value), cast("list[Any]", expected)
            return isinstance(value, list) and len(items) == len(wanted) and all(map(is_equal, items, wanted))
        case _:
            fields = cast("dict[str, Any]", value)
            return (
                isinstance(value, dict)
                and fields.keys() == expected.keys()
                and all(is_equal(fields[key], expected_field) for key, expected_field in expected.items())
            )


def _is_close(value: float, expected: float) -> bool:
    try:
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # an integer beyond all floats
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
