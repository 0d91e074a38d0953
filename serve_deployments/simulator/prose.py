"""Sentences and short Markdown about a task, in a voice, drawn from a `Dice`."""

from collections.abc import Sequence
from functools import cached_property

from serve_deployments.simulator.dice import Dice
from serve_deployments.simulator.reading import Subject
from serve_deployments.simulator.voices import Voice

_APPROVING = (
    "It names {a} precisely and says how to check it.",
    "The steps for {b} follow from each other, and the figures can be verified.",
    "Requirements and limits of {a} are met; little is left open.",
)
_MIXED = (
    "It covers {a}, but {b} remains a claim without a figure.",
    "The main line is right; the failure of {b} is only touched.",
    "{A} is handled; how {c} would be noticed is not said.",
)
_DISAPPROVING = (
    "It stays vague about {a}; nothing in it can be checked.",
    "{B} is promised and not worked out.",
    "A reader could not act on it without asking back about {a}.",
)
_VAGUE = (
    "It should be fine to handle {a} somehow.",
    "Maybe look at {b} later, and other things like {c}.",
    "Probably the usual way of doing {a} is good enough here.",
    "Perhaps somebody knows more about {b}, {c} etc.",
)
_REASONS = (
    "{A} decides most of “{subject}”, so it comes first; from it follows what {b} may be.",
    "The costly mistake would be in {b}; the plan makes it visible early.",
    "I weighed a larger design for {a} and found no requirement that asks for it.",
    "What is uncertain is {c}; the first check is there to settle it.",
)
_ACCEPTED = ("Right, and mended: {fix}", "Agreed; the text now says so. {fix}", "The evidence holds. {fix}")
_REJECTED = (
    "Not accepted: the text already covers this where {a} is described.",
    "Not accepted: the evidence does not show that {b} fails.",
    "Not accepted: it would add to {a} what the task does not ask for.",
)
_PLACES = ("the part about {a}", "the step from {a} to {b}", "the paragraph on {c}")
_GOOD_FROM, _FAIR_FROM = 6.6, 5.0


class Prose:
    """Draws sentences of one voice about one subject."""

    def __init__(self, voice: Voice, subject: Subject, dice: Dice) -> None:
        self._voice = voice
        self._dice = dice
        self._subject = subject

    @cached_property
    def _slots(self) -> dict[str, str]:
        slots = {"subject": self._subject.title}
        terms = self._subject.terms
        drawn = self._dice.sample(terms[:5], 3)
        if terms[0] not in drawn or self._dice.unit() < 0.6:
            # Mostly the answer is about the first thing that the task names.
            drawn = [terms[0], *(term for term in drawn if term != terms[0])][:3]
        for name, bare, term in zip("abc", "xyz", drawn, strict=True):
            slots |= {name: f"the {term}", name.upper(): f"The {term}", bare: term}
        return slots

    def _fill(self, template: str) -> str:
        return template.format_map(self._slots)

    def _one(self, templates: Sequence[str]) -> str:
        return self._fill(self._dice.pick(templates))

    def _some(self, templates: Sequence[str], size: int) -> list[str]:
        return [self._fill(template) for template in self._dice.sample(templates, size)]

    def sentence(self) -> str:
        """One sentence that fits anywhere."""
        return self._one(self._voice.details + self._voice.checks)

    def move(self) -> str:
        """One step with a bold heading."""
        return self._one(self._voice.moves)

    def place(self) -> str:
        """Where in a text something stands, in words."""
        return self._one(_PLACES)

    def reasoning(self) -> str:
        """Two sentences of reasons."""
        return " ".join(self._some(_REASONS, 2))

    def answer(self) -> str:
        """A short Markdown answer: an opening, four steps, a detail, a check."""
        voice = self._voice
        steps = "\n".join(f"- {move}" for move in self._some(voice.moves, 4))
        return f"{self._one(voice.openings)}\n\n{steps}\n\n{self._one(voice.details)} {self._one(voice.checks)}"

    def long_answer(self) -> str:
        """A long and precise Markdown answer: reasons, six steps, figures, a risk, checks."""
        voice = self._voice
        steps = "\n".join(f"{number}. {move}" for number, move in enumerate(self._some(voice.moves, 6), start=1))
        figures = "\n".join(f"- {detail}" for detail in self._some(voice.details, 4))
        claim, _, fix = self.fault(self._dice.bits())
        checks = "\n".join(f"- {check}" for check in self._some(voice.checks, 2))
        return (
            f"{self._one(voice.openings)} {self.reasoning()}\n\n## Steps\n\n{steps}\n\n## Figures\n\n{figures}\n\n"
            f"## Risk\n\n{claim} Against it: {fix}\n\n## Checks\n\n{checks}"
        )

    def vague_answer(self) -> str:
        """A short answer that says little."""
        return " ".join(self._some(_VAGUE, 3))

    def filler(self) -> list[str]:
        """All steps and details in drawn order: text of any length is made by going round them."""
        voice = self._voice
        return [self._one(voice.openings), *self._some((*voice.moves, *voice.details), 12)]

    def fault(self, number: int) -> tuple[str, str, str]:
        """Claim, evidence and fix of a fault that this voice finds; numbers in a row give different ones."""
        found = self._voice.faults[number % len(self._voice.faults)]
        return self._fill(found.claim), self._fill(found.evidence), self._fill(found.fix)

    def rationale(self, grade: float) -> str:
        """Why a text deserves a grade between 0 and 10."""
        kind = _APPROVING if grade >= _GOOD_FROM else _MIXED if grade >= _FAIR_FROM else _DISAPPROVING
        return self._one(kind)

    def response(self, fix: str, *, accepted: bool) -> str:
        """What an author answers to an issue that proposes `fix`."""
        if not accepted:
            return self._one(_REJECTED)
        return self._dice.pick(_ACCEPTED).replace("{fix}", fix).strip()
