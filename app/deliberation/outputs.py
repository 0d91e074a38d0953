"""Structured outputs: the JSON Schema that an engine is given, and the same bounds checked again on what comes back.

Every string, array and integer is bounded, because constrained decoding of an unbounded schema may never end
(vLLM issue 17393: endless whitespace). Rationale fields precede scores, so that a score is written after its reasons.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from app.deliberation.errors import InvalidOutput
from app.deliberation.specification import Value

REASONING_CHARS_MAX = 2_000
ISSUES_MAX = 8

OutputKind = Literal["answer", "critique", "revision", "score", "pair"]


class Output(Value, frozen=True):
    """Which schema a call's answer must satisfy.

    `labels` and `criteria` shape a score; `issues` is how many a revision responds to at most; `answer_chars_max`
    bounds the answer of a proposal or a revision.
    """

    kind: OutputKind
    labels: tuple[str, ...] = ()
    criteria: tuple[str, ...] = ()
    issues: int = ISSUES_MAX
    answer_chars_max: int = 8_192


class _Parsed(BaseModel):
    """Base of parsed outputs: closed, frozen, and strict, so that "7" is not a score of 7."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _whole(number: object) -> object:
    return int(number) if isinstance(number, float) and number.is_integer() else number


# JSON has one kind of number, and JSON Schema calls 7.0 an integer.
_Integer = Annotated[int, BeforeValidator(_whole)]


class Answer(_Parsed):
    """A proposal: reasons first, then the answer itself, then the author's confidence in percent."""

    reasoning: str = Field(max_length=REASONING_CHARS_MAX)
    answer: str = Field(min_length=1)
    confidence: _Integer = Field(ge=0, le=100)


class Issue(_Parsed):
    """One falsifiable fault that a critic found."""

    severity: Literal["blocker", "major", "minor"]
    where: str = Field(max_length=200)
    claim: str = Field(max_length=500)
    evidence: str = Field(max_length=800)
    fix: str = Field(max_length=800)


class Critique(_Parsed):
    """A critic's reading of one candidate; no issue at all is a valid finding."""

    issues: tuple[Issue, ...] = Field(max_length=ISSUES_MAX, strict=False)
    verdict: Literal["accept", "revise", "reject"]

    @property
    def demands_revision(self) -> bool:
        """Whether some issue is major or a blocker."""
        return any(issue.severity != "minor" for issue in self.issues)


class IssueResponse(_Parsed):
    """What the author makes of one issue, by its number in the prompt."""

    issue: _Integer = Field(ge=1)
    decision: Literal["accept", "reject"]
    reason: str = Field(max_length=500)


class Revision(_Parsed):
    """An author's new version, with a response to each issue."""

    responses: tuple[IssueResponse, ...] = Field(strict=False)
    answer: str = Field(min_length=1)
    confidence: _Integer = Field(ge=0, le=100)


class CriterionScore(_Parsed):
    """Evidence and a score out of ten for one criterion."""

    id: str
    rationale: str = Field(max_length=600)
    score: _Integer = Field(ge=0, le=10)


class CandidateScore(_Parsed):
    """One candidate's scores, in the rubric's order."""

    criteria: tuple[CriterionScore, ...] = Field(strict=False)


class Scores(_Parsed):
    """A listwise ballot: every shown label with its scores."""

    candidates: dict[str, CandidateScore]


class Pair(_Parsed):
    """A comparison of two candidates: notes on each before the winner."""

    notes_a: str = Field(max_length=1_500)
    notes_b: str = Field(max_length=1_500)
    winner: Literal["A", "B", "tie"]
    margin: _Integer = Field(ge=1, le=3)


ParsedOutput = Answer | Critique | Revision | Scores | Pair
_Form = TypeVar("_Form")
_CANDIDATES: TypeAdapter[dict[str, CandidateScore]] = TypeAdapter(dict[str, CandidateScore])
_WHERE_CHARS_MAX = 200


def _text(chars_max: int, chars_min: int = 0) -> dict[str, Any]:
    bound: dict[str, Any] = {"type": "string", "maxLength": chars_max}
    return bound if not chars_min else {**bound, "minLength": chars_min}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_SCORE = {"type": "integer", "minimum": 0, "maximum": 10}
_CONFIDENCE = {"type": "integer", "minimum": 0, "maximum": 100}


def _score_schema(output: Output) -> dict[str, Any]:
    criteria = [
        _object(
            {
                "id": {"const": criterion},
                "rationale": _text(600),
                "score": {"type": "integer", "minimum": 0, "maximum": 10},
            }
        )
        for criterion in output.criteria
    ]
    size = len(criteria)
    # prefixItems, not items with an enum of ids: constrained decoding then cannot leave a criterion out or repeat one.
    listing = {"type": "array", "prefixItems": criteria, "items": False, "minItems": size, "maxItems": size}
    return _object({label: _object({"criteria": listing}) for label in output.labels})


@lru_cache(maxsize=256)
def json_schema(output: Output) -> dict[str, Any]:
    """The bounded JSON Schema of `output`, for `response_format: json_schema`. Callers must not change it."""
    match output.kind:
        case "answer":
            return _object(
                {
                    "reasoning": _text(REASONING_CHARS_MAX),
                    "answer": _text(output.answer_chars_max, 1),
                    "confidence": _CONFIDENCE,
                }
            )
        case "critique":
            issue = _object(
                {
                    "severity": {"enum": ["blocker", "major", "minor"]},
                    "where": _text(200),
                    "claim": _text(500),
                    "evidence": _text(800),
                    "fix": _text(800),
                }
            )
            return _object(
                {
                    "issues": {"type": "array", "items": issue, "minItems": 0, "maxItems": ISSUES_MAX},
                    "verdict": {"enum": ["accept", "revise", "reject"]},
                }
            )
        case "revision":
            response = _object(
                {
                    "issue": {"type": "integer", "minimum": 1, "maximum": max(1, output.issues)},
                    "decision": {"enum": ["accept", "reject"]},
                    "reason": _text(500),
                }
            )
            return _object(
                {
                    "responses": {"type": "array", "items": response, "minItems": 0, "maxItems": max(1, output.issues)},
                    "answer": _text(output.answer_chars_max, 1),
                    "confidence": _CONFIDENCE,
                }
            )
        case "score":
            return _score_schema(output)
        case "pair":
            return _object(
                {
                    "notes_a": _text(1_500),
                    "notes_b": _text(1_500),
                    "winner": {"enum": ["A", "B", "tie"]},
                    "margin": {"type": "integer", "minimum": 1, "maximum": 3},
                }
            )


def _distinct(pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        repeated = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidOutput(f"{repeated[:_WHERE_CHARS_MAX]}: stands twice in one object")


def _validated(validate: Callable[[str], _Form], text: str) -> _Form:
    try:
        parsed = validate(text)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        # A field that should not be there is named by whoever wrote it, at any length.
        where = ".".join(str(part) for part in first["loc"])[:_WHERE_CHARS_MAX] or "the document"
        raise InvalidOutput(f"{where}: {first['msg']}") from exc
    # Of two equal names in an object a parser takes one, which one is anybody's guess: such an answer says nothing.
    json.loads(text, object_pairs_hook=_distinct)
    return parsed


def _scores(output: Output, text: str) -> Scores:
    scores = _validated(_CANDIDATES.validate_json, text)
    if set(scores) != set(output.labels):
        raise InvalidOutput(f"scores must cover exactly the labels {', '.join(output.labels)}")
    for label, candidate in scores.items():
        if tuple(entry.id for entry in candidate.criteria) != output.criteria:
            raise InvalidOutput(f"{label}.criteria: must be exactly {', '.join(output.criteria)}, in this order")
    return Scores(candidates=scores)


def _revision(output: Output, text: str) -> Revision:
    revision = _validated(Revision.model_validate_json, text)
    issues = max(1, output.issues)
    if len(revision.responses) > issues or any(response.issue > issues for response in revision.responses):
        raise InvalidOutput(f"responses: more than {issues} issues are answered")
    return revision


def _bounded(answer: str, output: Output) -> None:
    if len(answer) > output.answer_chars_max:
        raise InvalidOutput(f"answer: longer than {output.answer_chars_max} characters")


def parse_output(output: Output, text: str) -> ParsedOutput:
    """Parse and check an engine's text against `output`; raise InvalidOutput naming the first fault."""
    match output.kind:
        case "answer":
            answer = _validated(Answer.model_validate_json, text)
            _bounded(answer.answer, output)
            return answer
        case "critique":
            return _validated(Critique.model_validate_json, text)
        case "revision":
            revision = _revision(output, text)
            _bounded(revision.answer, output)
            return revision
        case "score":
            return _scores(output, text)
        case "pair":
            return _validated(Pair.model_validate_json, text)
