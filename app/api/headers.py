"""The headers that routes read: `Accept` of events, `Prefer`, and those that are recorded with an acceptance."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from fastapi import Header, Request

from app.api.problems import NotAcceptable, ValidationFailed, request_id_of
from app.api.schemas import FieldProblem

WAIT_MAX_S = 60
ACCEPTED_MAX = 64
KEY_PATTERN = r"^[\x21-\x7e]{1,255}$"

Media = Literal["text/event-stream", "application/json"]
_OFFERS: tuple[Media, ...] = get_args(Media)
_WEIGHT = re.compile(r"q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)


async def media_of(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Media:
    """The representation of the highest weight in `Accept`, of equal ones a named type before a wildcard.

    An entry without a valid weight has 1 (RFC 9110, 12.5.1). Raises NotAcceptable.
    """
    if accept is None or not accept.strip():
        return "text/event-stream"
    weights: dict[str, float] = {}
    for entry in accept.lower().split(",", ACCEPTED_MAX)[:ACCEPTED_MAX]:
        pattern, *parameters = [part.strip() for part in entry.split(";")]
        weighed = next(filter(None, map(_WEIGHT.fullmatch, parameters)), None)
        weights[pattern] = 1.0 if weighed is None else float(weighed[1])

    def preference(media: Media) -> tuple[float, int]:
        patterns = {media: 2, f"{media.partition('/')[0]}/*": 1, "*/*": 0}
        return next(((weights[pattern], rank) for pattern, rank in patterns.items() if pattern in weights), (0.0, 0))

    preferred = max(_OFFERS, key=preference)
    if preference(preferred)[0] > 0:
        return preferred
    raise NotAcceptable("This resource is a text/event-stream, or application/json in pages.")


def names_etag(request: Request, header: str, *etags: str) -> bool:
    """Whether If-Match or If-None-Match names one of these ETags, or any by `*`.

    If-None-Match compares weakly, If-Match strongly (RFC 9110, 13.1).
    """
    named = [tag.strip() for tag in ",".join(request.headers.getlist(header)).split(",")]
    if header.lower() == "if-none-match":
        named = [tag.removeprefix("W/") for tag in named]
    return any(tag in (*etags, "*") for tag in named)


def wait_of(request: Request) -> int | None:
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    matches = (_WAIT.fullmatch(preference.partition(";")[0]) for preference in preferences)
    return next((min(int(match[1]), WAIT_MAX_S) for match in matches if match is not None), None)


@dataclass(frozen=True, slots=True)
class Submission:
    """The headers beside a request's body. `on_acceptance` gets an accepted deliberation's id and `traceparent`."""

    idempotency_key: str | None = None
    request_id: str | None = None
    traceparent: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    on_acceptance: Callable[[str, str | None], None] | None = None


def submission_of(request: Request, asked: Mapping[str, Any] | None = None) -> Submission:
    """The parts of a submission that are recorded beside the body; a façade's answers repeat `asked`."""
    traceparent = request.headers.get("traceparent", "")
    return Submission(
        idempotency_key=idempotency_key_of(request),
        request_id=request_id_of(request) or None,
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else None,
        asked=asked or {},
        on_acceptance=request.scope.get("record_acceptance"),
    )


def idempotency_key_of(request: Request) -> str | None:
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or re.fullmatch(KEY_PATTERN, keys[0]) is None:
        remedy = "Send one key of 1 to 255 visible ASCII characters, for example a UUID."
        detail, name = "The key is not valid", "Idempotency-Key"
        fault = FieldProblem(location="header", pointer=name, code="invalid_key", detail=detail, remedy=remedy)
        raise ValidationFailed([fault])
    return keys[0]
