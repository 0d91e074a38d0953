"""Data sets: files of questions with their answers, one JSON object a line, and Berkeley's by their categories."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.api.action_requests import ActionsRequest
from app.cli.bench.bfcl import read_category
from app.cli.bench.questions import ActionQuestion, Question, TextQuestion, equals_one_of
from app.cli.exits import CommandError, Exit, FieldFault, cause
from app.cli.render.text import counted
from app.deliberation.answers import READ_AS, Normaliser, Options
from app.deliberation.errors import fault_of
from app.deliberation.facts import ActionCall

NORMALISERS: tuple[Normaliser, ...] = get_args(Normaliser)
BFCL = "bfcl:"
QUESTION_CHARS_MAX = 32_768
FAULTS_MAX = 20
_SHOWN_CHARS_MAX = 80


class _Unusable(Exception):
    """A valid row that cannot be graded: why, and the remedy."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    question: str = Field(min_length=1, max_length=QUESTION_CHARS_MAX)


class _TextRow(_Row):
    answer: str | int | float
    normaliser: Normaliser = "text"
    options: Options = ()

    @property
    def asks(self) -> Question:
        """The question; raises _Unusable."""
        answer = self.answer if isinstance(self.answer, str) else json.dumps(self.answer)
        question = TextQuestion(self.question, answer, self.normaliser, self.options)
        if question.read(answer) is None:
            detail = f"answer: {answer[:_SHOWN_CHARS_MAX]!r} cannot be read as {READ_AS[self.normaliser]}"
            raise _Unusable(detail, "Correct the answer, or name another normaliser.")
        return question


class _ActionRow(_Row):
    actions: ActionsRequest
    calls: list[list[ActionCall]] = Field(min_length=1)

    @property
    def asks(self) -> Question:
        """The question; raises _Unusable."""
        actions = self.actions.specified
        known = {tool.name for tool in actions.tools}
        if unknown := next((call.name for calls in self.calls for call in calls if call.name not in known), None):
            raise _Unusable(f"calls: no tool is called {unknown[:_SHOWN_CHARS_MAX]!r}", "Name one of the tools.")
        return ActionQuestion([{"role": "user", "text": self.question}], actions, equals_one_of(self.calls, actions))


_REMEDIES = {
    "question": f"Give a text of 1 to {QUESTION_CHARS_MAX:,} characters.",
    "answer": "Write the one right answer, a text or a number.",
    "normaliser": f"Give one of {', '.join(NORMALISERS)}; the default is text.",
    "options": "Give the choices as a list of different texts.",
    "actions": "Give tools as `POST /deliberations` takes them.",
    "calls": 'Give a list of right actions, each a list of {"name": …, "arguments": {…}}; [] stands for a reply.',
}
_FORM = (
    'A row is {"question": …, "answer": …, "normaliser": …, "options": […]}, where the last two may be left out, or '
    '{"question": …, "actions": {"tools": […]}, "calls": [[…], …]}.'
)


def read_dataset(named: str, limit: int | None) -> Sequence[Question]:
    """The first `limit` questions of a JSONL file, or of a category as in `bfcl:simple_python`.

    Raises CommandError that names every invalid row.
    """
    if named.startswith(BFCL):
        return list(read_category(named.removeprefix(BFCL)))[:limit]
    return _read_file(Path(named), limit)


def _read_file(path: Path, limit: int | None) -> Sequence[Question]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name a file of one JSON object a line, in UTF-8"
        raise CommandError(Exit.USAGE, "dataset_unreadable", f"{path}: {cause(error)}", remedy=remedy) from error
    # Not splitlines: it also splits at U+2028 and others, which a JSON string may contain.
    rows = [_question(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    questions = [row for row in rows if not isinstance(row, FieldFault)]
    if not rows or len(questions) < len(rows):
        faults = [row for row in rows if isinstance(row, FieldFault)] or [
            FieldFault("line 1", "there is no row", _FORM)
        ]
        detail = f"{path}: {counted(len(faults), 'row')} cannot be used"
        raise CommandError(Exit.USAGE, "dataset_invalid", detail, fields=faults[:FAULTS_MAX])
    return questions[:limit]


def _question(number: int, line: str) -> Question | FieldFault:
    try:
        # Read twice, since strict models take JSON as a text. What is no object is reported as a row of a text.
        fields: object = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    row = _ActionRow if isinstance(fields, dict) and "actions" in fields else _TextRow
    try:
        return row.model_validate_json(line).asks
    except _Unusable as unusable:
        return FieldFault(f"line {number}", str(unusable), unusable.remedy)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        where = f"{field}: " if field else ""
        return FieldFault(f"line {number}", f"{where}{fault_of(first)[0]}", _REMEDIES.get(field, _FORM))
