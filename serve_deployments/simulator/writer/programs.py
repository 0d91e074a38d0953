"""Small Python programs about a few numbers, and tests of them.

Every program takes numbers or one list of them. The task's words decide what it computes; a wrong one has a typical
fault, such as a value left out.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

_TEMPLATE = '''\
def {name}(*values):
    """Compute the {label} of the values."""
    if len(values) == 1 and not isinstance(values[0], (int, float)):
        values = tuple(values[0])
    {body}
'''
_VALUES_MAX = 6
_VALUE_MAX = 20


@dataclass(frozen=True, slots=True)
class Operation:
    """A computation: the words that ask for it, its reference, and right and wrong function bodies."""

    label: str
    cue: str
    compute: Callable[[Sequence[int]], float]
    right: tuple[str, ...]
    wrong: tuple[str, ...]


_SUM = Operation(
    "sum",
    "sum|add|total|plus",
    sum,
    ("return sum(values)", "total = 0\nfor value in values:\n    total += value\nreturn total"),
    ("return sum(values[:-1])", "total = 1\nfor value in values:\n    total += value\nreturn total"),
)
_OPERATIONS = (
    Operation(
        "median",
        "median",
        statistics.median,
        ("import statistics\n\nreturn statistics.median(values)",),
        ("ordered = sorted(values)\nreturn ordered[len(ordered) // 2]", "return values[len(values) // 2]"),
    ),
    Operation(
        "maximum",
        "largest|max|highest|greatest",
        max,
        ("return max(values)", "return sorted(values)[-1]"),
        ("return values[-1]", "return max(0, *values)"),
    ),
    _SUM,
)


def operation(task: str) -> Operation:
    """The operation that a task names first; a sum when it names none."""
    found = ((re.search(rf"\b(?:{each.cue})", task, re.IGNORECASE), each) for each in _OPERATIONS)
    named = ((cue.start(), each) for cue, each in found if cue is not None)
    return min(named, key=lambda first: first[0], default=(0, _SUM))[1]


def program(name: str, computed: Operation, chance: Random, *, right: bool) -> str:
    """The source of a module that defines `name`."""
    body = chance.choice(computed.right if right else computed.wrong)
    return _TEMPLATE.format(name=name, label=computed.label, body=body.replace("\n", "\n    "))


def test(name: str, computed: Operation, chance: Random, *, right: bool) -> dict[str, str]:
    """A test's name and source; a wrong one expects a wrong number."""
    values = [chance.randint(-_VALUE_MAX, _VALUE_MAX) for _ in range(chance.randint(1, _VALUES_MAX))]
    expected = computed.compute(values) + (0 if right else 1)
    shown = ", ".join(map(str, values))
    return {"name": f"{name} of {shown}", "code": f"assert {name}({shown}) == {expected!r}"}
