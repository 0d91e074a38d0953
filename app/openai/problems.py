"""Errors as the clients of OpenAI's API read them. The status comes from `app.api.problems`."""

import re
from collections.abc import Mapping, Sequence

from starlette.responses import Response

from app.api.schemas import FieldProblem, dump
from app.openai.schemas import OpenAIError, OpenAIErrorDetail

NAMED_MAX = 8
# What the deliberation cost would be paid again, or the same conflict met again.
_NOT_TO_BE_RETRIED = (409, 502, 504)
# OpenAI's words for pydantic's; what is not here keeps its own.
_CODES: Mapping[str, str] = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    **{f"{kind}_type": "invalid_type" for kind in ("string", "int", "float", "bool", "list", "dict", "model")},
    **{bound: "invalid_value" for bound in ("greater_than_equal", "greater_than", "less_than_equal", "less_than")},
    **{bound: "invalid_value" for bound in ("string_too_short", "string_too_long", "too_short", "too_long")},
    "unauthenticated": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    **{kind: "invalid_value" for kind in ("literal_error", "string_pattern_mismatch", "int_from_float", "blank")},
}


def param(pointer: str) -> str | None:
    """`/messages/0/content` as `messages[0].content`; None for the whole body."""
    dotted = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", pointer.removeprefix("/").replace("/", "."))
    return dotted.replace("~1", "/").replace("~0", "~") or None


def told(status: int, code: str, detail: str, errors: Sequence[FieldProblem] = ()) -> OpenAIError:
    """One error: the message tells every fault with its remedy, `param` and `code` name the first."""
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    faults = [
        f"{param(each.pointer) or 'the body'}: {each.detail.rstrip('.')}. {each.remedy}" for each in errors[:NAMED_MAX]
    ]
    first = errors[0] if errors else None
    return OpenAIError(
        error=OpenAIErrorDetail(
            message=" ".join(faults) or detail,
            type=kind,
            param=None if first is None else param(first.pointer),
            code=code if first is None else _CODES.get(first.code, first.code),
        )
    )


def refusal(status: int, error: OpenAIError, headers: Mapping[str, str]) -> Response:
    """The answer for one error."""
    sent = {"Cache-Control": "no-store", **headers}
    if status in _NOT_TO_BE_RETRIED:
        sent["X-Should-Retry"] = "false"  # what OpenAI's clients heed before they try again by themselves
    return Response(dump(error), status, sent, "application/json")
