"""The one error tree.

DeliberationError
├── InvalidRequest            a client's request breaks the contract
│   ├── InvalidToken          a tenant, id, role or call id is not on the allow-list `[a-z0-9_-]{1,64}`
│   ├── InvalidCursor         the cursor of a stream, page or list cannot be used
│   └── IdempotencyConflict   the key was used with another body
├── NotFound                  no such deliberation for this tenant
├── Gone                      it existed and its facts have been removed
│   └── DeliberationDeleted   a tombstone hides it
├── QueueFull                 admission refused: too much accepted and unfinished work
├── JournalUnavailable        the log cannot be reached, or did not acknowledge in time
├── ArchiveUnavailable        the archive's database cannot be reached, or lacks its tables
├── ArchiveRefused            the archive's database refuses a value, and would refuse it again
├── FactTooLarge              a fact exceeds what the log stores in one piece
├── StreamsDiffer             the declared streams are missing or not as declared
├── UnexpectedFact            a fact that the state does not allow: the log is damaged or foreign
│   └── UnreadableFact        a fact has another form: a newer version wrote it, or it is damaged
├── StrategyDrift             a replay asks for other calls than the log records
│   └── UnknownStrategy       this version lacks the strategy, or has another version of it
├── Poisoned                  coordinator after coordinator dies or hangs on the deliberation
├── QuorumNotReached          no agent answered
├── NoAgreement               too few members give the same answer, and the request demands more
├── BudgetExhausted           the budget does not admit even the first stage
├── DeadlineExceeded          no answer by the deadline, or no verdict where the deadline must fail
└── CallFailure               one model request failed; recorded as an outcome, never as an answer
    ├── EngineUnavailable     refused, broken off, 5xx or overloaded after all attempts
    ├── EngineRejected        the engine refuses this request (4xx): asking again cannot help
    ├── AnswerWithheld        the model refused, or a content filter of the engine stopped it: not asked there again
    ├── CallTimeout           no answer within the call's deadline
    ├── InvalidOutput         the answer breaks its schema, also when asked again
    ├── InputGone             an input of the call is not stored any more
    ├── SandboxUnavailable    a program was not run, because the sandbox cannot isolate it on this machine
    └── CallCancelled         the call was stopped by a fact: a cancel, a closed stage, or the end

Each class carries a stable `code` and whether the same request may succeed later (`retryable`). HTTP statuses live in
`app.api.problems` alone.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

# The fault and the remedy, by pydantic's type of error. Its own words describe the validator and not the field.
_FAULTS: Mapping[str, tuple[str, str]] = {
    "missing": ("It is missing", "Add it."),
    "extra_forbidden": ("There is no such field", "Remove it."),
    "string_too_short": ("It is too short", "Give at least {min_length} character{s}."),
    "string_too_long": ("It is too long", "Give at most {max_length} character{s}."),
    "too_short": ("It has too few items", "Give at least {min_length} item{s}."),
    "too_long": ("It has too many items", "Give at most {max_length} item{s}."),
    "greater_than_equal": ("It is too small", "Give {ge} or more."),
    "greater_than": ("It is too small", "Give more than {gt}."),
    "less_than_equal": ("It is too large", "Give {le} or less."),
    "less_than": ("It is too large", "Give less than {lt}."),
    "string_pattern_mismatch": ("It has another form", "Match {pattern}."),
    "literal_error": ("There is no such value", "Give one of {expected}."),
    "string_type": ("It is not a string", "Give a string."),
    "int_type": ("It is not an integer", "Give an integer, not a string or a fraction."),
    "int_parsing": ("It is not an integer", "Give an integer."),
    "int_from_float": ("It is not an integer", "Give an integer, not a fraction."),
    "float_type": ("It is not a number", "Give a number."),
    "float_parsing": ("It is not a number", "Give a number."),
    "decimal_type": ("It is not a number", "Give a number."),
    "decimal_parsing": ("It is not a number", "Give a number."),
    "decimal_max_places": ("It is too exact", "Give at most {decimal_places} decimal places."),
    "finite_number": ("It is not finite", "Give a finite number."),
    "bool_type": ("It is neither true nor false", "Give true or false."),
    "bool_parsing": ("It is neither true nor false", "Give true or false."),
    "list_type": ("It is not a list", "Give a list."),
    "dict_type": ("It is not an object", "Give an object."),
    "model_type": ("It is not an object", "Give an object."),
}


def _plain(value: Any) -> Any:  # noqa: ANN401 -- a bound of any type
    return int(value) if isinstance(value, float) and value.is_integer() else value


def fault_of(error: Mapping[str, Any]) -> tuple[str, str]:
    """The fault of a field by an error of pydantic, and the remedy, if any; the value may be secret and stays out."""
    own = error.get("ctx", {})
    if "detail" in own and "remedy" in own:
        # A check of the gateway's under a code of pydantic's.
        return own["detail"], own["remedy"]
    detail, remedy = _FAULTS.get(str(error["type"]), (str(error["msg"]).removeprefix("Value error, "), ""))
    context = {name: _plain(value) for name, value in error.get("ctx", {}).items()}
    s = "" if context.get("min_length", context.get("max_length")) == 1 else "s"
    return detail, remedy.format(**context, s=s)


class DeliberationError(Exception):
    """Root of every error that this product raises on purpose; clients may see `str(error)`."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False


class InvalidRequest(DeliberationError):
    """`field` is a JSON pointer or the name of a parameter or header; `remedy` says how to mend the request."""

    code = "invalid_request"

    def __init__(self, detail: str, field: str | None = None, remedy: str | None = None) -> None:
        super().__init__(detail)
        self.field = field
        self.remedy = remedy


class InvalidToken(InvalidRequest):
    code = "invalid_id"


class InvalidCursor(InvalidRequest):
    code = "invalid_cursor"


class IdempotencyConflict(InvalidRequest):
    code = "idempotency_conflict"


class NotFound(DeliberationError):
    code = "not_found"


class Gone(DeliberationError):
    code = "gone"


class DeliberationDeleted(Gone):
    """A tombstone in the log hides the deliberation, wherever else it is still stored."""


class QueueFull(DeliberationError):
    code = "queue_full"
    retryable = True

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class JournalUnavailable(DeliberationError):
    code = "journal_unavailable"
    retryable = True


class ArchiveUnavailable(DeliberationError):
    code = "archive_unavailable"
    retryable = True


class ArchiveRefused(DeliberationError):
    code = "archive_refused"


class FactTooLarge(DeliberationError):
    code = "fact_too_large"


class StreamsDiffer(DeliberationError):
    code = "streams_differ"


class UnexpectedFact(DeliberationError):
    code = "unexpected_fact"


class UnreadableFact(UnexpectedFact):
    pass


class StrategyDrift(DeliberationError):
    code = "strategy_drift"


class UnknownStrategy(StrategyDrift):
    pass


class Poisoned(DeliberationError):
    code = "poisoned"


class QuorumNotReached(DeliberationError):
    code = "no_answers"
    retryable = True


class NoAgreement(DeliberationError):
    """Its text has the tally."""

    code = "no_agreement"


class BudgetExhausted(DeliberationError):
    code = "budget_exhausted"


class DeadlineExceeded(DeliberationError):
    code = "deadline_exceeded"
    retryable = True


class CallFailure(DeliberationError):
    code = "call_failed"


class EngineUnavailable(CallFailure):
    code = "engine_unavailable"
    retryable = True


class EngineRejected(CallFailure):
    code = "engine_rejected"


class AnswerWithheld(CallFailure):
    code = "answer_withheld"


class CallTimeout(CallFailure):
    code = "call_timeout"
    retryable = True


class InvalidOutput(CallFailure):
    """`finish_reason` is that of the reply."""

    code = "invalid_output"
    finish_reason: str | None = None


class InputGone(CallFailure):
    """An input of the call is not stored any more."""

    code = "input_gone"


class SandboxUnavailable(CallFailure):
    code = "sandbox_unavailable"


class CallCancelled(CallFailure):
    code = "call_cancelled"
