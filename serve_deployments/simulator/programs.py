"""Small Python programs about a few numbers, and tests of them: what simulated agents write when code is asked for.

All programs take numbers or one list of them, whatever the task; what they compute is read off its words. A wrong one
is wrong in a way that people are: the last one left out, an even number forgotten.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serve_deployments.simulator.dice import Dice

_TEMPLATE = '''\
def {name}(*values):
    """{summary}"""
    if len(values) == 1 and not isinstance(values[0], (int, float)):
        values = tuple(values[0])
    {body}
'''
_VALUES_MAX = 6
_VALUE_MAX = 20


@dataclass(frozen=True, slots=True)
class Operation:
    """What a program computes: how a task says it, what is right, and sources of both kinds."""

    summary: str
    cue: re.Pattern[str]
    of: Callable[[Sequence[int]], float]
    right: tuple[str, ...]
    wrong: tuple[str, ...]


def _operation(
    summary: str, cue: str, of: Callable[[Sequence[int]], float], right: Sequence[str], wrong: Sequence[str]
) -> Operation:
    return Operation(summary, re.compile(rf"\b(?:{cue})", re.IGNORECASE), of, tuple(right), tuple(wrong))


_LARGEST = _operation(
    "The largest of the values.",
    "largest|maxim|max|highest|greatest",
    max,
    [
        "return max(values)",
        "best = values[0]\nfor value in values:\n    if value > best:\n        best = value\nreturn best",
        "return sorted(values)[-1]",
    ],
    [
        "return values[-1]",
        "best = 0\nfor value in values:\n    if value > best:\n        best = value\nreturn best",
        "return max(values[:-1])",
    ],
)
_SMALLEST = _operation(
    "The smallest of the values.",
    "smallest|minim|min|lowest|least",
    min,
    ["return min(values)", "return sorted(values)[0]"],
    ["return values[0]", "best = 0\nfor value in values:\n    if value < best:\n        best = value\nreturn best"],
)
_MEDIAN = _operation(
    "The median of the values.",
    "median",
    statistics.median,
    [
        "import statistics\n\nreturn statistics.median(values)",
        "ordered = sorted(values)\nmiddle = len(ordered) // 2\nif len(ordered) % 2:\n    return ordered[middle]\n"
        "return (ordered[middle - 1] + ordered[middle]) / 2",
    ],
    ["ordered = sorted(values)\nreturn ordered[len(ordered) // 2]", "return values[len(values) // 2]"],
)
_MEAN = _operation(
    "The arithmetic mean of the values.",
    "mean|average",
    lambda values: sum(values) / len(values),
    ["return sum(values) / len(values)", "import statistics\n\nreturn statistics.fmean(values)"],
    ["return sum(values) // len(values)", "return sum(values) / (len(values) + 1)"],
)
_SUM = _operation(
    "The sum of the values.",
    "sum|add|total|plus",
    sum,
    [
        "return sum(values)",
        "total = 0\nfor value in values:\n    total += value\nreturn total",
        "import functools\nimport operator\n\nreturn functools.reduce(operator.add, values, 0)",
    ],
    [
        "return sum(values[:-1])",
        "total = 1\nfor value in values:\n    total += value\nreturn total",
        "total = 0\nfor value in values:\n    total = value\nreturn total",
    ],
)
_OPERATIONS = (_MEDIAN, _MEAN, _LARGEST, _SMALLEST, _SUM)


def operation(task: str) -> Operation:
    """What a task asks to compute, by its words; a sum when they say nothing."""
    found = ((cue.start(), each) for each in _OPERATIONS if (cue := each.cue.search(task)))
    return min(found, key=lambda first: first[0], default=(0, _SUM))[1]


def program(name: str, computed: Operation, dice: Dice, *, right: bool) -> str:
    """A module that defines `name`."""
    body = dice.pick(computed.right if right else computed.wrong)
    return _TEMPLATE.format(name=name, summary=computed.summary, body=body.replace("\n", "\n    "))


def test(name: str, computed: Operation, dice: Dice, *, right: bool) -> tuple[str, str]:
    """A test's name and source; one that is not right expects another number."""
    values = [dice.between(-_VALUE_MAX, _VALUE_MAX) for _ in range(dice.between(1, _VALUES_MAX))]
    expected = computed.of(values) + (0 if right else 1)
    shown = ", ".join(map(str, values))
    return f"{name} of {shown}", f"assert {name}({shown}) == {expected!r}"
