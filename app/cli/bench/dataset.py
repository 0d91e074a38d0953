"""Data sets: questions with their answers, one JSON object a line."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.cli.exits import CommandError, Exit, FieldFault, cause
from app.cli.render.text import counted
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
        return text is not None and (answer := self.read(text)) is not None and answer == self.read(self.answer)


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


def read_dataset(path: Path, limit: int | None) -> list[Question]:
    """The first `limit` questions of a JSONL file. Raises CommandError that names every invalid row."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name a file of one JSON object a line, in UTF-8"
        raise CommandError(Exit.USAGE, "dataset_unreadable", f"{path}: {cause(error)}", remedy=remedy) from error
    # Not splitlines: it also splits at U+2028 and others, which a JSON string may contain.
    rows = [_question(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    questions = [row for row in rows if isinstance(row, Question)]
    if not rows or len(questions) < len(rows):
        faults = [row for row in rows if isinstance(row, FieldFault)] or [
            FieldFault("line 1", "there is no row", _FORM)
        ]
        detail = f"{path}: {counted(len(faults), 'row')} cannot be used"
        raise CommandError(Exit.USAGE, "dataset_invalid", detail, fields=faults[:FAULTS_MAX])
    return questions[:limit]


def _question(number: int, line: str) -> Question | FieldFault:
    try:
        row = _Row.model_validate_json(line)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        where = f"{field}: " if field else ""
        return FieldFault(f"line {number}", f"{where}{fault_of(first)[0]}", _REMEDIES.get(field, _FORM))
    answer = row.answer if isinstance(row.answer, str) else json.dumps(row.answer)
    question = Question(row.question, answer, row.normaliser, row.options)
    if question.read(answer) is None:
        detail = f"answer: {answer[:_SHOWN_CHARS_MAX]!r} cannot be read as {READ_AS[row.normaliser]}"
        return FieldFault(f"line {number}", detail, "Correct the answer, or name another normaliser.")
    return question
