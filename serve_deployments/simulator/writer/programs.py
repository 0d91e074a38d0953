"""Small Python programs about a few numbers, and tests of them.

Every program takes numbers or one list of them. The task's words decide what it computes; a wrong one leaves a value
out or is off by one.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

_TEMPLATE = '''\
def {name}(*values):
    """Compute the {function} of the values."""
    if len(values) == 1 and not isinstance(values[0], (int, float)):
        values = tuple(values[0])
    {body}
'''
_RIGHT = ("return {function}(values)", "result = {function}(values)\n    return result")
_WRONG = ("return {function}(values[:-1])", "result = {function}(values)\n    return result + 1")
_VALUES_MAX = 6
_VALUE_MAX = 20


@dataclass(frozen=True, slots=True)
class Operation:
    """A computation: the words that ask for it, its function, and the function's name in a program."""

    cue: str
    compute: Callable[[Sequence[int]], float]
    function: str


_SUM = Operation("sum|add|total|plus", sum, "sum")
_OPERATIONS = (
    Operation("median", statistics.median, "statistics.median"),
    Operation("largest|max|highest|greatest", max, "max"),
    _SUM,
)


def operation(task: str) -> Operation:
    """The operation that a task names first; a sum when it names none."""
    found = ((re.search(rf"\b(?:{each.cue})", task, re.IGNORECASE), each) for each in _OPERATIONS)
    named = ((cue.start(), each) for cue, each in found if cue is not None)
    return min(named, key=lambda first: first[0], default=(0, _SUM))[1]


def program(name: str, computed: Operation, chance: Random, *, right: bool) -> str:
    """The source of a module that defines `name`."""
    module, _, function = computed.function.rpartition(".")
    body = f"import {module}\n\n    " if module else ""
    body += chance.choice(_RIGHT if right else _WRONG).format(function=computed.function)
    return _TEMPLATE.format(name=name, function=function, body=body)


def test(name: str, computed: Operation, chance: Random, *, right: bool) -> dict[str, str]:
    """A test's name and source; a wrong one expects a wrong number."""
    values = [chance.randint(-_VALUE_MAX, _VALUE_MAX) for _ in range(chance.randint(1, _VALUES_MAX))]
    expected = computed.compute(values) + (0 if right else 1)
    shown = ", ".join(map(str, values))
    return {"name": f"{name} of {shown}", "code": f"assert {name}({shown}) == {expected!r}"}
