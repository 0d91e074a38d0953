"""Errors as problem documents (RFC 9457), unless a façade registers another format for its paths.

HTTP statuses live here, and in the façades' own tables, and nowhere else.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from app.api.refusals import ConnectionClosed, HttpError
from app.api.schemas import FieldProblem, Problem, dump
from app.api.suggestions import did_you_mean, field_names, field_places, required_names
from app.deliberation.errors import (
    ArchiveUnavailable,
    DeliberationError,
    InvalidRequest,
    JournalUnavailable,
    QueueFull,
    fault_of,
)

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_S = 2
INSTANCE_CHARS_MAX = 256
POINTER_CHARS_MAX = 256
ERRORS_MAX = 64
SEE_SCHEMA = "See /openapi.json for what is accepted here."

_RETRY_AFTER: Mapping[str, str] = MappingProxyType({"Retry-After": str(RETRY_AFTER_S)})

log = structlog.get_logger(__name__)


def _in_words(errors: Sequence[FieldProblem], unlisted: int = 0) -> str:
    """The detail of a problem with faults: the first of them, and how many more `errors` names."""
    first, more = errors[0], len(errors) + unlisted - 1
    detail = f"{first.pointer or 'The body'}: {first.detail.rstrip('.')}. {first.remedy}"
    if more == 0:
        return detail
    return f"{detail} `errors` names {more if more < ERRORS_MAX else f'{ERRORS_MAX - 1} of {more}'} more."


class ValidationFailed(InvalidRequest, HttpError):
    def __init__(self, errors: Sequence[FieldProblem], unlisted: int = 0) -> None:
        """`unlisted` counts the faults besides `errors`."""
        errors = tuple(dict.fromkeys(errors))
        super().__init__(_in_words(errors, unlisted))
        self.errors = errors[:ERRORS_MAX]


class InvalidJson(InvalidRequest):
    """The body is not strict JSON: malformed, NaN, a repeated key, or nested too deep."""

    code = "invalid_json"


class UnsupportedMediaType(InvalidRequest):
    code = "unsupported_media_type"


class UnsupportedCoding(UnsupportedMediaType, HttpError):
    headers = MappingProxyType({"Accept-Encoding": "identity"})


class NotAcceptable(InvalidRequest):
    code = "not_acceptable"


class BodyTooLarge(InvalidRequest, ConnectionClosed):
    code = "body_too_large"


class FilesFull(InvalidRequest):
    """The files of a tenant would take more than its share."""

    code = "files_full"


class BodyTimeout(ConnectionClosed):
    code = "body_timeout"
    retryable = True


class TooManyStreams(HttpError):
    code = "too_many_streams"
    retryable = True
    headers = _RETRY_AFTER


class StillLive(DeliberationError):
    code = "still_live"


class NotReady(HttpError):
    code = "not_ready"
    retryable = True
    headers = _RETRY_AFTER

    def __init__(self, detail: str, errors: Sequence[FieldProblem] = ()) -> None:
        super().__init__(detail)
        self.errors = tuple(errors)


# Status and title by code. An error with a code that is missing here is a defect and is answered as `internal_error`.
STATUSES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (422, "The request is not valid"),
    "unknown_role": (422, "The role does not exist"),
    "unknown_strategy": (422, "The strategy does not exist"),
    "search_too_slow": (422, "The search takes too long"),
    "malformed_request": (400, "The request is not HTTP"),
    "invalid_json": (400, "The body is not strict JSON"),
    "invalid_cursor": (400, "The cursor is not valid"),
    "key_in_url": (400, "The URL contains a credential"),
    "foreign_host": (400, "The Host header does not name this gateway"),
    "unauthenticated": (401, "The credential is missing or not valid"),
    "insufficient_scope": (403, "The credential does not permit this"),
    "cross_site": (403, "The request comes from a page of another site"),
    "invalid_id": (404, "No deliberation can have this id"),
    "not_found": (404, "The resource does not exist"),
    "method_not_allowed": (405, "The path does not support this method"),
    "not_acceptable": (406, "No acceptable media type is available"),
    "body_timeout": (408, "The body did not arrive in time"),
    "head_timeout": (408, "The head did not arrive in time"),
    "idempotency_conflict": (409, "The Idempotency-Key was used with another body"),
    "plan_conflict": (409, "The plan was approved with other content"),
    "keys_read_only": (409, "This gateway does not write keys"),
    "still_live": (409, "The deliberation has not ended"),
    "too_many_redeliveries": (409, "The delivery was requested too often"),
    "gone": (410, "The deliberation has been removed"),
    "precondition_failed": (412, "The deliberation has changed since that ETag"),
    "body_too_large": (413, "The body is too large"),
    "fact_too_large": (413, "The content is too large for the log"),
    "files_full": (413, "The tenant's files take all of its share"),
    "target_too_long": (414, "The request target is too long"),
    "unsupported_media_type": (415, "The body has another media type than the operation takes"),
    "queue_full": (429, "Too much work is waiting"),
    "spend_exhausted": (429, "The tenant has spent what it may in a day"),
    "rate_limited": (429, "The tenant sends too many requests"),
    "too_many_streams": (429, "Too many streams are open"),
    "head_too_large": (431, "The head is too large"),
    "journal_unavailable": (503, "The log cannot be reached"),
    "archive_unavailable": (503, "The archive cannot be reached"),
    "streams_differ": (503, "The streams are not as declared"),
    "too_many_connections": (503, "Too many connections are open"),
    "not_ready": (503, "The gateway is not ready"),
    "internal_error": (500, "The gateway failed"),
}
_QUOTED = re.compile("'([^']*)'")
_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 406: "not_acceptable"}
_INTERNAL = "The gateway failed on this request; its log has the cause under the request id."


def pointer(location: Sequence[int | str]) -> str:
    """A JSON pointer (RFC 6901) from a path of keys and indexes, at most POINTER_CHARS_MAX long."""
    parts = [part for part in location if part != "[key]"]  # pydantic's mark for a fault in the key itself
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)[:POINTER_CHARS_MAX]


def _field_problem(
    error: Mapping[str, Any],
    location: Any,  # noqa: ANN401 -- a literal
    path: str,
    fields: Iterable[str] = (),
) -> FieldProblem:
    kind, context = str(error["type"]), error.get("ctx", {})
    detail, remedy = fault_of(error)
    remedy = context.get("remedy") or remedy or SEE_SCHEMA
    if kind == "extra_forbidden":
        remedy = did_you_mean(error["loc"][-1], fields).strip() or remedy
    elif kind == "literal_error":
        remedy = did_you_mean(error["input"], _QUOTED.findall(context["expected"])) + remedy
    return FieldProblem(location=location, pointer=path, code=kind, detail=detail, remedy=remedy)


def _faults(
    invalid: ValidationError,
    location: Any,  # noqa: ANN401 -- a literal
    path: Callable[[Sequence[int | str]], str],
    model: type[BaseModel],
) -> ValidationFailed:
    """The first ERRORS_MAX faults that pydantic found in JSON or parameters of a model, and a count of the others.

    Given values are omitted: they belong to the client and may be secret.
    """
    faults: list[FieldProblem] = []
    for error in invalid.errors(include_url=False)[:ERRORS_MAX]:
        fields = field_names(model, error["loc"][:-1]) if error["type"] == "extra_forbidden" else ()
        fault = _field_problem(error, location, path(error["loc"]), fields)
        remedy = _remedy_by_schema(error, model)
        faults.append(fault.model_copy(update={"remedy": remedy}) if remedy else fault)
    return ValidationFailed(faults, invalid.error_count() - len(faults))


def _remedy_by_schema(error: Mapping[str, Any], model: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden" and (places := field_places(model).get(str(error["loc"][-1]))):
        return f"Did you mean {' or '.join(places)}?"
    if error["type"] == "model_type" and (names := required_names(model, error["loc"])):
        return f"Give an object with {' and '.join(names)}."
    return ""


def refused(code: str, detail: str, remedy: str) -> PydanticCustomError:
    """The error of a validator that refuses a field."""
    return PydanticCustomError(code, "{detail}", {"detail": detail, "remedy": remedy})  # pyright: ignore[reportArgumentType]


def body_fault(pointer: str, code: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(location="body", pointer=pointer, code=code, detail=detail, remedy=remedy)


def query_fault(pointer: str, code: str, detail: str, remedy: str) -> FieldProblem:
    return FieldProblem(location="query", pointer=pointer, code=code, detail=detail, remedy=remedy)


def body_problems(invalid: ValidationError, model: type[BaseModel], under: str = "") -> ValidationFailed:
    return _faults(invalid, "body", lambda location: under + pointer(location), model)


def parameter_problems(invalid: ValidationError, model: type[BaseModel]) -> ValidationFailed:
    return _faults(invalid, "query", lambda location: ".".join(map(str, location)), model)


def request_id_of(request: Request) -> str:
    return str(request.scope.get("request_id", ""))


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    code: str
    detail: str
    retryable: bool = False
    errors: tuple[FieldProblem, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ErrorFormat:
    """The format of errors below a path: `code_of` gives an error's public code, None for a defect."""

    code_of: Callable[[DeliberationError], str | None]
    render: Callable[[Request, ErrorAnswer], Response]


def problem(answer: ErrorAnswer, instance: str, request_id: str) -> Problem:
    status, title = STATUSES[answer.code]
    return Problem(
        type=f"urn:deliberation-gateway:problem:{answer.code}",
        title=title,
        status=status,
        detail=answer.detail,
        instance=instance,
        code=answer.code,
        request_id=request_id,
        retryable=answer.retryable,
        errors=answer.errors,
    )


def _problem_document(request: Request, answer: ErrorAnswer) -> Response:
    path = request.scope.get("raw_path", b"").decode("ascii", "replace")[:INSTANCE_CHARS_MAX]
    content = problem(answer, path, request_id_of(request))
    return Response(dump(content), content.status, {"Cache-Control": "no-store", **answer.headers}, PROBLEM_JSON)


PROBLEM_DOCUMENTS = ErrorFormat(lambda error: error.code if error.code in STATUSES else None, _problem_document)


def _format_of(request: Request) -> ErrorFormat:
    formats: Mapping[str, ErrorFormat] = request.app.state.error_formats
    path = request.url.path
    return next(
        (error_format for prefix, error_format in formats.items() if path.startswith(prefix)), PROBLEM_DOCUMENTS
    )


def _headers(error: DeliberationError) -> Mapping[str, str]:
    match error:
        case HttpError():
            return error.headers
        case QueueFull():
            return {"Retry-After": str(error.retry_after_s)}
        case JournalUnavailable() | ArchiveUnavailable():
            return _RETRY_AFTER
        case _:
            return {}


def _errors(error: DeliberationError) -> tuple[FieldProblem, ...]:
    match error:
        case HttpError(errors=errors) if errors:
            return errors
        case InvalidRequest(field=str(named)):
            # The headers of requests are written with capitals, and the parameters without.
            located = "body" if named.startswith("/") else "query" if named.islower() else "header"
            remedy = error.remedy or SEE_SCHEMA
            return (FieldProblem(location=located, pointer=named, code=error.code, detail=str(error), remedy=remedy),)
        case _:
            return ()


def answer_to(error: DeliberationError, format: ErrorFormat, request_id: str) -> ErrorAnswer:
    """The answer to an error; one without a public code is logged and answered as `internal_error`."""
    code = format.code_of(error)
    if code is None:
        log.error("request_failed", code=error.code, detail=str(error), request_id=request_id)
        return ErrorAnswer("internal_error", _INTERNAL)
    errors = _errors(error)
    # A credential's refusal is an exception: a client may show its `detail` alone.
    once = isinstance(error, InvalidRequest) and [str(error)] == [fault.detail for fault in errors]
    detail = _in_words(errors) if once else str(error)
    return ErrorAnswer(code, detail, error.retryable, errors, _headers(error))


def error_response(request: Request, error: DeliberationError) -> Response:
    format = _format_of(request)
    return format.render(request, answer_to(error, format, request_id_of(request)))


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DeliberationError)
    return error_response(request, error)


def _allowed(request: Request) -> str:
    routes: Sequence[BaseRoute] = request.app.state.served_routes
    own = [route for route in routes if getattr(route, "path", None) == request.scope["path"]]
    matching = own or [route for route in routes if route.matches(request.scope)[0] != Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _meant(request: Request) -> str:
    """A hint at the endpoint that a path means: clients add `/v1` twice or never, or end the path with a slash."""
    tail = re.sub("/+", "/", request.url.path).rstrip("/").rpartition("/v1/")[2].lstrip("/")
    known = {getattr(route, "path", None) for route in request.app.state.served_routes}
    place = next((path for path in (f"/v1/{tail}", f"/{tail}") if path in known), None)
    return f" Did you mean {place}?" if place else ""


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _BY_STATUS.get(error.status_code, "internal_error" if error.status_code >= 500 else "invalid_request")
    answer = ErrorAnswer(code, str(error.detail))
    if code == "not_found":
        answer = ErrorAnswer(code, f"No endpoint has this path; /openapi.json lists them all.{_meant(request)}")
    elif code == "method_not_allowed":
        allowed = _allowed(request)
        answer = ErrorAnswer(code, f"This path supports {allowed}.", headers={"Allow": allowed})
    return _format_of(request).render(request, answer)


async def _on_invalid_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    known = [parameter.alias for parameter in get_flat_params(request.scope["route"].dependant)]
    errors = [
        _field_problem(fault, fault["loc"][0], ".".join(map(str, fault["loc"][1:])), known)
        for fault in error.errors()[:ERRORS_MAX]
    ]
    return error_response(request, ValidationFailed(errors))


async def _on_defect(request: Request, error: Exception) -> Response:
    """Answer a defect without its cause. The response bypasses the middleware, so it carries the id itself."""
    request_id = request_id_of(request)
    log.error("request_crashed", request_id=request_id, exc_info=error)
    headers = {name.decode(): value.decode() for name, value in request.scope.get("answer_headers", ())}
    return _format_of(request).render(request, ErrorAnswer("internal_error", _INTERNAL, headers=headers))


def install(app: FastAPI, routes: Sequence[BaseRoute], formats: Mapping[str, ErrorFormat]) -> None:
    """Answer every error of `app`: by path prefix in one of `formats`, otherwise with a problem document."""
    app.state.error_formats = formats
    app.state.served_routes = routes
    app.state.served_paths = frozenset(getattr(route, "path", None) for route in routes)
    app.add_exception_handler(DeliberationError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameters)
    app.add_exception_handler(Exception, _on_defect)
