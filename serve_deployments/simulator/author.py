"""Who writes the simulated answers: words, numbers and choices by the name of the field that asks for them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property

from serve_deployments.simulator.dice import Dice, fraction
from serve_deployments.simulator.json_values import Path
from serve_deployments.simulator.programs import operation, program, test
from serve_deployments.simulator.prose import Prose
from serve_deployments.simulator.quality import REVISED_HEADING, criterion_grade, quality
from serve_deployments.simulator.reading import Reading
from serve_deployments.simulator.schemas import Json


class Behaviour(StrEnum):
    """How the simulated agents work. `mixed` draws one of the other four for each request, by its seed."""

    NORMAL = "normal"
    EXCELLENT = "excellent"
    POOR = "poor"
    STUBBORN = "stubborn"
    MIXED = "mixed"


PURE_BEHAVIOURS = (Behaviour.NORMAL, Behaviour.EXCELLENT, Behaviour.POOR, Behaviour.STUBBORN)

_CONFIDENCE = {
    Behaviour.NORMAL: (70, 89),
    Behaviour.EXCELLENT: (86, 95),
    Behaviour.POOR: (60, 68),
    Behaviour.STUBBORN: (90, 95),
}
_NOISE = {Behaviour.NORMAL: 0.5, Behaviour.EXCELLENT: 0.25, Behaviour.POOR: 2.0, Behaviour.STUBBORN: 0.5}
_TIE_BELOW = 0.15
# How often a program is right, at once and after it is repaired.
_RIGHT = {Behaviour.NORMAL: 0.75, Behaviour.EXCELLENT: 1.0, Behaviour.POOR: 0.0, Behaviour.STUBBORN: 0.5}
_REPAIRED = {Behaviour.NORMAL: 0.8, Behaviour.EXCELLENT: 1.0, Behaviour.POOR: 0.3, Behaviour.STUBBORN: 0.0}


class Author:
    """One writer for one completion. Equal arguments write equal words."""

    def __init__(self, reading: Reading, behaviour: Behaviour, dice: Dice, terse_words: int | None = None) -> None:
        self._reading = reading
        self._behaviour = behaviour
        self._dice = dice
        self._terse_words = terse_words
        self._noise_key = dice.bits()
        self._grades: dict[str, float] = {}
        self.prose = Prose(reading.voice, reading.subject, dice)
        self._writers: Mapping[str, Callable[[Path], str]] = {
            "answer": lambda _: self.answer(),
            "content": lambda _: self.answer(),
            "solution": lambda _: self.answer(),
            "proposal": lambda _: self.answer(),
            "final": lambda _: self.answer(),
            "reasoning": lambda _: self.prose.reasoning(),
            "analysis": lambda _: self.prose.reasoning(),
            "rationale": self._rationale,
            "evidence": self._issue_text,
            "claim": self._issue_text,
            "fix": self._issue_text,
            "where": self._where,
            "reason": self._reason,
            "id": self._id,
            "code": self._code,
        }

    def answer(self) -> str:
        """The free text of this completion: a proposal, or the own text revised when the prompt shows it."""
        own = self._reading.own
        if not own:
            return self._proposal()
        if self._behaviour is Behaviour.STUBBORN:
            return own
        changes = [fix for place, fix in enumerate(self._reading.fixes) if fix and self._accepts(place)]
        if not changes and self._reading.issues:
            return own
        listed = "\n".join(f"- {change}" for change in changes) or f"- {self.prose.move()}"
        kept = own.split(REVISED_HEADING)[0].rstrip() if own.count(REVISED_HEADING) > 1 else own.rstrip()
        return f"{kept}\n\n{REVISED_HEADING}\n\n{listed}"

    def text(self, path: Path, chars_max: int | None) -> str | None:
        """The string at `path`, by its property's name."""
        name = next((step for step in reversed(path) if isinstance(step, str)), "").lower()
        if name.startswith("notes"):
            written = self._notes(name.rpartition("_")[2].upper())
        elif path[:1] == ("tests",) and name in ("name", "code"):
            return self._test(path)[name == "code"]
        else:
            written = self._writers.get(name, lambda _: self.prose.sentence())(path)
        if self._terse_words is not None and name not in ("id", "code"):
            return " ".join(written.split(" ", self._terse_words)[: self._terse_words])
        return written

    def number(self, path: Path, low: float, high: float) -> float | None:
        """The number at `path`: confidences, scores, margins and issue numbers; None for others."""
        names = [step for step in path if isinstance(step, str)]
        match names[-1].lower() if names else "":
            case "confidence":
                percent = self._dice.between(*_CONFIDENCE[self._behaviour])
                return percent if high > 1 else percent / 100
            case "score" | "rating" | "grade":
                grade = self._graded(path)
                return low + (high - low) * grade / 10.0
            case "margin":
                gap = abs(self._gap)
                return 1 if gap < 0.8 else 2 if gap < 1.8 else 3
            case "issue":
                place = next((step for step in reversed(path) if isinstance(step, int)), 0)
                return place + 1
            case _:
                return None

    def option(self, path: Path, options: Sequence[Json]) -> int | None:
        """Which of `options` stands at `path`; None where no rule knows its name."""
        names = [step for step in path if isinstance(step, str)]
        match names[-1].lower() if names else "":
            case "severity":
                wanted = self._severities[self._place(path) % max(1, len(self._severities))] if self._severities else ""
            case "verdict":
                wanted = self._verdict
            case "winner" | "better" | "best":
                wanted = self._winner
            case "decision":
                wanted = "accept" if self._accepts(self._place(path)) else "reject"
            case "id":
                return self._place(path) % len(options)
            case _:
                candidates = self._reading.candidates
                if not all(isinstance(option, str) and option in candidates for option in options):
                    return None
                wanted = max(options, key=lambda label: self._perceived(candidates[label]))
        return options.index(wanted) if wanted in options else None

    def size(self, path: Path, low: int, high: int) -> int | None:
        """How many items the array at `path` has: issues found, responses to them, criteria; None for others."""
        names = [step for step in path if isinstance(step, str)]
        match names[-1].lower() if names else "":
            case "issues":
                return len(self._severities)
            case "responses":
                return len(self._reading.issues)
            case "criteria":
                return len(self._reading.criteria) or None
            case "tests":
                return Dice("tests", self._noise_key).between(3, 5)
            case _:
                return None

    def _proposal(self) -> str:
        match self._behaviour:
            case Behaviour.EXCELLENT:
                return self.prose.long_answer()
            case Behaviour.POOR:
                return self.prose.vague_answer()
            case Behaviour.STUBBORN:
                return f"{self.prose.answer()}\n\nThis is settled; I see no reason to change it."
            case _:
                return self.prose.answer()

    def _place(self, path: Path) -> int:
        return next((step for step in reversed(path) if isinstance(step, int)), 0)

    def _accepts(self, place: int) -> bool:
        if self._behaviour is Behaviour.STUBBORN:
            return False
        return fraction("accepts", self._noise_key, place) < (0.95 if self._behaviour is Behaviour.EXCELLENT else 0.8)

    # --- judging -----------------------------------------------------------------------------------------------

    def _perceived(self, text: str) -> float:
        grade = self._grades.get(text)
        if grade is None:
            noise = _NOISE[self._behaviour] * (2.0 * fraction("noise", self._noise_key, text) - 1.0)
            grade = self._grades[text] = quality(text) + noise
        return grade

    def _candidate(self, path: Path) -> str:
        candidates = self._reading.candidates
        label = next((step for step in path if isinstance(step, str) and step in candidates), None)
        if label is not None:
            return candidates[label]
        return next(iter(candidates.values()), self._reading.own)

    def _graded(self, path: Path) -> float:
        text = self._candidate(path)
        criteria = self._reading.criteria
        place = self._place(path)
        criterion = criteria[place] if place < len(criteria) else str(place)
        return self._perceived(text) + criterion_grade(text, criterion) - quality(text)

    def _rationale(self, path: Path) -> str:
        return self.prose.rationale(self._graded(path)) if self._reading.candidates else self.prose.reasoning()

    def _notes(self, label: str) -> str:
        text = self._reading.candidates.get(label, "")
        return f"{self.prose.rationale(self._perceived(text))} {self._quote(text)}".strip()

    @cached_property
    def _gap(self) -> float:
        first, second = (self._reading.candidates.get(label, "") for label in ("A", "B"))
        return self._perceived(first) - self._perceived(second)

    @property
    def _winner(self) -> str:
        if abs(self._gap) < _TIE_BELOW:
            return "tie"
        return "A" if self._gap > 0 else "B"

    # --- criticising -------------------------------------------------------------------------------------------

    @cached_property
    def _severities(self) -> list[str]:
        """The severity of each issue that is found; decided at once, so that verdict and issues agree."""
        revised = REVISED_HEADING in self._candidate(())
        chance = Dice("severities", self._noise_key)
        match self._behaviour:
            case Behaviour.STUBBORN:
                return []
            case Behaviour.POOR:
                return ["minor"] * chance.between(0, 1)
            case _ if revised:
                return ["minor"] * chance.between(0, 1)
            case _:
                found = chance.between(1, 3) + (self._behaviour is Behaviour.EXCELLENT)
                others = ["minor" if chance.unit() < 0.7 else "major" for _ in range(found - 1)]
                first = "blocker" if chance.unit() < 0.06 else "major" if chance.unit() < 0.8 else "minor"
                return [first, *others]

    @property
    def _verdict(self) -> str:
        if "blocker" in self._severities:
            return "reject"
        return "revise" if "major" in self._severities else "accept"

    def _issue_text(self, path: Path) -> str:
        if self._behaviour is Behaviour.POOR:
            return "It could probably be better somehow."
        claim, evidence, fix = self.prose.fault(self._noise_key + self._place(path))
        name = path[-1]
        return claim if name == "claim" else fix if name == "fix" else evidence

    def _where(self, path: Path) -> str:
        text = self._candidate(path)
        lines = [line for line in text.splitlines() if len(line) > 12]
        if not lines:
            return self.prose.place()
        return self._quote(lines[(self._noise_key + 3 * self._place(path)) % len(lines)])

    def _quote(self, text: str) -> str:
        words = re.sub(r"[*#`“”]+|^\s*(?:-|\d+\.)\s", "", text).split()
        return f"“{' '.join(words[:8])}{' …' if len(words) > 8 else ''}”" if words else ""

    def _reason(self, path: Path) -> str:
        place = self._place(path)
        fixes = self._reading.fixes
        fix = fixes[place] if place < len(fixes) else ""
        return self.prose.response(fix, accepted=self._accepts(place))

    # --- code --------------------------------------------------------------------------------------------------

    def _code(self, _: Path) -> str:
        """A program; a repaired one when the prompt shows the own, which the stubborn return as it is."""
        own, dice = self._reading.own, Dice("code", self._noise_key)
        if own and self._behaviour is Behaviour.STUBBORN:
            return own
        right = dice.unit() < (_REPAIRED if own else _RIGHT)[self._behaviour]
        return program(self._reading.entry_point, operation(self._reading.task), dice, right=right)

    def _test(self, path: Path) -> tuple[str, str]:
        dice = Dice("test", self._noise_key, self._place(path))
        right = self._behaviour is not Behaviour.POOR or dice.unit() < 0.7
        return test(self._reading.entry_point, operation(self._reading.task), dice, right=right)

    def _id(self, path: Path) -> str:
        criteria = self._reading.criteria
        place = self._place(path)
        return criteria[place] if place < len(criteria) else f"item-{place + 1}"


def pure_behaviour(behaviour: Behaviour, *key: object) -> Behaviour:
    """`behaviour`, or for `mixed` the one that `key` draws."""
    if behaviour is not Behaviour.MIXED:
        return behaviour
    return PURE_BEHAVIOURS[math.floor(fraction("behaviour", *key) * len(PURE_BEHAVIOURS))]
