"""The one error tree.

DeliberationError
├── InvalidRequest            a client's request breaks the contract
│   ├── InvalidToken          a tenant, id, role or call id is not on the allow-list
│   ├── InvalidCursor         the cursor of a stream, page or list cannot be used
│   └── IdempotencyConflict   the key was used with another body
├── NotFound                  no such deliberation for this tenant
├── Gone                      it existed and its facts have been removed
├── QueueFull                 admission refused: too much accepted and unfinished work
├── JournalUnavailable        the log cannot be reached, or did not acknowledge in time
├── FactTooLarge              a fact exceeds what the log stores in one piece
├── StreamsDiffer             the declared streams are missing or not as declared
├── UnexpectedFact            a fact that the state does not allow: the log is damaged or foreign
├── StrategyDrift             a replay asks for other calls than the log records
├── Poisoned                  coordinator after coordinator dies or hangs on the deliberation
├── QuorumNotReached          no agent answered
├── BudgetExhausted           the budget does not admit even the first stage
├── DeadlineExceeded          no answer by the deadline, or no verdict where the deadline must fail
└── CallFailure               one model request failed; recorded as an outcome, never as an answer
    ├── EngineUnavailable     refused, broken off, 5xx or overloaded after all attempts
    ├── EngineRejected        the engine refuses this request (4xx): asking again cannot help
    ├── CallTimeout           no answer within the call's deadline
    ├── InvalidOutput         the answer breaks its schema, also when asked again
    ├── SandboxUnavailable    a program was not run, because the sandbox cannot isolate it on this machine
    └── CallCancelled         the call was stopped by a fact

Each class carries a stable `code` and whether the same request may succeed later (`retryable`). HTTP statuses live in
`app.api.problems` alone.
"""

from typing import ClassVar


class DeliberationError(Exception):
    """Root of every error that this product raises on purpose; clients may see `str(error)`."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False


class InvalidRequest(DeliberationError):
    """A request breaks the contract; `field` names the offending field as a JSON pointer or parameter name."""

    code = "invalid_request"

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class InvalidToken(InvalidRequest):
    """A subject token is not on the allow-list `[a-z0-9_-]{1,64}`."""

    code = "invalid_id"


class InvalidCursor(InvalidRequest):
    """A cursor does not parse, or belongs to another log."""

    code = "invalid_cursor"


class IdempotencyConflict(InvalidRequest):
    """The Idempotency-Key was used before with another body."""

    code = "idempotency_conflict"


class NotFound(DeliberationError):
    """No such deliberation for this tenant."""

    code = "not_found"


class Gone(DeliberationError):
    """The deliberation existed; retention or deletion has removed its facts."""

    code = "gone"


class QueueFull(DeliberationError):
    """Too many deliberations are accepted and unfinished; `retry_after_s` is when to try again."""

    code = "queue_full"
    retryable = True

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class JournalUnavailable(DeliberationError):
    """The log did not answer in time; nothing is known to be stored."""

    code = "journal_unavailable"
    retryable = True


class FactTooLarge(DeliberationError):
    """A fact exceeds what the log stores in one piece."""

    code = "fact_too_large"


class StreamsDiffer(DeliberationError):
    """Streams are missing or differ from what is declared; the text lists each difference."""

    code = "streams_differ"


class UnexpectedFact(DeliberationError):
    """A fact that the deliberation's state does not allow."""

    code = "unexpected_fact"


class StrategyDrift(DeliberationError):
    """A replayed strategy asks for other calls than the log records."""

    code = "strategy_drift"


class Poisoned(DeliberationError):
    """Coordinator after coordinator dies or hangs on the deliberation."""

    code = "poisoned"


class QuorumNotReached(DeliberationError):
    """No agent answered."""

    code = "no_answers"
    retryable = True


class BudgetExhausted(DeliberationError):
    """The budget does not admit even the first stage."""

    code = "budget_exhausted"


class DeadlineExceeded(DeliberationError):
    """The deadline passed without an answer, or without a verdict where it must fail."""

    code = "deadline_exceeded"
    retryable = True


class CallFailure(DeliberationError):
    """One model request failed."""

    code = "call_failed"


class EngineUnavailable(CallFailure):
    """The engine refused the connection, broke it off, answered 5xx, or stayed overloaded."""

    code = "engine_unavailable"
    retryable = True


class EngineRejected(CallFailure):
    """The engine answered 4xx: repeating the request cannot help."""

    code = "engine_rejected"


class CallTimeout(CallFailure):
    """No complete answer within the call's deadline, or no token within the idle limit."""

    code = "call_timeout"
    retryable = True


class InvalidOutput(CallFailure):
    """The answer does not satisfy its schema."""

    code = "invalid_output"


class SandboxUnavailable(CallFailure):
    """The sandbox cannot isolate programs on this machine, or broke off; no program runs without it."""

    code = "sandbox_unavailable"


class CallCancelled(CallFailure):
    """The call was stopped by a fact: cancel, a closed stage, or the end."""

    code = "call_cancelled"
