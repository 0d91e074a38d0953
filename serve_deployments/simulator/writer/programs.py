"""Small Python programs for five exercises, and tests of them.

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
        cue="median",
        parameters="*values",
        steps=f"import statistics\n\n    {_FLAT}",
        result="statistics.median(values)SLIP",
        slip=" + 1",
        cases=(([[3, 1, 2]], 2), ([[4, 1, 2, 3]], 2.5), ([7], 7), ([5, -1, 9], 5), ([[0, 10]], 5)),
    ),
    Exercise(
        cue="largest|max|highest",
        parameters="*values",
        steps=_FLAT,
        result="max(values)SLIP",
        slip=" + 1",
        cases=(([[3, 1, 2]], 3), ([-5, -2], -2), ([[4]], 4), ([0, 20, 7], 20)),
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
    cues = ((re.search(rf"\b(?:{candidate.cue})", words, re.IGNORECASE), candidate) for candidate in EXERCISES)
    named = ((cue.start(), candidate) for cue, candidate in cues if cue is not None)
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
