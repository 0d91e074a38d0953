"""Errors as the clients of OpenAI's APIs read them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from app.api.problems import STATUSES, ErrorAnswer, ErrorFormat, answer_to
from app.api.responses import Declared, declared_errors
from app.api.schemas import Resource, dump
from app.deliberation.errors import DeliberationError
from app.facades.declaration import Facade
from app.facades.outcomes import NoVerdict

NAMED_MAX = 8
DONE_DATA = "[DONE]"
DONE = f"data: {DONE_DATA}\n\n".encode()
# Status and title of the codes that differ from, or are missing in, `app.api.problems.STATUSES`.
OPENAI_STATUSES: Mapping[str, tuple[int, str]] = {
    "invalid_request": (400, "The request is not valid; `code` says in what way"),
    "budget_exhausted": (400, "The budget does not admit the first stage"),
    "model_not_found": (404, "There is no such model"),
    "cancelled": (409, "The deliberation was cancelled by another request"),
    "no_agreement": (409, "Too few members agree, and the request demands more"),
    "no_answers": (502, "No agent answered"),
    "no_verdict": (502, "The deliberation failed"),
    "deadline_exceeded": (504, "The deliberation's deadline passed"),
}
# A retry would pay for the deliberation again, or meet the same conflict; after `spend_exhausted` it comes too soon.
_NOT_TO_BE_RETRIED = (409, 502, 504)
# OpenAI's code for pydantic's or the gateway's; other codes stay.
_CODES: Mapping[str, str] = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    **{f"{kind}_type": "invalid_type" for kind in ("string", "int", "float", "bool", "list", "dict", "model")},
    **{bound: "invalid_value" for bound in ("greater_than_equal", "greater_than", "less_than_equal", "less_than")},
    **{bound: "invalid_value" for bound in ("string_too_short", "string_too_long", "too_short", "too_long")},
    "unauthenticated": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "spend_exhausted": "insufficient_quota",
    **{kind: "invalid_value" for kind in ("literal_error", "string_pattern_mismatch", "int_from_float", "blank")},
}


class OpenAIErrorDetail(Resource):
    """The error."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None = Field(description="The first invalid field, for example `messages[0].content`")
    code: str | None = Field(description="A stable code for programs")


class OpenAIError(Resource):
    """An error in OpenAI's format."""

    error: OpenAIErrorDetail


def param(pointer: str) -> str | None:
    """`/messages/0/content` as `messages[0].content`; None for the whole body."""
    dotted = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", pointer.removeprefix("/").replace("/", "."))
    return dotted.replace("~1", "/").replace("~0", "~") or None


def _code_of(error: DeliberationError) -> str | None:
    if isinstance(error, NoVerdict) and error.problem.code in OPENAI_STATUSES:
        return error.problem.code
    return error.code if error.code in OPENAI_STATUSES or error.code in STATUSES else None


def _openai_error(answer: ErrorAnswer) -> tuple[int, OpenAIError]:
    status, _ = OPENAI_STATUSES.get(answer.code) or STATUSES[answer.code]
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    errors = answer.errors
    faults = [
        f"{param(fault.pointer) or 'the body'}: {fault.detail.rstrip('.')}. {fault.remedy}"
        for fault in errors[:NAMED_MAX]
    ]
    first = errors[0] if errors else None
    detail = OpenAIErrorDetail(
        message=" ".join(faults) or answer.detail,
        type=kind,
        param=None if first is None else param(first.pointer),
        code=answer.code if first is None else _CODES.get(first.code, first.code),
    )
    return status, OpenAIError(error=detail)


def _render(request: Request, answer: ErrorAnswer) -> Response:
    status, error = _openai_error(answer)
    sent = {"Cache-Control": "no-store", **answer.headers}
    if status in _NOT_TO_BE_RETRIED or answer.code == "spend_exhausted":
        sent["X-Should-Retry"] = "false"  # OpenAI's clients check it before they retry
    return Response(dump(error), status, sent, "application/json")


OPENAI_ERRORS = ErrorFormat(_code_of, _render)


def stream_error(error: DeliberationError, request_id: str) -> OpenAIError:
    return _openai_error(answer_to(error, OPENAI_ERRORS, request_id))[1]


def openai_errors(*statuses: int) -> Declared:
    def content(_: Iterable[str]) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": "#/components/schemas/OpenAIError"}}}

    names = ("Location", "X-Deliberation-Id")
    further = {400: names, **dict.fromkeys((409, 502, 504), (*names, "X-Should-Retry"))}
    return declared_errors(statuses, {**STATUSES, **OPENAI_STATUSES}, content, further)


def openai_facade(router: APIRouter, *bodies: type[BaseModel]) -> Facade:
    return Facade(
        router=router,
        tag="openai",
        description="Façades for OpenAI's clients: chat completions, Responses, files",
        prefix="/v1/",
        errors=OPENAI_ERRORS,
        declared_errors=openai_errors,
        bodies=bodies,
        answers=(OpenAIError,),
        last_data=DONE_DATA,
    )
