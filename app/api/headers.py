"""The headers that routes read: `Accept` of events, `Prefer`, and those that are recorded with an acceptance."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Header, Request

from app.api.problems import NotAcceptable, ValidationFailed, request_id_of
from app.api.schemas import FieldProblem

WAIT_MAX_S = 60
ACCEPTED_MAX = 64
KEY_PATTERN = r"^[\x21-\x7e]{1,255}$"

Media = Literal["text/event-stream", "application/json"]
_OFFERS: tuple[tuple[str, Media], ...] = (
    ("text/event-stream", "text/event-stream"),
    ("application/json", "application/json"),
    ("text/*", "text/event-stream"),
    ("application/*", "application/json"),
    ("*/*", "text/event-stream"),
)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)


async def media_of(accept: Annotated[str | None, Header(include_in_schema=False)] = None) -> Media:
    """The representation that `Accept` asks for, a named type before a wildcard; raises NotAcceptable."""
    if accept is None or not accept.strip():
        return "text/event-stream"
    accepted: set[str] = set()
    for entry in accept.lower().split(",", ACCEPTED_MAX)[:ACCEPTED_MAX]:
        media, *parameters = [part.strip() for part in entry.split(";")]
        weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
        if weight.strip("0.") != "":
            accepted.add(media)
    for pattern, media in _OFFERS:
        if pattern in accepted:
            return media
    raise NotAcceptable("This resource is a text/event-stream, or application/json in pages.")


def wait_of(request: Request) -> int | None:
    for header in request.headers.getlist("prefer"):
        for preference in header.split(","):
            found = _WAIT.fullmatch(preference.partition(";")[0])
            if found is not None:
                return min(int(found[1]), WAIT_MAX_S)
    return None


@dataclass(frozen=True, slots=True)
class Submission:
    """The headers beside a request's body. `hear` gets the id and the `traceparent` of an accepted deliberation."""

    idempotency_key: str | None = None
    request_id: str | None = None
    traceparent: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hear: Callable[[str, str | None], None] | None = None


def submission_of(request: Request, asked: Mapping[str, Any] | None = None) -> Submission:
    """The parts of a submission that are recorded beside the body; a façade's answers repeat `asked`."""
    traceparent = request.headers.get("traceparent", "")
    return Submission(
        idempotency_key=idempotency_key_of(request),
        request_id=request_id_of(request) or None,
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else None,
        asked=asked or {},
        hear=request.scope.get("hear_acceptance"),
    )


def idempotency_key_of(request: Request) -> str | None:
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1 or re.fullmatch(KEY_PATTERN, given[0]) is None:
        remedy = "Send one key of 1 to 255 visible ASCII characters, for example a UUID."
        detail, name = "The key is not valid", "Idempotency-Key"
        fault = FieldProblem(location="header", pointer=name, code="invalid_key", detail=detail, remedy=remedy)
        raise ValidationFailed([fault])
    return given[0]
