"""Sentences and short Markdown about a task, drawn from a seeded generator."""

from collections.abc import Sequence
from random import Random

_OPENINGS = (
    "The core of “{title}” is one small part that can be tested alone.",
    "Start with the smallest version of “{title}” that works, then measure it.",
    "“{title}” is decided by its limits, so they come first.",
)
_STEPS = (
    "**Interface.** One entry point with typed arguments; it returns a value and changes no state.",
    "**Errors.** Bad input is rejected at the edge with a named error; inside, every value is valid.",
    "**State.** Everything that changes stands in one place and is written by one owner.",
    "**Limits.** Each queue, time-out and buffer has a bound, with its unit in the name.",
    "**Failure.** When a dependency is down, work continues for 30 s with the last known value.",
    "**Tests.** The empty case, one item, many items and the largest input are covered.",
    "**Load.** One instance serves 500 requests a second; a second instance doubles that.",
    "**Rollback.** A release goes to 1 instance for 10 minutes, and returns with one command.",
    "**Signals.** Rate, errors and duration are measured; an alert fires after 5 minutes.",
    "**Data.** Every record carries a version, and a late one is applied at most once.",
    "**Order.** The riskiest assumption is tested on day 1, before anything is built on it.",
)
_CHECKS = (
    "It is done when a test fails for each line that is removed.",
    "It holds if 3 runs under double load give the same result.",
    "It is right if a second reader reaches the same result from the same facts.",
)
_VAGUE = (
    "It should be fine to handle “{title}” somehow.",
    "Maybe look at the details later, and at other things.",
    "Probably the usual way is good enough here.",
    "Perhaps somebody knows more about the limits etc.",
)
_REASONS = (
    "The limits decide most of “{title}”, so they come first.",
    "The costly mistake would be in the state; the plan makes it visible early.",
    "A larger design was weighed, and no requirement asks for it.",
)
_ISSUES = (
    ("The failure case is missing.", "No sentence says what happens when a dependency is down.", "Add the fallback."),
    ("A claim has no support.", "No figure, example or source stands beside it.", "Give one figure, or drop it."),
    ("A limit has no bound.", "Under sustained load the queue grows without end.", "Name a maximum and a refusal."),
    ("A step is missing.", "The text goes from the input to the result in one move.", "Add the step between them."),
    ("The check proves little.", "It passes for a wrong result too.", "Add one case that only the right result meets."),
)
_RATIONALES = (
    (6.6, "The steps follow from each other, and the figures can be verified."),
    (5.0, "The main line is right; one claim stands without a figure."),
    (0.0, "It stays vague; nothing in it can be checked."),
)


class SentenceBank:
    def __init__(self, title: str, chance: Random) -> None:
        self._title = title
        self._chance = chance

    def _some(self, templates: Sequence[str], size: int) -> list[str]:
        return [template.format(title=self._title) for template in self._chance.sample(templates, size)]

    def sentence(self) -> str:
        return self._some(_CHECKS, 1)[0]

    def reasoning(self) -> str:
        return " ".join(self._some(_REASONS, 2))

    def steps(self, size: int) -> list[str]:
        return self._some(_STEPS, size)

    def answer(self) -> str:
        steps = "\n".join(f"- {step}" for step in self.steps(6))
        return f"{self._some(_OPENINGS, 1)[0]}\n\n{steps}\n\n{self.sentence()}"

    def long_answer(self) -> str:
        steps = "\n".join(f"{number}. {step}" for number, step in enumerate(self.steps(11), start=1))
        checks = "\n".join(f"- {check}" for check in self._some(_CHECKS, 2))
        return f"{self._some(_OPENINGS, 1)[0]} {self.reasoning()}\n\n## Steps\n\n{steps}\n\n## Checks\n\n{checks}"

    def vague_answer(self) -> str:
        return " ".join(self._some(_VAGUE, 3))

    def issues(self, size: int) -> list[tuple[str, str, str]]:
        """`size` different issues, at most 5: claim, evidence and fix of each."""
        return self._chance.sample(_ISSUES, size)


def rationale(grade: float) -> str:
    return next(text for least, text in _RATIONALES if grade >= least)
