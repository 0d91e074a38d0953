"""Data sets: questions with their answers, one JSON object a line."""

import json
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.deliberation.answers import READ_AS, Normaliser, Options, normalise
from app.deliberation.errors import fault_of

NORMALISERS: tuple[Normaliser, ...] = get_args(Normaliser)
QUESTION_CHARS_MAX = 32_768
FAULTS_MAX = 20
_SHOWN_CHARS_MAX = 80
# Added to the task so that the answer can be parsed; the same for every strategy.
_REQUIREMENTS: dict[Normaliser, str] = {
    "text": "The answer is the answer alone: no sentence around it, no explanation.",
    "number": "The answer is one number, in digits, and nothing follows it.",
    "choice": "The answer names one of the choices, and nothing follows it.",
    "json": "The answer is one JSON document and nothing else.",
    "exact": "The answer is the answer alone, exactly as asked for.",
}


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer: str
    normaliser: Normaliser = "text"
    options: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return _REQUIREMENTS[self.normaliser]

    def read(self, text: str) -> str | None:
        """The normalised answer; None when the text is unreadable."""
        return normalise(text, self.normaliser, self.options)

    def is_right(self, text: str | None) -> bool:
        """Whether an answer is right; a missing or unreadable one is not."""
        return text is not None and (found := self.read(text)) is not None and found == self.read(self.answer)


@dataclass(frozen=True, slots=True)
class RowFault:
    """An invalid row: its line from 1, the fault, and the remedy."""

    line: int
    detail: str
    remedy: str


class DatasetInvalid(ValueError):
    """A data set has invalid rows; `faults` has at most FAULTS_MAX of them."""

    def __init__(self, faults: list[RowFault]) -> None:
        super().__init__(f"{len(faults)} rows cannot be used")
        self.faults = tuple(faults)


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    question: str = Field(min_length=1, max_length=QUESTION_CHARS_MAX)
    answer: str | int | float
    normaliser: Normaliser = "text"
    options: Options = ()


_REMEDIES = {
    "question": f"Give a text of 1 to {QUESTION_CHARS_MAX:,} characters.",
    "answer": "Write the one right answer, a text or a number.",
    "normaliser": f"Give one of {', '.join(NORMALISERS)}; the default is text.",
    "options": "Give the choices as a list of different texts.",
}
_FORM = 'A row is {"question": …, "answer": …, "normaliser": …, "options": […]}; the last two may be left out.'


def parse_dataset(text: str) -> list[Question]:
    """The questions of a JSONL text; empty lines are skipped. DatasetInvalid without rows or with invalid ones."""
    # Not splitlines: it also splits at U+2028 and others, which a JSON string may contain.
    rows = [_question(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    faults = [row for row in rows if isinstance(row, RowFault)]
    if faults or not rows:
        raise DatasetInvalid(faults[:FAULTS_MAX] or [RowFault(1, "there is no row", _FORM)])
    return [row for row in rows if isinstance(row, Question)]


def _question(number: int, line: str) -> Question | RowFault:
    try:
        row = _Row.model_validate_json(line)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        where = f"{field}: " if field else ""
        return RowFault(number, f"{where}{fault_of(first)[0]}", _REMEDIES.get(field, _FORM))
    answer = row.answer if isinstance(row.answer, str) else json.dumps(row.answer)
    question = Question(row.question, answer, row.normaliser, row.options)
    if question.read(answer) is None:
        detail = f"answer: {answer[:_SHOWN_CHARS_MAX]!r} cannot be read as {READ_AS[row.normaliser]}"
        return RowFault(number, detail, "Correct the answer, or name another normaliser.")
    return question
