"""Structured outputs: the JSON Schema that an engine receives, and the check of its answer.

Every array and integer is bounded. Texts are bounded by `max_tokens` and by the check here, not in the schema. Under
`maxLength` vLLM's grammars admit no line break and no quotation mark (xgrammar's issue 800;
`tests/vllm/test_grammar.py` shows it). Rationale fields precede scores, so that a score follows its reasons.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from app.deliberation.errors import InvalidOutput
from app.deliberation.specification import Value

# Four characters for each of the 32,768 tokens that a completion may have at most.
TEXT_CHARS_MAX = 131_072
ISSUES_MAX = 8

TESTS_MAX = 16
ARGUMENTS_MAX = 16
TEST_DEPTH_MAX = 16
TEST_CHARS_MAX = TEXT_CHARS_MAX
POINTS_MAX = 8
TRIED_MAX = 16

OutputKind = Literal[
    "answer",
    "critique",
    "revision",
    "score",
    "pair",
    "turn",
    "choice",
    "analysis",
    "fusion",
    "program",
    "tests",
    "report",
]

ANSWER_FIELDS: Mapping[OutputKind, Literal["answer", "code"]] = MappingProxyType(
    {"answer": "answer", "revision": "answer", "turn": "answer", "fusion": "answer", "program": "code"}
)

VERSION_KINDS = frozenset(ANSWER_FIELDS) - {"fusion"}
"""Forms with an answer of one agent. A fusion is none of them: its text is made from those of several."""


class Output(Value, frozen=True):
    """Which schema a call's answer must satisfy.

    `labels` and `criteria` shape a score; `issues` is how many a revision responds to at most. `answer_schema` is the
    JSON Schema that the client demands of the answer, as JSON; empty where the answer is a text. With `is_action` it
    is that of an action.
    """

    kind: OutputKind
    labels: tuple[str, ...] = ()
    criteria: tuple[str, ...] = ()
    issues: int = ISSUES_MAX
    answer_schema: str = ""
    is_action: bool = Field(default=False, exclude_if=lambda action: not action)

    def with_answers_of(self, schema: str, *, is_action: bool = False) -> "Output":
        if not schema or ANSWER_FIELDS.get(self.kind) != "answer":
            return self
        return self.model_copy(update={"answer_schema": schema, "is_action": is_action})


class _Parsed(BaseModel):
    """Base of parsed outputs: closed, frozen, and strict, so that "7" is not a score of 7."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _whole(number: object) -> object:
    return int(number) if isinstance(number, float) and number.is_integer() else number


# JSON has one kind of number, and JSON Schema calls 7.0 an integer.
_Integer = Annotated[int, BeforeValidator(_whole)]
_Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX)]
# It decides nothing, so that an answer without a usable one counts.
_Confidence = Annotated[_Integer, Field(ge=0, le=100)] | None


class Answer(_Parsed):
    reasoning: _Text
    answer: Annotated[_Text, Field(min_length=1)]
    confidence: _Confidence = None


class Issue(_Parsed):
    """One falsifiable fault that a critic found."""

    severity: Literal["blocker", "major", "minor"]
    where: _Text
    claim: _Text
    evidence: _Text
    fix: _Text


class Critique(_Parsed):
    issues: tuple[Issue, ...] = Field(max_length=ISSUES_MAX, strict=False)
    verdict: Literal["accept", "revise", "reject"]

    @property
    def demands_revision(self) -> bool:
        return any(issue.severity != "minor" for issue in self.issues)


class IssueResponse(_Parsed):
    """An author's response to one issue, by its number in the prompt."""

    issue: _Integer = Field(ge=1)
    decision: Literal["accept", "reject"]
    reason: _Text


class Revision(_Parsed):
    responses: tuple[IssueResponse, ...] = Field(strict=False)
    answer: Annotated[_Text, Field(min_length=1)]
    confidence: _Confidence = None


class CriterionScore(_Parsed):
    id: str
    rationale: _Text
    score: _Integer = Field(ge=0, le=10)


class CandidateScore(_Parsed):
    criteria: tuple[CriterionScore, ...] = Field(strict=False)


class Scores(_Parsed):
    """A listwise ballot: every shown label with its scores."""

    candidates: dict[str, CandidateScore]


class Pair(_Parsed):
    notes_a: _Text
    notes_b: _Text
    winner: Literal["A", "B", "tie"]
    margin: _Integer = Field(ge=1, le=3)


class DebateTurn(_Parsed):
    """A debater's next answer. A change without a concrete `error` found in the earlier answer does not count."""

    reasoning: _Text
    error: _Text
    answer: Annotated[_Text, Field(min_length=1)]
    confidence: _Confidence = None


class Choice(_Parsed):
    reasoning: _Text
    choice: str


class Analysis(_Parsed):
    agreements: tuple[_Text, ...] = Field(max_length=POINTS_MAX, strict=False)
    conflicts: tuple[_Text, ...] = Field(max_length=POINTS_MAX, strict=False)
    gaps: tuple[_Text, ...] = Field(max_length=POINTS_MAX, strict=False)


class Program(_Parsed):
    reasoning: _Text
    code: Annotated[_Text, Field(min_length=1)]
    confidence: _Confidence = None


class TestCase(_Parsed):
    """A test as data: a call and its expected value, or standard input and the expected output.

    Examples: `{"name": "two lists", "call": "merge", "arguments": [[1, 3], [2]], "expected": [1, 2, 3]}` and
    `{"name": "a sum", "stdin": "1 2", "stdout": "3"}`.
    """

    name: str = Field(max_length=TEST_CHARS_MAX, description="What is tested, in a few words.")
    call: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100, description="The function that is called."
    )
    arguments: list[JsonValue] = Field(default=[], max_length=ARGUMENTS_MAX, description="Its arguments, in order.")
    expected: JsonValue = Field(default=None, description="The value that the call has to return; `null` is None.")
    stdin: str | None = Field(default=None, description="Standard input of a program that runs as a script.")
    stdout: str | None = Field(default=None, description="The output that the script has to print.")

    @property
    def data(self) -> dict[str, Any]:
        fields = {"stdin", "stdout"} if self.call is None else {"call", "arguments", "expected"}
        return self.model_dump(mode="json", include=fields)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        of_call = self.call is not None and "expected" in self.model_fields_set
        of_script = self.stdin is not None and self.stdout is not None
        others = (self.stdin, self.stdout) if of_call else (self.call, self.arguments or None, self.expected)
        if of_call == of_script or any(other is not None for other in others):
            raise ValueError("a test has `call`, `arguments` and `expected`, or `stdin` and `stdout`")
        try:
            chars = len(json.dumps(self.data, ensure_ascii=False, allow_nan=False))
        except ValueError as exc:
            raise ValueError("every number of a test is finite") from exc
        if chars > TEST_CHARS_MAX or _depth([*self.arguments, self.expected]) > TEST_DEPTH_MAX:
            raise ValueError(f"a test has at most {TEST_CHARS_MAX:,} characters and {TEST_DEPTH_MAX} levels of values")
        return self


def _depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(cast("dict[str, object]", value).values())
    return 1 + max(map(_depth, cast("list[object]", value)), default=0) if isinstance(value, list) else 0


class Tests(_Parsed):
    reasoning: _Text
    tests: tuple[TestCase, ...] = Field(min_length=1, max_length=TESTS_MAX, strict=False)


class CheckOutcome(_Parsed):
    """The outcome of one test. `reason` says why it failed, and is empty when it passed."""

    name: _Text
    passed: bool
    reason: _Text
    duration_ms: _Integer = Field(ge=0)


class SandboxReport(_Parsed):
    """A sandbox's report on one program, with its tests in the order given. No model writes it.

    `fault` says why no test could be run, and is empty when the program loads. `not_run` are the places of tests that
    ran out of time and say nothing of the program. `tried` names refused attempts, as in "import _ctypes"; it decides
    nothing.
    """

    fault: _Text = ""
    outcomes: tuple[CheckOutcome, ...] = Field(strict=False)
    not_run: frozenset[int] = Field(default=frozenset(), strict=False)
    tried: tuple[_Text, ...] = Field(default=(), max_length=TRIED_MAX, strict=False)


ParsedOutput = (
    Answer | Critique | Revision | Scores | Pair | DebateTurn | Choice | Analysis | Program | Tests | SandboxReport
)
_Form = TypeVar("_Form")
_CANDIDATES: TypeAdapter[dict[str, CandidateScore]] = TypeAdapter(dict[str, CandidateScore])
_DOCUMENT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
Document = str | dict[str, Any]
WHERE_CHARS_MAX = 200
FAULTS_MAX = 100


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_TEXT = {"type": "string"}
_SCORE = {"type": "integer", "minimum": 0, "maximum": 10}
_CONFIDENCE = {"type": "integer", "minimum": 0, "maximum": 100}


def _listed(items: dict[str, Any], most: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


_ISSUE = _object(
    {
        "severity": {"enum": ["blocker", "major", "minor"]},
        "where": _TEXT,
        "claim": _TEXT,
        "evidence": _TEXT,
        "fix": _TEXT,
    }
)
_PAIR_MARGIN = {"type": "integer", "minimum": 1, "maximum": 3}
_POINTS = _listed(_TEXT, POINTS_MAX)
# The parser bounds a test's values; a schema with these bounds would be long.
_JSON = {"type": ["null", "boolean", "number", "string", "array", "object"]}
_CALL_TEST = _object({"name": _TEXT, "call": _TEXT, "arguments": _listed(_JSON, ARGUMENTS_MAX), "expected": _JSON})
_SCRIPT_TEST = _object({"name": _TEXT, "stdin": _TEXT, "stdout": _TEXT})
_SCHEMAS: dict[OutputKind, dict[str, Any]] = {
    "answer": _object({"reasoning": _TEXT, "answer": _TEXT, "confidence": _CONFIDENCE}),
    "critique": _object({"issues": _listed(_ISSUE, ISSUES_MAX), "verdict": {"enum": ["accept", "revise", "reject"]}}),
    "pair": _object(
        {"notes_a": _TEXT, "notes_b": _TEXT, "winner": {"enum": ["A", "B", "tie"]}, "margin": _PAIR_MARGIN}
    ),
    "turn": _object({"reasoning": _TEXT, "error": _TEXT, "answer": _TEXT, "confidence": _CONFIDENCE}),
    "analysis": _object({"agreements": _POINTS, "conflicts": _POINTS, "gaps": _POINTS}),
    "fusion": _object({"reasoning": _TEXT, "answer": _TEXT, "confidence": _CONFIDENCE}),
    "program": _object({"reasoning": _TEXT, "code": _TEXT, "confidence": _CONFIDENCE}),
    "tests": _object({"reasoning": _TEXT, "tests": _listed({"anyOf": [_CALL_TEST, _SCRIPT_TEST]}, TESTS_MAX, 1)}),
}


def _score_schema(output: Output) -> dict[str, Any]:
    criteria = [
        _object({"id": {"const": criterion}, "rationale": _TEXT, "score": _SCORE}) for criterion in output.criteria
    ]
    size = len(criteria)
    # prefixItems, not items with an enum of ids: constrained decoding then cannot leave a criterion out or repeat one.
    # `items: false` would say no more than the size does, and llama.cpp's server refuses it.
    listing = {"type": "array", "prefixItems": criteria, "minItems": size, "maxItems": size}
    return _object({label: _object({"criteria": listing}) for label in output.labels})


def _revision_schema(output: Output) -> dict[str, Any]:
    most = max(1, output.issues)
    issue = {"type": "integer", "minimum": 1, "maximum": most}
    response = _object({"issue": issue, "decision": {"enum": ["accept", "reject"]}, "reason": _TEXT})
    return _object({"responses": _listed(response, most), "answer": _TEXT, "confidence": _CONFIDENCE})


@lru_cache(maxsize=256)
def json_schema(output: Output) -> dict[str, Any]:
    """The JSON Schema for `response_format: json_schema`; callers must not change it. No engine writes a report."""
    schema = _schema_of_kind(output)
    if not output.answer_schema:
        return schema
    return {**schema, "properties": {**schema["properties"], "answer": json.loads(output.answer_schema)}}


def _schema_of_kind(output: Output) -> dict[str, Any]:
    match output.kind:
        case "score":
            return _score_schema(output)
        case "revision":
            return _revision_schema(output)
        case "choice":
            return _object({"reasoning": _TEXT, "choice": {"enum": list(output.labels)}})
        case "report":
            raise ValueError("no engine is asked for a report")
        case kind:
            return _SCHEMAS[kind]


def _validated(form: TypeAdapter[_Form], document: Document) -> _Form:
    try:
        return form.validate_json(document) if isinstance(document, str) else form.validate_python(document)
    except ValidationError as exc:
        # The list of a hundred thousand faults would hold all threads up for a second.
        if exc.error_count() > FAULTS_MAX:
            raise InvalidOutput(f"the document: has {exc.error_count():,} faults") from None
        first = exc.errors(include_url=False, include_input=False)[0]
        # The model chose the name of an unexpected field, so the name may have any length.
        where = ".".join(str(part) for part in first["loc"])[:WHERE_CHARS_MAX] or "the document"
        raise InvalidOutput(f"{where}: {first['msg']}") from exc


def _with_answer_as_text(document: Document) -> dict[str, Any]:
    fields = _validated(_DOCUMENT, document)
    if "answer" not in fields:
        raise InvalidOutput("answer: Field required")
    try:
        answer = json.dumps(fields["answer"], ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as exc:
        raise InvalidOutput("answer: a number is infinite or none") from exc
    return {**fields, "answer": answer}


def _scores(output: Output, document: Document) -> Scores:
    scores = _validated(_CANDIDATES, document)
    if set(scores) != set(output.labels):
        raise InvalidOutput(f"scores must cover exactly the labels {', '.join(output.labels)}")
    for label, candidate in scores.items():
        if tuple(entry.id for entry in candidate.criteria) != output.criteria:
            raise InvalidOutput(f"{label}.criteria: must be exactly {', '.join(output.criteria)}, in this order")
    return Scores(candidates=scores)


def _revision(output: Output, document: Document) -> Revision:
    """The revision without responses to unknown issues and second responses: nothing depends on them."""
    revision = _validated(_REVISION, document)
    raised = range(1, max(1, output.issues) + 1)
    answered = {response.issue: response for response in reversed(revision.responses) if response.issue in raised}
    kept = tuple(response for response in revision.responses if answered.get(response.issue) is response)
    return revision if kept == revision.responses else revision.model_copy(update={"responses": kept})


def _choice(output: Output, document: Document) -> Choice:
    choice = _validated(_CHOICE, document)
    if choice.choice not in output.labels:
        raise InvalidOutput(f"choice: must be one of {', '.join(output.labels)}")
    return choice


class _Call(BaseModel):
    name: str
    arguments: dict[str, JsonValue]


class _Reply(BaseModel):
    reply: JsonValue


class _Calls(BaseModel):
    calls: list[_Call] = Field(min_length=1)


_ACTION: TypeAdapter[_Reply | _Calls] = TypeAdapter(_Reply | _Calls)
_REVISION, _CHOICE = TypeAdapter(Revision), TypeAdapter(Choice)
_FORMS: dict[OutputKind, TypeAdapter[Any]] = {
    "answer": TypeAdapter(Answer),
    "critique": TypeAdapter(Critique),
    "pair": TypeAdapter(Pair),
    "turn": TypeAdapter(DebateTurn),
    "analysis": TypeAdapter(Analysis),
    "fusion": TypeAdapter(Answer),
    "program": TypeAdapter(Program),
    "tests": TypeAdapter(Tests),
    "report": TypeAdapter(SandboxReport),
}


def parse_output(output: Output, document: Document) -> ParsedOutput:
    """Parse a recorded text, or the object that it holds; raises InvalidOutput naming the first fault.

    A schema's answer becomes JSON. Whether it satisfies the schema, `readings` has checked before it was recorded.
    """
    if output.answer_schema:
        document = fields = _with_answer_as_text(document)
        if output.is_action:
            _validated(_ACTION, fields["answer"])
    match output.kind:
        case "revision":
            return _revision(output, document)
        case "score":
            return _scores(output, document)
        case "choice":
            return _choice(output, document)
        case kind:
            return _validated(_FORMS[kind], document)


def answer_text(parsed: ParsedOutput) -> str | None:
    match parsed:
        case Answer() | Revision() | DebateTurn():
            return parsed.answer
        case Program():
            return parsed.code
        case _:
            return None
