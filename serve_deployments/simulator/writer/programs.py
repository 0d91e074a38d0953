"""Small Python programs for common exercises, and tests of them.

A task's words decide which exercise it is. A wrong program leaves a value out or is off by one. The simulator has no
program for any other task: a program that computes something else must not pass tests that expect the same.
"""

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any

_UNKNOWN = "the simulator has no program for this task"
_ENDINGS = ("return {result}", "result = {result}\n    return result")
_TESTS_MIN, _TESTS_MAX = 3, 5
_FLAT = "if len(values) == 1 and not isinstance(values[0], (int, float)):\n        values = tuple(values[0])\n    "


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task that has a program: the words that name it, the program's parts, and some cases (arguments and result).

    `slip` stands for SLIP in the steps or the result of a wrong program; it is left out of a right one.
    """

    cue: str
    parameters: str
    result: str
    slip: str
    cases: tuple[tuple[list[Any], Any], ...]
    steps: str = ""


# Of two that begin at the same word of a task, the first counts.
EXERCISES = (
    Exercise(
        cue="fib",
        parameters="n",
        steps="first, second = 0, 1\n    for _ in range(nSLIP):\n        first, second = second, first + second\n    ",
        result="first",
        slip=" + 1",
        cases=(([0], 0), ([1], 1), ([2], 1), ([7], 13), ([10], 55), ([30], 832040)),
    ),
    Exercise(
        cue="factorial",
        parameters="n",
        steps="import math\n\n    ",
        result="math.prod(range(1, n + 1SLIP))",
        slip=" - 1",
        cases=(([0], 1), ([1], 1), ([3], 6), ([5], 120), ([10], 3628800)),
    ),
    Exercise(
        cue="gcd|greatest common divisor",
        parameters="a, b",
        steps="while b:\n        a, b = b, a % b\n    ",
        result="aSLIP",
        slip=" + 1",
        cases=(([12, 18], 6), ([7, 5], 1), ([0, 4], 4), ([9, 9], 9), ([100, 75], 25)),
    ),
    Exercise(
        cue="prime",
        parameters="n",
        result="n > 1 and all(n % each for each in range(2, int(n**0.5) + 1SLIP))",
        slip=" - 1",
        cases=(([4], False), ([9], False), ([25], False), ([2], True), ([97], True), ([1], False)),
    ),
    Exercise(
        cue="fizz ?buzz",
        parameters="n",
        result='"Fizz" * (n % 3 == 0) + "Buzz" * (n % 5 == 0SLIP) or str(n)',
        slip=" and n % 3 > 0",
        cases=(([15], "FizzBuzz"), ([30], "FizzBuzz"), ([45], "FizzBuzz"), ([9], "Fizz"), ([7], "7")),
    ),
    Exercise(
        cue="palindrome",
        parameters="text",
        result="textSLIP == text[::-1]",
        slip="[1:]",
        cases=((["level"], True), (["noon"], True), (["a"], True), (["ab"], False), (["abca"], False)),
    ),
    Exercise(
        cue=r"merg\w* (?:two |sorted )",
        parameters="first, second",
        result="sorted([*first, *second])SLIP",
        slip="[:-1]",
        cases=(
            ([[1, 4], [2, 3, 9]], [1, 2, 3, 4, 9]),
            ([[], [5]], [5]),
            ([[1, 1], [1]], [1, 1, 1]),
            ([[-2, 0], []], [-2, 0]),
            ([[1, 2, 3], [0]], [0, 1, 2, 3]),
        ),
    ),
    Exercise(
        cue=r"revers\w* (?:a |an |the )?(?:singly )?linked",
        parameters="pairs",
        # A list is a value and the rest, which is another such pair or None.
        steps="turned = None\n    while pairsSLIP:\n        turned, pairs = (pairs[0], turned), pairs[1]\n    ",
        result="turned",
        slip=" and pairs[1]",
        cases=(
            ([[1, None]], [1, None]),
            ([[1, [2, None]]], [2, [1, None]]),
            ([[1, [2, [3, None]]]], [3, [2, [1, None]]]),
            ([[5, [5, [0, None]]]], [0, [5, [5, None]]]),
        ),
    ),
    Exercise(
        cue="revers",
        parameters="values",
        result="values[::-1]SLIP",
        slip="[:-1]",
        cases=((["abc"], "cba"), ([[1, 2, 3]], [3, 2, 1]), ([[7]], [7]), (["ab"], "ba"), ([[0, 0, 1]], [1, 0, 0])),
    ),
    Exercise(
        cue=r"sort(?:s|ing)?\b",
        parameters="values",
        result="sorted(values)SLIP",
        slip="[:-1]",
        cases=(([[3, 1, 2]], [1, 2, 3]), ([[5]], [5]), ([[2, 2, 1]], [1, 2, 2]), ([[0, -1]], [-1, 0])),
    ),
    Exercise(
        cue="median",
        parameters="*values",
        steps=f"import statistics\n\n    {_FLAT}",
        result="statistics.median(values)SLIP",
        slip=" + 1",
        cases=(([[3, 1, 2]], 2), ([[4, 1, 2, 3]], 2.5), ([7], 7), ([5, -1, 9], 5), ([[0, 10]], 5)),
    ),
    Exercise(
        cue=r"mean\b|average",
        parameters="*values",
        steps=_FLAT,
        result="sum(values) / len(values)SLIP",
        slip=" + 1",
        cases=(([[1, 2, 3]], 2), ([[4]], 4), ([[1, 2]], 1.5), ([-3, 3], 0), ([2, 4, 9], 5)),
    ),
    Exercise(
        cue="largest|max|highest|greatest",
        parameters="*values",
        steps=_FLAT,
        result="max(values)SLIP",
        slip=" + 1",
        cases=(([[3, 1, 2]], 3), ([-5, -2], -2), ([[4]], 4), ([0, 20, 7], 20)),
    ),
    Exercise(
        cue=r"smallest|min(?:imum)?\b|lowest",
        parameters="*values",
        steps=_FLAT,
        result="min(values)SLIP",
        slip=" + 1",
        cases=(([[3, 1, 2]], 1), ([-5, -2], -5), ([[4]], 4), ([0, 20, 7], 0)),
    ),
    Exercise(
        cue=r"sum(?:s|me)?\b|adds?\b|total|plus\b",
        parameters="*values",
        steps=_FLAT,
        result="sum(values)SLIP",
        slip=" + 1",
        cases=(([1, 2], 3), ([[4, -4]], 0), ([[7]], 7), ([2, 3, 4], 9), ([[10, 20, 30]], 60)),
    ),
)


def exercise(entry_point: str, task: str) -> Exercise | None:
    words = f"{entry_point} {task}".replace("_", " ")
    found = ((re.search(rf"\b(?:{each.cue})", words, re.IGNORECASE), each) for each in EXERCISES)
    named = ((cue.start(), each) for cue, each in found if cue is not None)
    return min(named, key=lambda first: first[0], default=(0, None))[1]


def program(name: str, asked: Exercise | None, chance: Random, *, right: bool) -> str:
    """The source of a module that defines `name`; without an exercise the function raises NotImplementedError."""
    if asked is None:
        return f'def {name}(*arguments):\n    raise NotImplementedError("{_UNKNOWN}")\n'
    body = asked.steps + chance.choice(_ENDINGS).format(result=asked.result)
    return f"def {name}({asked.parameters}):\n    {body.replace('SLIP', '' if right else asked.slip)}\n"


def tests(name: str, asked: Exercise | None, chance: Random, *, right: float) -> list[dict[str, Any]]:
    """Some tests, a share `right` with the right result; without an exercise one test, which no program passes."""
    if asked is None:
        return [{"name": "the task", "call": name, "arguments": [], "expected": _UNKNOWN}]
    cases = chance.sample(asked.cases, min(len(asked.cases), chance.randint(_TESTS_MIN, _TESTS_MAX)))
    return [
        {
            "name": f"{name} of {json.dumps(arguments)[1:-1]}",
            "call": name,
            "arguments": arguments,
            "expected": result if chance.random() < right else [result, "and more"],
        }
        for arguments, result in cases
    ]
