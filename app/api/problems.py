"""Errors as problem documents (RFC 9457), and below `/v1/` as OpenAI's clients read them.

HTTP statuses live here and nowhere else.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from app.api.refusals import Refusal
from app.api.schemas import FieldProblem, Problem, dump
from app.deliberation.calls import FactProblem
from app.deliberation.errors import DeliberationError, InvalidRequest, JournalUnavailable, QueueFull
from app.openai.problems import refusal, told
from app.openai.schemas import OpenAIError

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_S = 2
INSTANCE_CHARS_MAX = 256
POINTER_CHARS_MAX = 256
ERRORS_MAX = 64
NAMED_MAX = 8

log = structlog.get_logger(__name__)


class ValidationFailed(InvalidRequest):
    """A request breaks the contract in one or more places; `errors` names each."""

    def __init__(self, errors: Sequence[FieldProblem]) -> None:
        named = ", ".join(dict.fromkeys(error.pointer or "the body" for error in errors[:NAMED_MAX]))
        more = f" and {len(errors) - NAMED_MAX} more" if len(errors) > NAMED_MAX else ""
        super().__init__(f"The request is not valid: {named}{more}")
        self.errors = tuple(errors[:ERRORS_MAX])


class InvalidJson(InvalidRequest):
    """The body is not strict JSON: malformed, NaN, a repeated key, or nested too deep."""

    code = "invalid_json"


class UnsupportedMediaType(InvalidRequest):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"


class NotAcceptable(InvalidRequest):
    """None of the media types that the client accepts can be answered."""

    code = "not_acceptable"


class BodyTooLarge(InvalidRequest):
    """The body is larger than is read."""

    code = "body_too_large"


class BodyTimeout(DeliberationError):
    """The body did not arrive in time."""

    code = "body_timeout"
    retryable = True


class TooManyStreams(DeliberationError):
    """The limit of open streams is reached."""

    code = "too_many_streams"
    retryable = True


class StillLive(DeliberationError):
    """What is asked for takes a deliberation that has ended."""

    code = "still_live"


class NotReady(DeliberationError):
    """Something that serving needs is missing; `errors` names each."""

    code: ClassVar[str] = "not_ready"
    retryable: ClassVar[bool] = True

    def __init__(self, detail: str, errors: Sequence[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.errors = tuple(errors)


class ModelNotFound(DeliberationError):
    """No strategy and role have this name together."""

    code = "model_not_found"


class NoVerdict(DeliberationError):
    """A deliberation that was waited for ended without an answer, or has not ended in time; `problem` says why."""

    code = "no_verdict"

    def __init__(self, problem: FactProblem, deliberation_id: str) -> None:
        super().__init__(f"Deliberation {deliberation_id}: {problem.detail}")
        self.problem = problem
        self.deliberation_id = deliberation_id


# code → (status, title): the only place where an error meets HTTP. What is not here is the gateway's own fault.
STATUSES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (422, "The request is not valid"),
    "unknown_role": (422, "No such role"),
    "unknown_strategy": (422, "No such strategy"),
    "invalid_json": (400, "The body is not strict JSON"),
    "invalid_cursor": (400, "The cursor is not one of this stream"),
    "key_in_url": (400, "A credential stands in the URL"),
    "foreign_host": (400, "Not asked under this machine's own name"),
    "unauthenticated": (401, "No credential, or none that is good"),
    "insufficient_scope": (403, "The credential does not permit this"),
    "cross_site": (403, "Asked from a page of another site"),
    "invalid_id": (404, "No deliberation can have this id"),
    "not_found": (404, "Nothing is here"),
    "method_not_allowed": (405, "This path does not take this method"),
    "not_acceptable": (406, "No acceptable media type"),
    "body_timeout": (408, "The body did not arrive in time"),
    "idempotency_conflict": (409, "The Idempotency-Key was used with another body"),
    "still_live": (409, "The deliberation has not ended"),
    "too_many_redeliveries": (409, "The delivery was asked for too often"),
    "gone": (410, "The deliberation has been removed"),
    "body_too_large": (413, "The body is too large"),
    "fact_too_large": (413, "The log cannot hold this in one piece"),
    "unsupported_media_type": (415, "The body must be JSON"),
    "queue_full": (429, "Too much work is waiting"),
    "rate_limited": (429, "The tenant asks too often"),
    "too_many_streams": (429, "Too many open streams"),
    "journal_unavailable": (503, "The log cannot be reached"),
    "streams_differ": (503, "The streams are not as declared"),
    "not_ready": (503, "Not ready"),
    "internal_error": (500, "The gateway failed"),
}
# Below /v1/ alone: no such model, and ends without a verdict. An end that is not here is told as `no_verdict`.
CHAT_STATUSES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "The request is not valid; `code` says in what way"),
    "budget_exhausted": (400, "The budget does not admit the first stage"),
    "model_not_found": (404, "There is no such model"),
    "cancelled": (409, "The deliberation was cancelled by somebody else"),
    "no_answers": (502, "No agent answered"),
    "no_verdict": (502, "The deliberation failed"),
    "deadline_exceeded": (504, "The deliberation's deadline passed"),
}
CLIENT_LEFT = 499
_CHAT_PATHS = "/v1/"
_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 406: "not_acceptable"}
_INTERNAL = "The gateway failed on this request; its log has the cause under the request id."

_REMEDIES: Mapping[str, str] = {
    "missing": "Add it.",
    "extra_forbidden": "Remove it: unknown fields are refused, never ignored.",
    "string_too_short": "Give at least {min_length} characters.",
    "string_too_long": "Give at most {max_length} characters.",
    "too_short": "Give at least {min_length} entries.",
    "too_long": "Give at most {max_length} entries.",
    "greater_than_equal": "Give {ge} or more.",
    "greater_than": "Give more than {gt}.",
    "less_than_equal": "Give {le} or less.",
    "less_than": "Give less than {lt}.",
    "string_pattern_mismatch": "Match {pattern}.",
    "literal_error": "Give one of {expected}.",
    "string_type": "Give a string.",
    "int_type": "Give an integer, not a string or a fraction.",
    "int_from_float": "Give an integer, not a fraction.",
    "float_type": "Give a number.",
    "bool_type": "Give true or false.",
    "list_type": "Give a list.",
    "dict_type": "Give an object.",
    "model_type": "Give an object.",
}


def pointer(location: Sequence[int | str]) -> str:
    """A JSON pointer (RFC 6901) from a path of keys and indexes, cut where a client's own key is endless."""
    parts = [part for part in location if part != "[key]"]  # how pydantic says that a key itself is at fault
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)[:POINTER_CHARS_MAX]


def _remedy(kind: str, context: Mapping[str, Any]) -> str:
    if "remedy" in context:
        return str(context["remedy"])
    return _REMEDIES.get(kind, "See /openapi.json for what is taken here.").format(**context)


def _field_problem(error: Mapping[str, Any], location: Any, path: str) -> FieldProblem:  # noqa: ANN401 -- a literal
    kind, context = str(error["type"]), dict(error.get("ctx", {}))
    return FieldProblem(
        location=location, pointer=path, code=kind, detail=str(error["msg"]), remedy=_remedy(kind, context)
    )


def body_problems(invalid: ValidationError, under: str = "") -> ValidationFailed:
    """Every fault that pydantic found in a body, or in the part of it that the pointer `under` names.

    The values are left out: they are the client's, and may be secret.
    """
    errors = invalid.errors(include_url=False, include_input=False)
    return ValidationFailed([_field_problem(error, "body", under + pointer(error["loc"])) for error in errors])


def parameter_problems(invalid: ValidationError) -> ValidationFailed:
    """Every fault that pydantic found in query parameters."""
    errors = invalid.errors(include_url=False, include_input=False)
    return ValidationFailed([_field_problem(error, "query", ".".join(map(str, error["loc"]))) for error in errors])


def _status(code: str) -> tuple[int, str]:
    return STATUSES.get(code, STATUSES["internal_error"])


def request_id_of(request: Request) -> str:
    """The id under which this request is logged."""
    return str(request.scope.get("request_id", ""))


def problem_response(
    request: Request,
    code: str,
    detail: str,
    *,
    retryable: bool = False,
    errors: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for one error."""
    if request.url.path.startswith(_CHAT_PATHS):
        status, error = chat_error(code, detail, errors)
        return refusal(status, error, headers or {})
    status, title = _status(code)
    problem = Problem(
        type=f"urn:deliberation-gateway:problem:{code}",
        title=title,
        status=status,
        detail=detail,
        instance=request.scope.get("raw_path", b"").decode("ascii", "replace")[:INSTANCE_CHARS_MAX],
        code=code,
        request_id=request_id_of(request),
        retryable=retryable,
        errors=tuple(errors),
    )
    sent = {"Cache-Control": "no-store", **(headers or {})}
    return Response(dump(problem), status, sent, PROBLEM_JSON)


def chat_error(code: str, detail: str, errors: Sequence[FieldProblem] = ()) -> tuple[int, OpenAIError]:
    """One error below /v1/: its status, and how OpenAI's clients read it."""
    status, _ = CHAT_STATUSES.get(code) or _status(code)
    return status, told(status, code, detail, errors)


def chat_headers(deliberation_id: str) -> dict[str, str]:
    """Where whoever waits for a chat completion finds the deliberation behind it."""
    return {"Location": f"/deliberations/{deliberation_id}", "X-Deliberation-Id": deliberation_id}


def _told_as(error: DeliberationError, request_id: str) -> tuple[str, str]:
    """The code and the text by which an error is told. What has no status is the gateway's own fault, and is logged."""
    code = error.problem.code if isinstance(error, NoVerdict) else error.code
    if isinstance(error, NoVerdict) and code not in CHAT_STATUSES:
        code = error.code
    if code in STATUSES or code in CHAT_STATUSES:
        return code, str(error)
    log.error("request_failed", code=code, detail=str(error), request_id=request_id)
    return "internal_error", _INTERNAL


def stream_error(error: DeliberationError, request_id: str) -> OpenAIError:
    """An error that ends a chat completion's stream, whose status is sent already."""
    return chat_error(*_told_as(error, request_id))[1]


def _headers(error: DeliberationError) -> dict[str, str]:
    match error:
        case NoVerdict():
            return chat_headers(error.deliberation_id)
        case Refusal():
            return error.headers
        case QueueFull():
            return {"Retry-After": str(error.retry_after_s)}
        case JournalUnavailable() | NotReady() | TooManyStreams():
            return {"Retry-After": str(RETRY_AFTER_S)}
        case BodyTooLarge() | BodyTimeout():
            return {"Connection": "close"}  # the rest of the body is not read, so nothing can follow it
        case _:
            return {}


def _errors(error: DeliberationError) -> tuple[FieldProblem, ...]:
    match error:
        case ValidationFailed() | NotReady() | Refusal():
            return error.errors
        case ModelNotFound():
            remedy = "Name it <strategy>/<ROLE>; GET /v1/models lists them."
            fault = FieldProblem(location="body", pointer="/model", code=error.code, detail=str(error), remedy=remedy)
            return (fault,)
        case InvalidRequest(field=str(field)):
            remedy = "See /openapi.json for what is taken here."
            located = "body" if field.startswith("/") else "query"
            return (FieldProblem(location=located, pointer=field, code=error.code, detail=str(error), remedy=remedy),)
        case _:
            return ()


async def _on_error(request: Request, error: Exception) -> Response:
    """A deliberate error: its code decides the status. One that has none is told as the gateway's own."""
    assert isinstance(error, DeliberationError)
    code, detail = _told_as(error, request_id_of(request))
    return problem_response(
        request,
        code,
        detail,
        retryable=error.retryable and code != "internal_error",
        errors=_errors(error),
        headers=_headers(error),
    )


def _allowed(scope: Scope, routes: Sequence[BaseRoute]) -> str:
    """The methods that the path of a request takes, as the Allow header lists them."""
    methods: set[str] = set()
    for route in routes:
        if route.matches(scope)[0] != Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(methods))


def _on_http_exception(routes: Sequence[BaseRoute]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Handles what the router itself refuses: an unknown path, a method that the path does not take."""

    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _BY_STATUS.get(error.status_code, "internal_error" if error.status_code >= 500 else "invalid_request")
        if code == "not_found":
            return problem_response(request, code, "No endpoint has this path; /openapi.json lists them all.")
        if code == "method_not_allowed":
            allowed = _allowed(request.scope, routes)
            return problem_response(request, code, f"This path takes {allowed}.", headers={"Allow": allowed})
        return problem_response(request, code, str(error.detail))

    return handle


async def _on_invalid_parameters(request: Request, error: Exception) -> Response:
    """What the framework found in path, query or header parameters."""
    assert isinstance(error, RequestValidationError)
    errors = [_field_problem(fault, fault["loc"][0], ".".join(map(str, fault["loc"][1:]))) for fault in error.errors()]
    return await _on_error(request, ValidationFailed(errors))


async def _on_defect(request: Request, error: Exception) -> Response:
    """A defect: told without any of its inside. This answer bypasses the middleware, so it carries the id itself."""
    request_id = request_id_of(request)
    log.error("request_crashed", request_id=request_id, exc_info=error)
    told = {name.decode(): value.decode() for name, value in request.scope.get("answer_headers", ())}
    return problem_response(request, "internal_error", _INTERNAL, headers=told)


def refused(request: Request, refusal: Refusal) -> Response:
    """The answer for what is turned away before it reaches a route."""
    return problem_response(
        request, refusal.code, str(refusal), errors=refusal.errors, headers=refusal.headers, retryable=refusal.retryable
    )


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer every error of `app` with a problem document. `routes` are all that it serves."""
    app.add_exception_handler(DeliberationError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception(routes))
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(Exception, _on_defect)
